"""Guards: the conditions under which the weights of an attention are needed, and the fix that keeps the old lines for those."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from attn_advisor.attention.arguments import sdpa_call
from attn_advisor.attention.branches import Branches, Region, region_of
from attn_advisor.attention.conditions import Facts, Literal, literal
from attn_advisor.attention.draft import negation
from attn_advisor.attention.express import COND, OR, Inexpressible, Text, Writer
from attn_advisor.attention.folded import Dropout, Folded, Item, Problem
from attn_advisor.attention.liveness import CALLS, CHECKS, Liveness, Removal, only_refuses
from attn_advisor.attention.site import Site
from attn_advisor.dataflow.shapes import Shapes
from attn_advisor.dataflow.values import Effect, Frame, Graph, Value

# What a test may be made of: cheap, without effects, and the same a few lines earlier.
_PLAIN = frozenset(
    "const attribute self param compare not and or size shape ndim dtype device add sub mul floordiv mod number tuple list "
    "py_len py_isinstance py_hasattr py_getattr py_min py_max py_bool import name function class".split()
)
_HOLDERS = frozenset("tuple list dict starred".split())
_MOST_GUARDS = 4

Root = tuple[Value, "Effect | None"]


class Needs:
    """Reachability from what a function gives to the outside, with SDPA in place of the product with the value, where some tests are known."""

    def __init__(self, liveness: Liveness, output: Value, wanted: Iterable[Value]) -> None:
        self.liveness, self.output = liveness, output
        self.wanted = {id(v) for v in wanted}

    def live(self, facts: Facts, instead: Iterable[Value], roots: Iterable[Root]) -> set[int]:
        parents: dict[int, Value | None] = {}
        for root, effect in roots:
            self._search(root, effect, facts, instead, parents, None)
        return set(parents)

    def path(self, start: Root, facts: Facts, instead: Iterable[Value]) -> list[Literal] | None:
        """The tests passed on one way from the root to the weights, the nearest to the weights first; None if there is no way."""
        root, effect = start
        parents: dict[int, Value | None] = {}
        at = self._search(root, effect, facts, instead, parents, self.wanted)
        if at is None:
            return None
        found: list[Literal] = []
        below: Value | None = None
        while at is not None:
            if at.op == "phi" and below is not None and below is not at.args[0]:
                found.append(literal(at.args[0], below is at.args[1]))
            found += [literal(*c) for c in reversed(at.conditions)]
            below, at = at, parents[id(at)]
        if effect is not None:
            found += [literal(*c) for c in reversed(effect.conditions)]
        return list(dict.fromkeys(found))

    def _search(
        self,
        root: Value,
        effect: Effect | None,
        facts: Facts,
        instead: Iterable[Value],
        parents: dict[int, Value | None],
        until: set[int] | None,
    ) -> Value | None:
        """Marks all that the root needs, up to the first value of `until`, which is given back."""
        if effect is not None and facts.exclude(effect.conditions):
            return None
        stack: list[tuple[Value, Value | None]] = [(root, None)]
        while stack:
            value, parent = stack.pop()
            if id(value) in parents or facts.exclude(value.conditions):
                continue
            parents[id(value)] = parent
            if until is not None and id(value) in until:
                return value
            stack += [(v, value) for v in self._operands(value, facts, instead)]
        return None

    def _operands(self, value: Value, facts: Facts, instead: Iterable[Value]) -> Iterator[Value]:
        if value is self.output:
            yield from instead
        elif id(value) not in self.liveness.about:
            decided = facts.truth(value.args[0]) if value.op == "phi" else None
            if decided is not None:
                yield value.args[1 if decided else 2]
            else:
                yield from value.args
            if value.op in CALLS:
                yield from (test for test, _ in value.conditions)


class Guard:
    """The search for the guards of one site, and its fix."""

    def __init__(
        self,
        site: Site,
        folded: Folded,
        shapes: Shapes,
        graph: Graph,
        frame: Frame,
        liveness: Liveness,
        about: list[Any],
        made: Any,
    ) -> None:
        """about: sizes of the scores and how to read them off the query; made: the rewrite that is under way, with its escapes."""
        self.site, self.folded, self.shapes, self.graph, self.frame = site, folded, shapes, graph, frame
        self.liveness, self.about, self.made = liveness, about, made
        self.needs = Needs(liveness, site.output, site.chain_values)
        self.facts = Facts(_shared(site))

    def fix(
        self, stmt: ast.stmt, node: ast.expr, used: list[Value], writer: Writer, names: set[str]
    ) -> Branches | None:
        """used: what the call reads; writer: a fresh one. The two branches; None, with a problem added or an escape marked as `always`, where there is no such fix."""
        region = region_of(self.site, self.frame)
        if isinstance(region, Problem):
            self.folded.problems.append(region)
            return None
        guards = self._guards(region, [*used, *(v for a in self.about for v in a.used)])
        if guards is None:
            return None
        facts = self.facts.without(guards)
        quiet = _where(self.folded, facts)
        held = self._held(quiet, writer)
        try:
            call = sdpa_call(self.site, quiet, self.shapes, writer, names)
        except Inexpressible as why:
            self._problem(self.site.output.line, str(why))
            return None
        self.folded.problems += [p for p in quiet.problems if p not in self.folded.problems]
        needed = [*writer.used, *held, *(v for a in self.about for v in a.used)]
        live = self.needs.live(facts, needed, [*self.liveness.roots, *self._checks(region)])
        if any(id(v) in live for v in self.site.chain_values) or self.graph.budget < 0:
            self._problem(self.site.output.line, "the weights are needed in other places too")
            return None
        removal = Removal(self.graph, self.frame, Liveness(self.graph, self.frame).live(), live, stmt)
        branches = Branches(self.frame, region, removal, facts, stmt, node, call, self.about)
        user = self._used_later(region, facts, live) or branches.dangling()
        if user is not None:
            self._problem(user, "needs what the other branch does not compute")
        if any(p.kind in ("refuse", "no fix") for p in self.folded.problems):
            return None
        branches.condition = _either(guards, Writer(self.frame, region.first))
        return branches

    def _problem(self, line: int, text: str) -> None:
        self.folded.problems.append(Problem("no fix", line, text))

    # -- the guards -------------------------------------------------------------------------------------------------------------------------
    def _guards(self, region: Region, used: list[Value]) -> list[Literal] | None:
        """Tests of which one holds wherever the weights are needed; None if they are needed without any."""
        if sum(p.kind == "guard" for p in self.folded.problems) > len(self.folded.guards):
            return None  # the weights are recorded from outside
        writer = Writer(self.frame, region.first)
        found: list[Literal] = []
        for value, condition in self.folded.guards:
            own = literal(*condition) if condition is not None else None
            if own is None or not self._usable(own, writer, self.facts):
                self._problem(
                    value.line, "the condition of the mask on the probabilities cannot be tested before the attention"
                )
                return None
            if own not in found:
                found.append(own)
        while True:
            facts = self.facts.without(found)
            ways = self._ways(facts, used)
            if not ways:
                found = [
                    g
                    for g in found
                    if self.facts.without(x for x in found if x is not g).truth(g.test) is not (not g.way)
                ]
                return sorted(found, key=lambda g: g.key[0] == "given")
            (value, _), first = ways[0]
            options = [x for x in first if self._usable(x, writer, facts)]
            if len(found) == _MOST_GUARDS:
                self._problem(value.line, "the weights are wanted under many conditions")
                return None
            if not options:
                self.made.always = [
                    effect for (_, effect), way in ways if all(facts.truth(x.test) is not None for x in way)
                ]
                if not self.made.always:
                    self._problem(
                        value.line,
                        "the condition under which the weights are wanted cannot be tested before the attention",
                    )
                return None
            found.append(min(options, key=lambda x: len(self._ways(self.facts.without([*found, x]), used))))

    def _ways(self, facts: Facts, used: list[Value]) -> list[tuple[Root, list[Literal]]]:
        """The uses of the weights that the facts leave, each with the tests on one way to it."""
        ways = [(root, self.needs.path(root, facts, used)) for root in self.made.escapes]
        return [(root, way) for root, way in ways if way is not None]

    def _usable(self, own: Literal, writer: Writer, facts: Facts) -> bool:
        """Whether the test is open, and can be made before the attention."""
        if facts.truth(own.test) is not None:
            return False
        stack = [own.test]
        while stack:
            value = stack.pop()
            if writer.name_of(value) is not None:
                continue
            if value.op not in _PLAIN:
                return False
            stack += value.args
        try:
            writer.write(own.test)
        except Inexpressible:
            return False
        return True

    def _held(self, folded: Folded, writer: Writer) -> list[Value]:
        """Values that a variable holds only where their mask takes part, for which the writer learns the name."""
        within: dict[int, list[Item]] = {}
        values: dict[int, Value] = {}
        for item in folded.items:
            for value in _all_below([item.value, *([item.keep] if item.keep is not None else [])]):
                within.setdefault(id(value), []).append(item)
                values[id(value)] = value
        elsewhere = {id(v) for v in _all_below([o.value for o in (self.site.query, self.site.key, self.site.val)])}
        found: list[Value] = []
        for name, bound in writer.env.items():
            if "." in name or bound.op != "phi":
                continue
            for key, items in within.items():
                value = values[key]
                if (
                    key in elsewhere
                    or key in writer.given
                    or writer.name_of(value) is not None
                    or value.op in ("const", "param", "self", "attribute")
                ):
                    continue
                if all(
                    i.conditions and _chosen(bound, Facts(literal(*c) for c in i.conditions)) is value for i in items
                ):
                    writer.given[key] = name
                    found.append(value)
        return found

    # -- what follows the attention -----------------------------------------------------------------------------------------------------------
    def _checks(self, region: Region) -> list[Root]:
        """Checks of the input outside the attention, which stay as they are."""
        found: list[Root] = []
        for effect in self.graph.effects:
            if (effect.kind in CHECKS or effect.kind == "condition" and only_refuses(effect.stmt)) and not region.holds(
                effect.frame, effect.stmt
            ):
                found.append((effect.value, effect))
        return found

    def _used_later(self, region: Region, facts: Facts, live: set[int]) -> int | None:
        """The line of something behind the attention that is computed in both branches from what only the first one has."""
        read_off = {id(a.value) for a in self.about}
        gone = {id(v) for v in self.graph.values if id(v) not in live and region.holds(v.frame, v.stmt)} - read_off
        holders: set[int] = set()
        for user in self.graph.values:
            if id(user) in read_off or region.holds(user.frame, user.stmt) or facts.exclude(user.conditions):
                continue
            if not any(id(a) in gone for a in user.args):
                continue
            if user.op == "phi" and id(user.args[0]) not in gone:
                decided = facts.truth(user.args[0])
                taken = user.args[1:] if decided is None else [user.args[1 if decided else 2]]
                if any(id(a) in gone for a in taken):
                    gone.add(id(user))
                    if any(id(a) in holders for a in taken):
                        holders.add(id(user))
            elif user.op in _HOLDERS:
                gone.add(id(user))
                holders.add(id(user))
            elif user.op in ("part", "getitem", "add") and id(user.args[0]) in holders:
                gone.add(id(user))
                if user.op == "add":
                    holders.add(id(user))
            elif not (user.op == "compare" and user.attrs["how"] in ("is", "is_not")):
                return user.line
        return None


def _shared(site: Site) -> list[Literal]:
    """Tests that have been passed when the attention begins."""
    shared = []
    for ours, theirs in zip(site.product.conditions, site.output.conditions, strict=False):
        if ours[0] is not theirs[0] or ours[1] != theirs[1]:
            break
        shared.append(literal(*ours))
    return shared


def _where(folded: Folded, facts: Facts) -> Folded:
    """What is left of the site where the facts hold: links on excluded branches are gone."""
    factors = {
        id(f): replace(f, conditions=facts.left(f.conditions))
        for f in folded.factors
        if not facts.exclude(f.conditions)
    }

    def item(old: Item) -> Item:
        return replace(
            old,
            conditions=facts.left(old.conditions),
            factors=[factors[id(f)] for f in old.factors if id(f) in factors],
        )

    drop = folded.dropout
    dropout = (
        None
        if drop is None or facts.exclude(drop.conditions)
        else Dropout(drop.value, facts.left(drop.conditions), drop.line)
    )
    items = [item(i) for i in folded.items if not facts.exclude(i.conditions)]
    zeroed = [item(i) for i in folded.zeroed if not facts.exclude(i.conditions)]
    return replace(folded, factors=list(factors.values()), items=items, dropout=dropout, zeroed=zeroed, problems=[])


def _all_below(values: list[Value]) -> Iterator[Value]:
    seen: set[int] = set()
    while values:
        value = values.pop()
        if id(value) not in seen:
            seen.add(id(value))
            yield value
            values += value.args


def _chosen(value: Value, facts: Facts) -> Value | None:
    """What a join holds where the facts hold."""
    while value.op == "phi":
        decided = facts.truth(value.args[0])
        if decided is None:
            return None
        value = value.args[1 if decided else 2]
    return value


def _either(guards: list[Literal], writer: Writer) -> str:
    texts: list[Text] = [writer.write(g.test if g.way else negation(g.test)) for g in guards]
    if len(texts) == 1:
        return texts[0].at(COND)
    return " or ".join(t.at(OR) for t in texts)


__all__ = ["Guard", "Needs"]
