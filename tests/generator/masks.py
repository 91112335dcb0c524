"""Spellings of masks and biases: given by the caller, causal, learned."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from attn_advisor.fixes.inputs import Mask, MaskForm, Sense, optional
from tests.generator.choices import Choices
from tests.generator.writer import HEADS, LONGEST, Writer

ANY: tuple[MaskForm, ...] = ("bool", "int", "uint8", "float01")


class MaskSteps:
    """The part of a core that changes its scores between product and softmax."""

    w: Writer
    c: Choices
    s: str  # the scores' name
    q: str
    lead: str  # axes of the scores before queries and keys
    axis: int  # where the keys are in the scores: -1 or -2
    offset: bool  # keys may come before the queries' own (a cache)
    square: bool
    masks: list[str]
    drops: list[str]
    additive: bool

    def length(self) -> tuple[str, str]:
        """Names of the query and key length."""
        raise NotImplementedError

    def _fill(self, name: str, weak: bool = True) -> str:
        s = self.s
        options = [
            'float("-inf")',
            "-1e9",
            f"torch.finfo({s}.dtype).min",
            "-1e4",
            "-torch.inf",
            f"-{self.w.math('inf')}",
            'float("-1e20")',
        ]
        if weak and self.c.flip(f"{name} weak", 20):
            self.w.trait("weak fill")
            return self.c.pick(f"{name} weak fill", ["-100.0", "1e-9", "-50"])
        return self.c.pick(f"{name} fill", options)

    def add_masks(self) -> None:
        count = self.c.pick("masks", [0, 1, 1, 2])
        for number in range(count):
            kind = self.c.pick(
                f"mask {number}", ["given", "causal", "given", "bias"] if self.axis == -1 else ["given full"]
            )
            if kind == "causal":
                self._causal(f"mask {number}")
            elif kind == "bias":
                self._bias(f"mask {number}")
            else:
                self._given(f"mask {number}", number, full=kind == "given full")

    def _given(self, name: str, number: int, full: bool) -> None:
        """A mask that the caller passes."""
        w, c = self.w, self.c
        mask = c.pick(
            f"{name} name", [["mask", "other_mask"], ["attn_mask", "second_mask"], ["attention_mask", "extra"]]
        )[number]
        pairs = ("L", "S") if self.axis == -1 else ("S", "L")
        shapes: list[tuple[str | int, ...]] = {
            "bh": [
                ("B", 1, *pairs),
                pairs,
                ("B", "H", *pairs),
                ("B", 1, 1, "S"),
                ("B", "S"),
                ("B", *pairs),
                (1, *pairs),
            ],
            "b": [("B", *pairs), pairs, ("B", 1, "S"), ("B", "S")],
            "n": [("N", *pairs), pairs, (1, *pairs), ("N", "S")],
            "bwh": [("W", 1, *pairs), pairs, ("B", "W", "H", *pairs), ("B", "W", 1, *pairs), ("H", *pairs)],
            "": [pairs, ("L", 1) if self.axis == -1 else (1, "L"), pairs, (1, "S") if self.axis == -1 else ("S", 1)],
        }[self.lead]
        setitem_shape = shapes[2] if self.lead in ("bh", "bwh") else shapes[0]
        if full:
            shapes = [setitem_shape]
        how = c.pick(
            f"{name} how",
            [
                "masked_fill",
                "masked_fill_",
                "where",
                "where fill",
                "add",
                "iadd",
                "arithmetic",
                "arithmetic out",
                "replace",
                "setitem",
            ],
        )
        shape = setitem_shape if how == "setitem" else c.pick(f"{name} shape", shapes)
        sense: Sense = c.pick(f"{name} sense", ["keep", "drop"])
        fill = self._fill(name)
        view = mask
        if shape[1:] == ("S",) and shape[0] in ("B", "N"):  # padding, given (B, S)
            view = c.pick(f"{name} view", [f"{mask}[:, None, None, :]", f"{mask}.unsqueeze(1).unsqueeze(2)"] if self.lead == "bh" else
                          [f"{mask}[:, None, :]", f"{mask}.unsqueeze(1)"])  # fmt: skip
        elif shape == ("B", *pairs) and self.lead == "bh":
            view = c.pick(f"{name} view", [f"{mask}.unsqueeze(1)", f"{mask}[:, None]"])
        forms: tuple[MaskForm, ...] = ANY
        lines: list[str] = []
        if how in ("masked_fill", "masked_fill_", "where", "where fill", "setitem"):
            if sense == "keep":
                drop = c.pick(
                    f"{name} drop",
                    [
                        f"{view} == 0",
                        f"~{view}",
                        f"{view}.logical_not()",
                        f"~{view}.bool()",
                        f"{view}.eq(0)",
                        f"{view} < 0.5",
                    ],
                )
            else:
                drop = c.pick(
                    f"{name} drop",
                    [view, f"{view}.bool()", f"{view} == 1", f"{view} != 0", f"{view}.to(torch.bool)", f"{view} > 0"],
                )
            if how == "masked_fill":
                lines = [f"{self.s} = {self.s}.masked_fill({drop}, {fill})"]
            elif how == "masked_fill_":
                lines = [f"{self.s}.masked_fill_({drop}, {fill})"]
            elif how == "setitem":
                forms = ("bool",) if drop in (view, f"~{view}") else ANY
                lines = [f"{self.s}[{drop}] = {fill}"]
            elif how == "where fill":
                value = c.pick(
                    f"{name} fill tensor",
                    [f"torch.full_like({self.s}, {fill})", f"torch.tensor({fill}, dtype={self.s}.dtype)"],
                )
                lines = [f"{self.s} = torch.where({drop}, {value}, {self.s})"]
            else:
                keep = view if sense == "keep" else f"~({drop})"
                if sense == "keep":
                    keep = c.pick(f"{name} keep", [f"{view} != 0", f"{view}.bool()", view])
                lines = [f"{self.s} = torch.where({keep}, {self.s}, {fill})"]
            if full or shape == setitem_shape:
                self.drops.append(f"{view} == 0" if sense == "keep" else f"{view} != 0")
        elif how in ("add", "iadd"):
            forms, sense = ("finite", "additive", "bias"), "keep"
            lines = [f"{self.s} += {view}" if how == "iadd" else f"{self.s} = {self.s} + {view}"]
            self.additive = True
        else:
            forms, sense = ("float01", "int"), "keep"
            strong = c.pick(f"{name} strong", ["-10000.0", "-1e9"])
            if how == "replace":
                lines = [f"{self.s} = {self.s} * {view} {strong.replace('-', '- ', 1)} * (1 - {view})"]
            elif how == "arithmetic":
                lines = [f"{self.s} = {self.s} + (1.0 - {view}) * {strong}"]
            else:
                lines = [f"penalty = (1.0 - {view}) * {strong}", f"{self.s} = {self.s} + penalty"]
            self.additive = True
        w.trait(f"{how} {sense}")
        spec = Mask(shape, forms, sense)
        if c.flip(f"{name} optional"):
            w.trait("optional mask")
            w.parameters[mask] = (optional(spec), "None")
            if (
                len(lines) == 1
                and " = " in lines[0]
                and not lines[0].startswith(f"{self.s}[")
                and c.flip(f"{name} inline condition", 4)
            ):
                value = lines[0].split(" = ", 1)[1]
                w.emit(f"{self.s} = {self.s} if {mask} is None else {value}")
            else:
                with w.block(f"if {mask} is not None:"):
                    w.emit(*lines)
            self.drops.clear()
        else:
            w.parameters[mask] = (spec, None)
            w.emit(*lines)
        self.masks.append(mask)

    def _causal(self, name: str) -> None:
        w, c, s = self.w, self.c, self.s
        queries, keys = self.length()
        w.trait("causal")
        offset = ""
        if c.flip(f"{name} diagonal", 10):
            offset = c.pick(f"{name} offset", ["1", "-1", "2"])
            w.trait(f"causal with diagonal {offset}")
        elif self.offset and queries != keys and c.flip(f"{name} shifted"):
            offset = f"{keys} - {queries}"
            w.trait("causal, bottom right")
        lower, upper = (offset, f"{offset} + 1") if offset else ("", "1")
        like = f"device={self.q}.device"
        drops = [
            f"torch.tril(torch.ones({queries}, {keys}, {like}){f', diagonal={lower}' if lower else ''}) == 0",
            f"torch.triu(torch.ones({queries}, {keys}, {like}), diagonal={upper}).bool()",
            f"torch.ones({queries}, {keys}, dtype=torch.bool, {like}).triu({upper})",
            f"~torch.ones({queries}, {keys}, dtype=torch.bool, {like}).tril({lower})",
            f"torch.ones_like({s}).tril({lower}) == 0",
        ]
        if not offset:
            drops += [
                f"torch.arange({queries}, {like})[:, None] < torch.arange({keys}, {like})[None, :]",
                "buffer",
                "buffer",
                "buffer of True",
                "added",
            ]
        drop = c.pick(f"{name} form", drops)
        if drop.startswith("buffer"):
            drop = self._buffer(name, drop, queries, keys)
        if drop == "added":
            value = c.pick(f"{name} added", [f"torch.full(({queries}, {keys}), float('-inf'), {like}).triu(1)",
                                             f"torch.triu(torch.full(({queries}, {keys}), -1e9, {like}), diagonal=1)"])  # fmt: skip
            with self._when(name):
                w.emit(f"{s} = {s} + {value}")
            return
        fill = self._fill(name)
        lines = [f"{s} = {s}.masked_fill({drop}, {fill})"]
        form = c.pick(f"{name} filled", ["masked_fill", "masked_fill_", "named", "where", "added where"])
        if form == "masked_fill_":
            lines = [f"{s}.masked_fill_({drop}, {fill})"]
        elif form == "named":
            lines = [f"hidden = {drop}", f"{s} = {s}.masked_fill(hidden, {fill})"]
        elif form == "where":
            lines = [f"{s} = torch.where({drop}, {fill}, {s})"]
        elif form == "added where":
            zeros = f"torch.zeros({queries}, {keys}, dtype={s}.dtype, {like})"
            lines = [f"bias = {zeros}", f"bias.masked_fill_({drop}, float('-inf'))" if ", :, :" not in drop and "_like" not in drop else f"bias = bias.masked_fill({drop}, float('-inf'))",
                     f"{s} = {s} + bias"]  # fmt: skip
        with self._when(name):
            w.emit(*lines)

    def _when(self, name: str) -> AbstractContextManager[None]:
        """A block under a configuration flag, sometimes."""
        if self.w.in_class and self.c.flip(f"{name} under a flag", 4):
            self.w.trait("flag")
            if "self.causal = True" not in self.w.init:
                self.w.init.append("self.causal = True")
            return self.w.block("if self.causal:")
        return nullcontext()

    def _buffer(self, name: str, kind: str, queries: str, keys: str) -> str:
        """A registered triangle, sliced; the expression that is True where hidden."""
        w, c = self.w, self.c
        if not w.in_class:
            return f"torch.tril(torch.ones({queries}, {keys})) == 0"
        lead = ", ".join("1" for _ in self.lead)
        attribute = c.pick(f"{name} buffer name", ["bias", "tril", "causal_mask"])
        value = (
            f"torch.tril(torch.ones({LONGEST}, {LONGEST}))"
            if kind == "buffer"
            else f"torch.triu(torch.ones({LONGEST}, {LONGEST}), diagonal=1).bool()"
        )
        viewed = c.flip(f"{name} buffer viewed")
        if viewed:
            value += f".view({lead}, {LONGEST}, {LONGEST})"
        if any(f'"{attribute}"' in line for line in w.init):
            return f"torch.tril(torch.ones({queries}, {keys})) == 0"
        w.init.append(f'self.register_buffer("{attribute}", {value})')
        colons = ":, " * len(self.lead) if viewed else ""
        rows = f":{queries}"
        if self.offset and queries != keys:
            rows = c.pick(f"{name} buffer rows", [f"{keys} - {queries} : {keys}", rows])
            w.trait("causal of a cache")
        if c.flip(f"{name} buffer patched", 12):
            w.trait("patched buffer")
            w.methods.append(f"    def patch(self):\n        self.{attribute} = torch.ones_like(self.{attribute})\n")
        sliced = f"self.{attribute}[{colons}{rows}, :{keys}]"
        return f"{sliced} == 0" if kind == "buffer" else sliced

    def _bias(self, name: str) -> None:
        """A learned or computed bias."""
        w, c = self.w, self.c
        queries, keys = self.length()
        forms = ["relative"]
        if w.in_class:
            forms = ["learned", "slopes", "relative"] if self.lead == "bh" else ["learned", "relative"]
        form = c.pick(f"{name} bias", forms)
        w.trait(f"{form} bias")
        distance = f"(torch.arange({keys}, device={self.q}.device)[None, :] - torch.arange({queries}, device={self.q}.device)[:, None])"
        if form == "learned":
            if not any("self.rel" in line for line in w.init):
                heads = f"{HEADS}, " if self.lead == "bh" else ""
                w.init.append(f"self.rel = nn.Parameter(torch.zeros({heads}{LONGEST}, {LONGEST}))")
            value = f"self.rel[{':, ' if self.lead == 'bh' else ''}:{queries}, :{keys}]"
        elif form == "slopes":
            if not any("slopes" in line for line in w.init):
                w.init.append(f'self.register_buffer("slopes", torch.tensor([0.5, 0.25]).view({HEADS}, 1, 1))')
            value = f"self.slopes * {distance}"
        else:
            value = f"{distance}.to({self.q}.dtype) * 0.1"
        w.emit(
            c.pick(
                f"{name} bias added",
                [f"{self.s} = {self.s} + {value}", f"{self.s} += {value}", f"{self.s} = torch.add({self.s}, {value})"],
            )
        )
