"""Spellings of the steps of attention: product, scale, softmax, dropout, value product."""

from __future__ import annotations

from attn_advisor.fixes.inputs import Tensor
from tests.generator.masks import MaskSteps
from tests.generator.writer import HEAD_DIM, HEADS, Writer


class Core(MaskSteps):
    """One attention core over q, k, v in a layout: b batch, h heads, n both in one, l queries, s keys, d head size."""

    def __init__(
        self, w: Writer, layout: str, key_transposed: bool = False, square: bool = False, offset: bool = False
    ) -> None:
        self.w, self.c, self.layout = w, w.c, layout
        self.q, self.k, self.v = w.names
        self.s = w.scores
        self.key_transposed, self.square, self.offset = key_transposed, square, offset
        self.lead = "bh" if layout == "blhd" else layout[:-2]  # the scores are (*lead, l, s)
        self.axis = -1
        self.masks: list[str] = []
        self.lengths: tuple[str, str] | None = None
        self.additive = False  # a mask is added, or hides with finite values what may be a whole row
        self.drops: list[str] = []  # expressions that are True where a pair is hidden, for steps after the softmax

    # --- sizes -------------------------------------------------------------------------------------------------------------------

    def length(self) -> tuple[str, str]:
        """Names of the query and key length, assigned on first use."""
        if self.lengths is None:
            at = self.layout.index("l") - len(self.layout) if self.c.flip("negative axis") else self.layout.index("l")
            size = self.c.pick("size spelling", ["{}.size({})", "{}.shape[{}]"])
            keys_at = at
            if self.key_transposed:
                keys_at = -1 if at < 0 else len(self.layout) - 1
            names = self.c.pick("length names", [("L", "S"), ("q_len", "kv_len"), ("i", "j"), ("T", "T")])
            if names == ("T", "T") and not self.square:
                names = ("n_q", "n_k")
            self.w.emit(f"{names[0]} = {size.format(self.q, at)}")
            if names[0] != names[1]:
                self.w.emit(f"{names[1]} = {size.format(self.k, keys_at)}")
            self.lengths = names
        return self.lengths

    # --- scale -------------------------------------------------------------------------------------------------------------------

    def scale(self) -> tuple[str, str]:
        """(operator, factor): `* x` or `/ x`."""
        w, c = self.w, self.c
        if c.flip("scale divides"):
            options = [
                f"{w.math('sqrt')}({self.q}.size(-1))",
                f"{self.q}.shape[-1] ** 0.5",
                "2.0",
                f"torch.sqrt(torch.tensor({HEAD_DIM}.0))",
            ]
            if w.in_class:
                options += ["self.head_dim ** 0.5", f"{w.math('sqrt')}(self.head_dim)", "self.scale", "self.norm_fact"]
            factor = c.pick("divisor", options)
            if factor == "self.scale":
                w.init.append(
                    f"self.scale = {c.pick('scale attribute', [w.math('sqrt') + '(self.head_dim)', 'self.head_dim ** 0.5', 'dim ** 0.5'])}"
                )
                w.trait("scale is a divisor")
            if factor == "self.norm_fact":
                w.init.append(f"self.norm_fact = {w.math('sqrt')}(dim)")
            return "/", f"({factor})" if "**" in factor and c.flip("factor in brackets") else factor
        options = [f"{self.q}.size(-1) ** -0.5", f"(1.0 / {w.math('sqrt')}({self.q}.shape[-1]))", "0.3"]
        if w.in_class:
            options += ["self.scale", "self.head_dim ** -0.5", "self.temperature", "self.tau"]
        factor = c.pick("factor", options)
        if factor == "self.scale":
            texts = [
                "self.head_dim ** -0.5",
                f"1.0 / {w.math('sqrt')}(self.head_dim)",
                "dim ** -0.5",
                "0.2",
                "self.head_dim ** 0.5",
            ]
            w.init.append(f"self.scale = {c.pick('scale attribute', texts)}")
        if factor == "self.temperature":
            w.init.append("self.temperature = nn.Parameter(torch.ones(1))")
            w.trait("learned temperature")
        if factor == "self.tau":
            shape = f"({HEADS}, 1, 1)" if self.lead.endswith("h") else "()"
            w.init.append(f"self.tau = nn.Parameter(torch.full({shape}, 0.5))")
            w.trait("learned temperature")
            if self.layout == "blhd" and self.place in ("q", "k"):
                return "*", "0.7"  # heads are not third from last there
        return "*", factor

    def _scaled(self, name: str, operator: str, factor: str, in_place: bool) -> None:
        if in_place and factor in ("self.temperature", "self.tau"):
            in_place = False
        if in_place and self.c.flip(f"{name} in-place method"):
            self.w.emit(f"{name}.{'mul_' if operator == '*' else 'div_'}({factor})")
        elif in_place:
            self.w.emit(f"{name} {operator}= {factor}")
        else:
            self.w.emit(f"{name} = {name} {operator} {factor}")

    # --- product -----------------------------------------------------------------------------------------------------------------

    def product(self) -> None:
        w, c, q, k = self.w, self.c, self.q, self.k
        place = c.often("scale place", ["after", "q", "k", "both", "none", "masks", "inline", "q inline"], 2)
        self.place = place
        w.trait(f"scale {place}")
        self.late_scale: tuple[str, str] | None = None
        if place in ("q", "k"):
            self._scaled(q if place == "q" else k, *self.scale(), in_place=False)
        elif place == "both":
            root = f"{q}.size(-1) ** -0.25"
            w.emit(f"{q} = {q} * {root}", f"{k} = {k} * {root}")
        if place == "q inline":
            operator, factor = self.scale()
            self.q = f"({self.q} {operator} {factor})"
        expression = self._product()
        self.q = w.names[0]
        if place == "inline":
            operator, factor = self.scale()
            w.emit(
                f"{self.s} = {factor} * ({expression})"
                if operator == "*" and c.flip("factor first")
                else f"{self.s} = ({expression}) {operator} {factor}"
            )
        else:
            w.emit(f"{self.s} = {expression}")
        if place == "after":
            self._scaled(self.s, *self.scale(), in_place=c.flip("scale in place", 3))
        if place == "masks":
            self.late_scale = self.scale()

    def finish_scores(self) -> None:
        """The scaling that comes after the masks, if it does."""
        if self.late_scale:
            self._scaled(self.s, *self.late_scale, in_place=self.c.flip("late scale in place", 3))

    def _turned(self) -> str:
        """The key with head size before length."""
        k = self.k
        if self.key_transposed:
            return k
        if self.layout == "blhd":
            return self.c.pick("key turned", [f"{k}.permute(0, 2, 3, 1)", f"{k}.transpose(1, 2).transpose(-2, -1)"])
        if self.layout == "ld":
            return self.c.pick("key turned", [f"{k}.T", f"{k}.t()", f"{k}.transpose(0, 1)", f"{k}.transpose(-2, -1)"])
        options = [
            f"{k}.transpose(-2, -1)",
            f"{k}.transpose(-1, -2)",
            f"{k}.mT",
            f"{k}.swapaxes(-1, -2)",
            f"torch.transpose({k}, -2, -1)",
        ]
        by_rank = {
            3: [f"{k}.permute(0, 2, 1)", f"{k}.transpose(1, 2)"],
            4: [f"{k}.permute(0, 1, 3, 2)", f"{k}.transpose(2, 3)"],
            5: [f"{k}.permute(0, 1, 2, 4, 3)", f"{k}.transpose(3, 4)"],
        }
        options += by_rank[len(self.layout)]
        return self.c.pick("key turned", options)

    def _product(self) -> str:
        w, c, q, k = self.w, self.c, self.q, self.k
        forms = ["@", "torch.matmul", "method", "einsum"]
        if len(self.layout) == 3:
            forms += ["bmm", "torch.bmm", "baddbmm"]
        if not self.key_transposed and self.layout != "blhd":
            forms += ["key first", "turned back"]
        form = c.pick("product", forms)
        w.trait(f"product {form}")
        if form == "einsum":
            key = self.layout.replace("l", "s") if not self.key_transposed else self.lead + "ds"
            return self._einsum("first", [(self.layout, q), (key, k)], self.lead + "ls")
        if form == "key first":
            self.axis = -2
            return c.pick("key first", [f"{k} @ {q}.transpose(-2, -1)", f"torch.matmul({k}, {q}.mT)"])
        if form == "turned back":
            return f"({k} @ {q}.transpose(-2, -1)).transpose(-2, -1)"
        turned = self._turned()
        if self.layout == "blhd":
            q = f"{q}.transpose(1, 2)"
        if form == "@":
            return f"{q} @ {turned}"
        if form == "method":
            return f"{q}.matmul({turned})"
        if form == "bmm":
            return f"{q}.bmm({turned})"
        if form == "baddbmm":
            at = self.length()
            start = c.pick("baddbmm start", ["empty", "zeros"])
            zeros = f"torch.{start}({q}.shape[0], {at[0]}, {at[1]}, dtype={q}.dtype, device={q}.device)"
            w.trait("baddbmm")
            return f"torch.baddbmm({zeros}, {q}, {turned}, beta=0, alpha={c.pick('alpha', ['1.0', '0.5'])})"
        return f"{form}({q}, {turned})"

    def _einsum(self, name: str, operands: list[tuple[str, str]], result: str) -> str:
        w, c = self.w, self.c
        letters = c.pick(f"{name} einsum letters", ["bhlsdnw", "bhijdnw", "zxqkcwy", "nhtseab"])
        table = dict(zip("bhlsdnw", letters, strict=True))
        sides = ["".join(table[a] for a in axes) for axes, _ in operands]
        out = "".join(table[a] for a in result)
        values = ", ".join(value for _, value in operands)
        form = c.often(f"{name} einsum form", ["torch.einsum", "imported", "tuple", "spaces", "ellipsis", "einops"])
        if form == "imported":
            w.imports.add("from torch import einsum")
            return f'einsum("{sides[0]},{sides[1]}->{out}", {values})'
        if form == "tuple":
            return f'torch.einsum("{sides[0]},{sides[1]}->{out}", ({values}))'
        if form == "spaces":
            return f"torch.einsum('{' '.join(sides[0])}, {' '.join(sides[1])} -> {' '.join(out)}', {values})"
        if form == "ellipsis" and all(side.startswith(sides[0][:2]) for side in (*sides, out)) and len(self.lead) == 2:
            return f'torch.einsum("...{sides[0][2:]},...{sides[1][2:]}->...{out[2:]}", {values})'
        if form == "einops":
            w.imports.add("import einops")
            return f'einops.einsum({values}, "{" ".join(sides[0])}, {" ".join(sides[1])} -> {" ".join(out)}")'
        return f'torch.einsum("{sides[0]},{sides[1]}->{out}", {values})'

    # --- softmax, dropout, value product -----------------------------------------------------------------------------------------

    def softmax(self) -> None:
        w, c, s = self.w, self.c, self.s
        axis = self.axis
        if axis == -1 and c.flip("positive softmax axis", 3):
            axis = len(self.lead) + 1
        p = "probs" if w.rename else s
        forms = [
            f"{w.f}.softmax({s}, dim={axis})", f"torch.softmax({s}, dim={axis})", f"{s}.softmax(dim={axis})", f"{s}.softmax({axis})",
                 f"{w.f}.softmax({s}, {axis})", f"nn.Softmax(dim={axis})({s})", "attribute", "float32", "float32 method", "float32 attribute", "by hand",
                 "by logsumexp", "imported", "helper", "sequential", "conditional", "lambda", "nested", f"torch.softmax(input={s}, dim={axis})"]  # fmt: skip
        form = c.pick("softmax", forms)
        if form.startswith("nn.") or w.f.startswith("nn."):
            w.imports.add("from torch import nn")
        if not w.in_class and ("attribute" in form or form == "sequential"):
            form = forms[0]
        w.trait(f"softmax {form if '(' not in form else 'plain'}")
        if form == "attribute":
            w.init.append(f"self.{c.pick('softmax attribute', ['softmax', 'attend', 'act'])} = nn.Softmax(dim={axis})")
            form = f"self.{['softmax', 'attend', 'act'][c.made['softmax attribute']]}({s})"
        elif form == "sequential":
            w.init.append(f"self.attend = nn.Sequential(nn.Softmax(dim={axis}), nn.Dropout(dropout))")
            form = f"self.attend({s})"
        elif form == "float32":
            back = c.pick("cast back", [f".to({self.q}.dtype)", f".type_as({self.q})"])
            form = f"{w.f}.softmax({s}, dim={axis}, dtype=torch.float32){back}"
        elif form == "float32 method":
            form = f"{s}.float().softmax(dim={axis}).to({self.v}.dtype)"
        elif form == "float32 attribute":
            w.init.append(f"self.softmax = nn.Softmax(dim={axis})")
            form = f"self.softmax({s}.to(torch.float32)).to({self.v}.dtype)"
        elif form == "by hand":
            w.emit(f"e = torch.exp({s} - {s}.amax(dim={axis}, keepdim=True))")
            form = f"e / e.sum(dim={axis}, keepdim=True)"
        elif form == "by logsumexp":
            form = f"torch.exp({s} - torch.logsumexp({s}, dim={axis}, keepdim=True))"
        elif form == "imported":
            w.imports.add("from torch.nn.functional import softmax as sm")
            form = f"sm({s}, dim={axis})"
        elif form == "helper":
            w.functions.append(
                f"def stable_softmax(t, dim={axis}):\n    t = t - t.amax(dim=dim, keepdim=True).detach()\n    return t.softmax(dim=dim)"
            )
            form = f"stable_softmax({s})"
        elif form == "conditional":
            w.init.append("self.upcast = False") if w.in_class else None
            with w.block("if self.upcast:" if w.in_class else f"if {self.q}.dtype == torch.float16:"):
                w.emit(f"{p} = {s}.float().softmax(dim={axis}).to({self.v}.dtype)")
            with w.block("else:"):
                w.emit(f"{p} = {s}.softmax(dim={axis})")
            form = ""
        elif form == "lambda":
            w.emit(f"soft = lambda t: {w.f}.softmax(t, dim={axis})")
            form = f"soft({s})"
        elif form == "nested":
            with w.block("def soft(t):"):
                w.emit(f"return torch.softmax(t, dim={axis})")
            form = f"soft({s})"
        if form:
            w.emit(f"{p} = {form}")
        self.p = p
        if self.drops and c.flip("rows set to zero", 4):
            w.trait("zeroed after the softmax")
            w.emit(f"{p} = {p}.masked_fill({self.drops[0]}, 0.0)")
        elif c.flip("nan_to_num", 25):
            w.trait("nan_to_num")
            w.emit(f"{p} = torch.nan_to_num({p})")

    def dropout(self) -> None:
        w, c, p = self.w, self.c, self.p
        forms = (
            ["none", "module", "functional", "functional flag", "if p"] if w.in_class else ["none", "functional flag"]
        )
        form = c.pick("dropout", forms)
        w.trait(f"dropout {form}")
        if form == "module":
            name = c.pick("dropout name", ["dropout", "attn_drop", "drop"])
            w.init.append(f"self.{name} = nn.Dropout(dropout)")
            w.emit(f"{p} = self.{name}({p})")
        elif form == "functional":
            w.init.append("self.p = dropout")
            w.emit(
                f"{p} = {w.f}.dropout({p}, {c.pick('functional dropout', ['p=self.p, training=self.training', 'self.p, self.training', 'self.p'])})"
            )
        elif form == "functional flag":
            w.emit(f"{p} = {w.f}.dropout({p}, p=0.1, training={'self.training' if w.in_class else 'True'})")
        elif form == "if p":
            w.init.append("self.p = dropout")
            with w.block("if self.p > 0:"):
                w.emit(f"{p} = {w.f}.dropout({p}, p=self.p, training=self.training)")

    def values(self, result: str | None = None) -> str:
        """Emit the product with v; the axes of the result."""
        w, c, p, v = self.w, self.c, self.p, self.v
        out = self.lead + "ld"
        laid = self.layout.replace("l", "s")
        forms = ["@", "torch.matmul", "method", "einsum"]
        if len(self.layout) == 3:
            forms.append("torch.bmm")
        if self.axis == -1 and self.layout != "blhd":
            forms.append("turned")
        form = c.pick("value product", forms)
        w.trait(f"values {form}")
        if form == "einsum":
            side = self.lead + ("ls" if self.axis == -1 else "sl")
            if self.lead == "bh" and c.flip("einsum result blhd"):
                out = "blhd"
            w.emit(f"{w.output} = {self._einsum('second', [(side, p), (laid, v)], out)}")
            return out
        if self.axis == -2:
            p = f"{p}.transpose(-2, -1)"
        if self.layout == "blhd":
            v = f"{v}.transpose(1, 2)"
        if form == "turned":
            w.emit(f"{w.output} = ({v}.transpose(-2, -1) @ {p}.transpose(-2, -1)).transpose(-2, -1)")
        elif form == "method":
            w.emit(f"{w.output} = {p}.matmul({v})")
        elif form == "@":
            w.emit(f"{w.output} = {p} @ {v}")
        else:
            w.emit(f"{w.output} = {form}({p}, {v})")
        return out


def qkv(layout: str, same: bool) -> dict[str, Tensor]:
    """Inputs for q, k, v given as arguments."""
    names = {"b": "B", "h": "H", "l": "L", "d": "D", "n": "N", "w": "W"}
    queries = tuple(names[a] for a in layout)
    keys = queries if same else tuple("S" if a == "L" else a for a in queries)
    return {"q": Tensor(queries), "k": Tensor(keys), "v": Tensor(keys)}
