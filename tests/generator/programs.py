"""Whole generated programs: a module or function with attention (or something that looks like it) and the inputs to run it on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from attn_advisor.fixes.inputs import Dims, Many, Recipe, Spec, Tensor, optional
from tests.generator.choices import Choices, recorded, seeded
from tests.generator.spellings import Core, qkv
from tests.generator.writer import DIM, HEAD_DIM, HEADS, Writer

NAME = "Subject"
TRAPS = (
    "wrong softmax axis", "returned", "stored", "head mask", "talking heads", "softcap", "negated", "softmax twice", "sigmoid", "top-k",
    "renormalised", "gated by scores", "scaled by head", "scaled by pair", "output in place", "mask in place", "scores returned", "zero column",
    "clamped", "probabilities squared", "dropout of scores", "keys changed later", "doubled",
)  # fmt: skip


@dataclass(frozen=True)
class Program:
    """A self-contained importable module with one `Subject`.

    attention: whether attention is in it; trap: why it is not the plain kind ("" if it is); additive: whether a given mask may hide a whole row
    with finite values, which an unsafe rewrite may get wrong; traits: the decisions in words.
    """

    text: str
    recipe: Recipe
    attention: bool
    trap: str
    additive: bool
    traits: tuple[str, ...]
    choices: Mapping[str, int]
    name: str = NAME


def generate(seed: int) -> Program:
    """The program of a seed."""
    return write(seeded(seed))


def again(choices: Mapping[str, int]) -> Program:
    """The program of recorded decisions."""
    return write(recorded(choices))


def write(c: Choices) -> Program:
    w = Writer(c)
    kind = c.pick("kind", ["core", "module", "function", "cross", "cache", "grouped", "core", "module"])
    w.in_class = kind != "function"
    w.trait(kind)
    layouts = ["bhld", "bhld", "bhld", "blhd", "nld", "bld"] if kind not in ("cache", "grouped") else ["bhld"]
    layout = c.pick("layout", layouts + (["bwhld", "ld"] if kind in ("core", "function") else []))
    w.trait(layout)
    key_transposed = kind in ("module", "cross") and layout == "bhld" and c.flip("key stored transposed", 5)
    square = kind == "module" or (kind in ("core", "function", "grouped") and c.flip("square"))
    core = Core(w, layout, key_transposed, square, offset=kind == "cache")
    trap = c.pick("trap", TRAPS) if c.flip("trapped", 4) else ""
    helper = c.often("structure", ["inline", "method", "function"]) if kind in ("module", "cross", "core") else "inline"
    with w.elsewhere() as prepare:
        _prepare(core, kind)
    with w.elsewhere() as lines:
        axes = _attention(core, trap)
    with w.elsewhere() as finish:
        if kind in ("module", "cross", "cache", "grouped"):
            _merge(core, axes)
        elif c.flip("output transposed", 3) and len(axes) == 4:
            w.emit(f"{w.output} = {w.output}.transpose(1, 2)")
    results = [w.output]
    if trap == "returned":
        results.append(core.p)
    if trap == "scores returned":
        results.append("kept")
    if helper != "inline":
        w.trait(f"core in a {helper}")
        lines = _helper(core, helper, lines, results)
    comments = c.pick("comments", ["none", "none", "above", "behind"])
    if comments != "none":
        lines = _commented(lines, comments)
    body = prepare + lines + finish
    result = ", ".join(results) if len(results) > 1 else c.often("returned form", [w.output, f"{w.output}, None"], 5)
    if kind == "cache" and c.flip("cache returned"):
        result += f", ({w.names[1]}, {w.names[2]})"
    body.append(f"return {result}")
    arguments = _arguments(core, kind, square) | {name: spec for name, (spec, _) in w.parameters.items()}
    required = [name for name in arguments if name not in w.parameters or w.parameters[name][1] is None]
    given = [f"{name}=None" for name in arguments if name not in required]
    if kind == "cache":
        required, given = [n for n in required if n != "past"], ["past=None", *given]
    first = ["self"] if w.in_class else []
    signature = f"{'forward' if w.in_class else NAME}({', '.join([*first, *required, *given])})"
    text = w.text(NAME, signature, body)
    recipe = Recipe(
        arguments, _dims(kind, layout, square), {"dim": DIM, "heads": HEADS, "dropout": 0.1} if w.in_class else {}
    )
    attention = trap not in ("wrong softmax axis", "sigmoid")
    return Program(text, recipe, attention, trap, core.additive, (*w.traits, *([trap] if trap else [])), dict(c.made))


# --- what comes before: q, k and v ---------------------------------------------------------------------------------------------


def _arguments(core: Core, kind: str, square: bool) -> dict[str, Spec]:
    if kind in ("core", "function"):
        inputs = qkv(core.layout, square)
        return dict(zip(core.w.names, inputs.values(), strict=True))
    arguments: dict[str, Spec] = {"x": Tensor(("B", "L", DIM))}
    if kind == "cross":
        arguments["context"] = Tensor(("B", "S", DIM))
    if kind == "cache":
        arguments["past"] = optional(Many((Tensor(("B", HEADS, "P", HEAD_DIM)), Tensor(("B", HEADS, "P", HEAD_DIM)))))
    return arguments


def _dims(kind: str, layout: str, square: bool) -> tuple[Dims, ...]:
    """Sizes: usual ones, a single query, and all alike (where a wrong axis would not be seen by its size)."""
    found: list[Dims] = []
    for batch, queries, keys in ((3, 5, 7), (2, 2, 2), (2, 1, 6)):
        if square or kind in ("module", "cache", "grouped"):
            keys = queries
        found.append(
            {"B": batch, "H": HEADS, "N": batch * HEADS, "L": queries, "S": keys, "P": 3, "D": HEAD_DIM, "W": 2}
        )
    return tuple(found)


def _prepare(core: Core, kind: str) -> None:
    """q, k and v from x, in the core's layout."""
    w, c = core.w, core.c
    q, k, v = w.names
    if kind in ("core", "function"):
        return
    source = "context" if kind == "cross" else "x"
    shape = c.pick("shape unpacked", ["B, T, C = x.shape", "B, T, _ = x.size()", "B, T = x.shape[:2]"])
    w.emit(shape)
    if kind == "cross":
        w.emit("N = context.size(1)")
    keys = "N" if kind == "cross" else "T"
    heads, size = "self.heads", c.pick("head size", ["self.head_dim", "-1"])
    if kind == "grouped":
        w.init += ["self.to_q = nn.Linear(dim, dim)", f"self.to_kv = nn.Linear(dim, {HEAD_DIM} * 2)"]
        w.emit(f"{q} = self.to_q(x).view(B, T, {heads}, {size}).transpose(1, 2)", f"{k}, {v} = self.to_kv(x).chunk(2, dim=-1)",
               f"{k}, {v} = {k}.view(B, T, 1, -1).transpose(1, 2), {v}.view(B, T, 1, -1).transpose(1, 2)")  # fmt: skip
        repeat = c.pick("keys repeated", ["{0} = {0}.repeat_interleave(self.heads, dim=1)", "{0} = torch.repeat_interleave({0}, self.heads, dim=1)",
                                          "{0} = {0}[:, :, None].expand(B, 1, self.heads, T, -1).reshape(B, self.heads, T, -1)",
                                          "{0} = {0}.repeat(1, self.heads, 1, 1)", "{0} = {0}.expand(-1, self.heads, -1, -1)"])  # fmt: skip
        w.emit(repeat.format(k), repeat.format(v))
    else:
        fused = kind in ("module", "cache") and c.flip("fused projection")
        if fused:
            w.init.append("self.qkv = nn.Linear(dim, dim * 3, bias=False)")
            forms = ["chunk", "split", "map", "comprehension"] + (
                ["reshape", "rearrange"] if core.layout == "bhld" and not core.key_transposed else []
            )
            form = c.pick("fused", forms)
            w.trait(f"fused {form}")
            if form == "reshape":
                w.emit(f"qkv = self.qkv(x).reshape(B, T, 3, {heads}, {size}).permute(2, 0, 3, 1, 4)",
                       c.pick("unpacked", [f"{q}, {k}, {v} = qkv[0], qkv[1], qkv[2]", f"{q}, {k}, {v} = qkv.unbind(0)", f"{q}, {k}, {v} = qkv"]))  # fmt: skip
                _cached(core, kind)
                return
            if form == "rearrange":
                w.imports.add("from einops import rearrange")
                w.emit(f'{q}, {k}, {v} = rearrange(self.qkv(x), "b n (t h d) -> t b h n d", t=3, h={heads})')
                _cached(core, kind)
                return
            w.emit(
                f"{q}, {k}, {v} = self.qkv(x).split({DIM}, dim=2)"
                if form == "split"
                else f"{q}, {k}, {v} = self.qkv(x).chunk(3, dim=-1)"
            )
            if form in ("map", "comprehension") and core.layout == "bhld" and not core.key_transposed:
                turn = f"t.view(B, T, {heads}, {size}).transpose(1, 2)"
                if c.flip("mapped rearrange"):
                    w.imports.add("from einops import rearrange")
                    turn = f"rearrange(t, 'b n (h d) -> b h n d', h={heads})"
                w.emit(
                    f"{q}, {k}, {v} = map(lambda t: {turn}, ({q}, {k}, {v}))"
                    if form == "map"
                    else f"{q}, {k}, {v} = ({turn} for t in ({q}, {k}, {v}))"
                )
                _cached(core, kind)
                return
            inputs = {q: q, k: k, v: v}
        else:
            w.init += [f"self.{n} = nn.Linear(dim, dim)" for n in ("to_q", "to_k", "to_v")]
            inputs = {q: "self.to_q(x)", k: f"self.to_k({source})", v: f"self.to_v({source})"}
        split = c.pick("heads split", ["view", "rearrange", "permute", "helper"])
        if split == "helper" and core.layout in ("bhld", "nld"):
            w.methods.append(
                "    def split_heads(self, t):\n        return t.view(t.size(0), t.size(1), self.heads, -1).transpose(1, 2)\n"
            )
        for name, value in inputs.items():
            if core.layout == "bld" and name == value:
                continue
            w.emit(
                f"{name} = {_split(core, split, value, 'T' if name == q else keys, heads, size, turned=name == k and core.key_transposed)}"
            )
    _cached(core, kind)


def _split(core: Core, split: str, value: str, length: str, heads: str, size: str, turned: bool) -> str:
    layout = core.layout
    if layout == "bld":
        return value
    if layout == "blhd":
        return f"{value}.view(B, {length}, {heads}, {size})"
    if turned:
        return f"{value}.view(B, {length}, {heads}, {size}).permute(0, 2, 3, 1)"
    if split == "rearrange":
        core.w.imports.add("from einops import rearrange")
        pattern = "b n (h d) -> b h n d" if layout == "bhld" else "b n (h d) -> (b h) n d"
        return f'rearrange({value}, "{pattern}", h={heads})'
    if split == "permute":
        value = f"{value}.view(B, {length}, {heads}, {size}).permute(0, 2, 1, 3)"
    elif split == "helper":
        value = f"self.split_heads({value})"
    else:
        value = f"{value}.view(B, {length}, {heads}, {size}).transpose(1, 2)"
    return value if layout == "bhld" else f"{value}.reshape(B * {heads}, {length}, -1)"


def _cached(core: Core, kind: str) -> None:
    if kind != "cache":
        return
    _, k, v = core.w.names
    with core.w.block("if past is not None:"):
        core.w.emit(f"{k} = torch.cat([past[0], {k}], dim=2)", f"{v} = torch.cat((past[1], {v}), dim=-2)")


# --- the attention and what may be wrong with it -------------------------------------------------------------------------------


def _attention(core: Core, trap: str) -> str:
    w, s = core.w, core.s
    q, k, _ = w.names
    if core.c.flip("sizes first", 4):
        core.length()
    if core.c.flip("scores in a method", 6) and w.in_class:
        _scores_method(core)
    else:
        core.product()
    heads = core.lead == "bh"
    if trap == "negated":
        w.emit(core.c.pick("negated", [f"{s} = -{s}", f"{s} = {s}.amax(-1, keepdim=True) - {s}"]))
    elif trap == "softcap":
        w.emit(f"{s} = 20.0 * torch.tanh({s} / 20.0)")
    elif trap == "clamped":
        w.emit(f"{s} = {s}.clamp(-2.0, 2.0)")
    elif trap == "talking heads" and heads:
        w.init.append(f"self.mix = nn.Parameter(torch.eye({HEADS}))" if w.in_class else "")
        w.emit(
            f"{s} = torch.einsum('bhij,hg->bgij', {s}, {'self.mix' if w.in_class else f'torch.ones({HEADS}, {HEADS}, dtype={s}.dtype)'})"
        )
    elif trap == "dropout of scores":
        w.emit(f"{s} = {w.f}.dropout({s}, 0.2, {'self.training' if w.in_class else 'True'})")
    elif trap == "scores returned":
        w.emit(f"kept = {s}")
    elif trap == "doubled":
        w.emit(f"{s} = {s} + {s}.transpose(-2, -1)" if core.square else f"{s} = {s} + {s}")
    core.add_masks()
    core.finish_scores()
    if trap == "wrong softmax axis":
        core.axis = -2 if core.axis == -1 else -1
        core.softmax()
        core.axis = -2 if core.axis == -1 else -1
    else:
        core.softmax()
    p = core.p
    if trap == "softmax twice":
        w.emit(f"{p} = {p}.softmax(-1)")
    elif trap == "sigmoid":
        w.emit(f"{p} = torch.sigmoid({p})")
    elif trap == "top-k":
        w.emit(f"{p} = {p} * ({p} >= {p}.topk(1, dim=-1).values)")
    elif trap == "renormalised":
        w.emit(f"{p} = {p} / ({p}.sum(-1, keepdim=True) + 1e-3)")
    elif trap == "head mask" and heads:
        w.parameters["head_mask"] = (optional(Tensor(("H", 1, 1))), "None")
        with w.block("if head_mask is not None:"):
            w.emit(f"{p} = {p} * head_mask")
    elif trap == "gated by scores":
        w.emit(f"{p} = {p} * torch.sigmoid({q}.mean())")
    elif trap == "scaled by head" and heads:
        w.emit(f"{p} = {p} * torch.arange(1, {HEADS + 1}, device={p}.device).view(-1, 1, 1)")
    elif trap == "scaled by pair":
        w.emit(f"{p} = {p} * torch.ones_like({p}).tril()")
    elif trap == "probabilities squared":
        w.emit(f"{p} = {p} ** 2")
    elif trap == "stored" and w.in_class:
        w.emit(f"self.last = {p}{core.c.pick('stored', ['', '.detach()'])}")
    elif trap == "zero column":
        w.emit(f"{p} = {p} * 0.5")
    core.dropout()
    axes = core.values()
    if trap == "output in place":
        w.emit(
            core.c.pick(
                "changed in place",
                [f"{w.output} *= 0.5", f"{w.output}.mul_({q}.mean())", f"{w.output} += 1", f"{w.output}[..., 0] = 0"],
            )
        )
    elif trap == "mask in place" and core.masks:
        name = core.masks[0]
        with w.block(f"if {name} is not None:"):
            w.emit(f"{name}.copy_({name}.clone())" if not core.additive else f"{name}.add_(0)")
    elif trap == "keys changed later":
        w.emit(f"{k} = {k} * 2", f"{w.output} = {w.output} + {k}.mean()")
    return axes


def _commented(lines: list[str], place: str) -> list[str]:
    """A numbered comment for every line of the attention."""
    found: list[str] = []
    for number, line in enumerate(lines):
        indent = line[: len(line) - len(line.lstrip())]
        found += [f"{line}  # note {number}."] if place == "behind" else [f"{indent}# note {number}.", line]
    return found


def _scores_method(core: Core) -> None:
    """Product and scale in a method of their own."""
    w = core.w
    core.length()
    with w.elsewhere() as lines:
        core.product()
    if core.place in ("q", "k", "both"):
        w.emit(*lines)  # they change q or k, which the rest reads
        return
    w.trait("scores in a method")
    lengths = [
        name
        for name in dict.fromkeys(core.length())
        if any(f" {name}," in line or f" {name})" in line for line in lines)
    ]
    names = ", ".join([core.q, core.k, *lengths])
    body = "\n".join(f"        {line}" for line in [*lines, f"return {core.s}"])
    w.methods.append(f"    def get_scores(self, {names}):\n{body}\n")
    w.emit(f"{core.s} = self.get_scores({names})")


def _helper(core: Core, kind: str, lines: list[str], results: list[str]) -> list[str]:
    """Move the attention into a method or, if it does not read self, into a function."""
    w = core.w
    reads_self = any("self." in line for line in lines)
    outside = "method" if reads_self else kind
    names = [*w.names, *w.parameters]
    lines = [*lines, f"return {', '.join(results)}"]
    if outside == "method":
        name = core.c.pick("method name", ["_attend", "_attn", "attention"])
        w.methods.append(
            f"    def {name}(self, {', '.join(names)}):\n" + "\n".join(f"        {line}" for line in lines) + "\n"
        )
        call = f"self.{name}({', '.join(names)})"
    else:
        w.functions.append(f"def attention({', '.join(names)}):\n" + "\n".join(f"    {line}" for line in lines))
        call = f"attention({', '.join(names)})"
    return [f"{', '.join(results)} = {call}"]


def _merge(core: Core, axes: str) -> None:
    """Heads back into one width, and the output projection."""
    w, c, out = core.w, core.c, core.w.output
    if axes == "bhld":
        form = c.pick("merge", ["transpose", "permute", "rearrange", "flatten", "reshape"])
        if form == "rearrange":
            w.imports.add("from einops import rearrange")
            w.emit(f"{out} = rearrange({out}, 'b h n d -> b n (h d)')")
        elif form == "flatten":
            w.emit(f"{out} = {out}.transpose(1, 2).flatten(2)")
        elif form == "reshape":
            w.emit(f"{out} = {out}.transpose(1, 2).reshape(B, T, {DIM})")
        elif form == "permute":
            w.emit(
                f"{out} = {out}.permute(0, 2, 1, 3).contiguous()", f"{out} = {out}.view({out}.size()[:-2] + ({DIM},))"
            )
        else:
            w.emit(f"{out} = {out}.transpose(1, 2).contiguous().view(B, T, -1)")
    elif axes == "blhd":
        w.emit(f"{out} = {out}.{c.pick('merge', ['reshape(B, T, -1)', 'flatten(2)'])}")
    elif axes == "nld":
        w.emit(c.pick("merge", [f"{out} = {out}.view(B, self.heads, T, -1).transpose(1, 2).reshape(B, T, -1)",
                                f"{out} = {out}.reshape(B, self.heads, T, self.head_dim).permute(0, 2, 1, 3).flatten(2)"]))  # fmt: skip
    if c.flip("output projection"):
        w.init.append("self.proj = nn.Linear(dim, dim)")
        w.emit(f"{out} = self.proj({out})")
