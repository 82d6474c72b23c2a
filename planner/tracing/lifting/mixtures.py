"""Mixtures of experts: what routes tokens, however it is written, as one dispatch and one combine.

Where a router (a product with a weight that makes a number for each token and expert) decides what experts read and
what their results count, all that decides becomes two operators: ``dispatch`` before the experts and ``combine`` after
them. Inside, every array stands for every token at every expert, of which it holds a share: what an expert takes.
Products with one-hot arrays, sorts with ``ragged_dot``, and experts that see every token differ in that share.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from planner.tracing.cleaning.draft import Draft, cut_alike, renamed
from planner.tracing.lifting.experts import Experts, Rewriting, experts_of, flat
from planner.tracing.lifting.plain import Plain, no_graph
from planner.tracing.program import Dims, elements

ROUTING: Sequence[Literal["dispatch", "combine"]] = ("dispatch", "combine")
"""Primitives of the operators that stand for routing."""

CHOOSES = frozenset({"approx_top_k", "argmax", "sort", "top_k", "topk"})
"""Primitives by which a router chooses."""

CASTS = frozenset({"convert_element_type", "_to_copy"})


def write_mixtures(found: Plain) -> None:
    """Replace all routing in ``found``; raises ``Unsupported`` where a part of it is read elsewhere."""
    for experts in experts_of(found):
        mixture = _Flow(found).mixture(experts)
        if mixture is not None:
            _drop_measures(found, mixture)
            _Writer(found, mixture).write()


@dataclass
class Mixture:
    """Which operators and arrays are what."""

    tokens: str
    """What router and experts read."""
    router: Sequence[Draft]
    """The product, and what adds a bias to it."""
    experts: Experts
    deciding: Sequence[Draft]
    """What chooses, sends and brings back; last, what makes of the results one row for each token."""

    @property
    def logits(self) -> str:
        """What the router makes."""
        return self.router[-1].outputs[0]


class _Flow:
    """Who makes and who reads what."""

    def __init__(self, found: Plain) -> None:
        self.found = found
        self.maker = {n: d for d in found.drafts for n in d.outputs}

    def mixture(self, experts: Experts) -> Mixture | None:
        """The mixture of these experts; None where nothing chooses among them.

        Of routers, the last that can be theirs: all that they read may be made of what the layer before routed.
        """
        for product in reversed(self.found.drafts):
            if not self._is_router(product, experts):
                continue
            router = [product, *self._biases(product)]
            tokens = self._tokens(router, experts)
            result = None if tokens is None else self._result(tokens, router[-1].outputs, experts)
            if tokens is None or result is None:
                continue
            own = {id(d) for d in experts.drafts}
            ends = {tokens, *router[-1].outputs}
            drafts, _ = self._before([*result.outputs, *experts.sources], ends)
            deciding = [d for d in drafts if id(d) not in own]
            if any(CHOOSES.intersection(d.primitives) for d in deciding):
                return Mixture(tokens, router, experts, deciding)
        return None

    def _before(self, names: Iterable[str], ends: Collection[str]) -> tuple[list[Draft], set[str]]:
        """What makes ``names`` of ``ends`` and weights, in order, and what else they are made of."""
        todo, seen, drafts, others = list(names), set(ends), set[int](), set[str]()
        while todo:
            name = todo.pop()
            if name in seen or name in self.found.prepared:
                continue
            seen.add(name)
            draft = self.maker.get(name)
            if draft is None or draft.kind == "boundary":
                others.add(name)
            else:
                drafts.add(id(draft))
                todo += draft.inputs
        return [d for d in self.found.drafts if id(d) in drafts], others

    def _is_router(self, draft: Draft, experts: Experts) -> bool:
        """A product with a weight that makes a number for each expert."""
        weights = [i for i, n in enumerate(draft.inputs[:2]) if n in self.found.prepared]
        if draft.kind != "product" or len(weights) != 1 or id(draft) in experts.loops:
            return False
        columns = set(flat(draft.reads[weights[0]])) & set(flat(draft.writes[0]))
        same = draft.region == experts.drafts[0].region
        return same and elements(draft.sizes[f] for f in columns) == experts.count

    def _biases(self, product: Draft) -> list[Draft]:
        """Additions of a parameter to what a product makes."""
        for draft in self.found.drafts:
            if draft.inputs[:1] == product.outputs and self.found.prepared.issuperset(draft.inputs[1:]):
                return [draft] if len(draft.inputs) > 1 else []
        return []

    def _tokens(self, router: Sequence[Draft], experts: Experts) -> str | None:
        """What the router reads, or that before it was cast, if experts read nothing else but by the router."""
        (name,) = (n for n in router[0].inputs[:2] if n not in self.found.prepared)
        while self._before(experts.sources, {name, router[-1].outputs[0]})[1]:
            draft = self.maker.get(name)
            if draft is None or not CASTS.issuperset(draft.primitives):
                return None
            name = draft.inputs[0]
        return name

    def _result(self, tokens: str, logits: Sequence[str], experts: Experts) -> Draft | None:
        """What makes a row for each token, of results of experts and what the router decided alone.

        The first to do so, or the last that weighs them by what was decided.
        """
        decided, made, size = set(logits), set(experts.values), self.found.size(tokens)
        found = None
        for draft in self.found.drafts:
            if draft.kind == "boundary" or id(draft) in experts.loops:
                continue
            others = set(draft.inputs) - made
            if len(others) == len(set(draft.inputs)):
                decided.update(draft.outputs if decided & others else ())
            elif others <= decided:
                made.update(draft.outputs)
                if self.found.size(draft.outputs[0]) == size and (found is None or others):
                    found = draft
        return found


def _drop_measures(found: Plain, mixture: Mixture) -> None:
    """What only measures how tokens were routed (an auxiliary loss) is left out, as its share of the loss is."""
    kept = {id(d) for d in (*mixture.router, *mixture.experts.drafts, *mixture.deciding)}
    measures = {
        n for d in (*mixture.router, *mixture.experts.drafts, *mixture.deciding[:-1]) for n in d.outputs
    }
    sums = [d for d in found.drafts if d.kind == "boundary" and not d.inputs]
    measures |= {n for d in sums for n in d.outputs if found.size(n) == 1}
    rest: list[Draft] = []
    for draft in found.drafts:
        others = [i for i, n in enumerate(draft.inputs) if n not in measures]
        if id(draft) in kept or len(others) == len(draft.inputs):
            rest.append(draft)
        elif not others:
            measures.update(draft.outputs)
        elif found.size(draft.outputs[0]) == 1:
            draft.inputs, draft.reads = [draft.inputs[i] for i in others], [draft.reads[i] for i in others]
            rest.append(draft)
        else:
            raise no_graph(
                f"operator {draft.name} reads how tokens are routed, and is no part of the routing"
            )
    found.drafts[:] = rest


class _Writer:
    """A mixture as router, dispatch, experts and combine."""

    def __init__(self, found: Plain, mixture: Mixture) -> None:
        self.found, self.mixture = found, mixture
        router = mixture.router[0]
        place = next(i for i, n in enumerate(router.inputs) if n not in found.prepared)
        dims = router.reads[place]
        self.is_token = [bool(dim) and set(dim) <= set(flat(router.writes[0])) for dim in dims]
        sizes = [*zip(found.value[mixture.tokens].shape, self.is_token, strict=True)]
        self.tokens = [n for n, is_token in sizes if is_token]
        self.width = [n for n, is_token in sizes if n > 1 and not is_token]

    def write(self) -> None:
        """Replace it."""
        found, mixture, experts = self.found, self.mixture, self.mixture.experts
        sources, results = experts.sources, self._results()
        if len(sources) != 1 or len(results) != 1:
            raise no_graph(
                f"experts read {len(sources)} arrays and make {len(results)}, not one of tokens each"
            )
        cut_alike(experts.drafts)
        sent = sources[0]
        if sent == mixture.tokens:  # every expert sees every token
            sent = found.copied(sent, experts.count)
            for draft in experts.drafts:
                draft.inputs = [sent if n == mixture.tokens else n for n in draft.inputs]
        Rewriting(experts, self.tokens).run()
        for name in (sent, *experts.values):
            found.shares[name] = self._share(name)
        for draft in mixture.router:
            self._merge_tokens(draft)
        dispatch = self._routing("dispatch", mixture.tokens, sent)
        combine = self._routing("combine", results[0], mixture.deciding[-1].outputs[0])
        gone = {id(d) for d in (*mixture.deciding, *experts.drafts)}
        at = found.drafts.index(mixture.deciding[-1])
        before, after = found.drafts[:at], found.drafts[at:]
        new = [dispatch, *experts.drafts, combine]
        found.drafts[:] = (
            [d for d in before if id(d) not in gone] + new + [d for d in after if id(d) not in gone]
        )

    def _results(self) -> list[str]:
        """What is read of what experts make."""
        read = {n for d in self.mixture.deciding for n in d.inputs}
        return [n for n in self.mixture.experts.values if n in read]

    def _share(self, name: str) -> float:
        """Of every token at every expert."""
        draft, dims = next(
            (d, dims)
            for d in self.mixture.experts.drafts
            for n, dims in (*zip(d.inputs, d.reads, strict=True), *zip(d.outputs, d.writes, strict=True))
            if n == name
        )
        return self.found.size(name) / elements(draft.sizes[f] for f in flat(dims))

    def _merge_tokens(self, draft: Draft) -> None:
        """One loop for each dim of the tokens, however the router's result folds them."""
        weight = next(i for i, n in enumerate(draft.inputs) if n in self.found.prepared)
        first = len(self.tokens)
        to = {f: (first + i,) for i, f in enumerate(sorted({*flat(draft.reads[weight])}))}
        draft.sizes = [*self.tokens, *(draft.sizes[f] for f in to)]
        columns = [to[f][0] for f in flat(draft.writes[0]) if f in to]
        made = _laid(self._shape(draft.outputs[0]), [*range(first), *columns], draft.sizes)
        read = made
        if draft is self.mixture.router[0]:
            tokens = iter(range(first))
            dims = zip(draft.reads[1 - weight], self.is_token, strict=True)
            read = tuple((next(tokens),) if t else tuple(to[f][0] for f in dim) for dim, t in dims)
        draft.reads[weight] = renamed(draft.reads[weight], to)
        draft.reads[1 - weight], draft.writes = read, [made]

    def _routing(self, what: str, source: str, target: str) -> Draft:
        """Dispatch or combine: it reads what the router makes, too."""
        tokens, logits = list(range(len(self.tokens))), self.mixture.logits
        sizes = [*self.tokens, self.mixture.experts.count, *self.width]
        group, width = len(tokens), list(range(len(tokens) + 1, len(sizes)))
        routed = tuple((f,) for f in (*tokens, group, *width))
        outer = target if what == "combine" else source
        plain = _laid(self._shape(outer), [*tokens, *width], sizes)
        numbers = _laid(self._shape(logits), [*tokens, group], sizes)
        last = self.mixture.deciding[-1]
        return replace(
            last,
            name=f"{last.name} {what}",
            kind="product",
            primitives=[what],
            inputs=[source, logits],
            outputs=[target],
            sizes=sizes,
            reads=[routed if what == "combine" else plain, numbers],
            writes=[plain if what == "combine" else routed],
            whole=set(),
            reductions=[],
            members=[],
        )

    def _shape(self, name: str) -> Sequence[int]:
        return self.found.value[name].shape


def _laid(shape: Sequence[int], factors: Sequence[int], sizes: Sequence[int]) -> Dims:
    """Dims of an array over these loops, in order."""
    rest, dims = list(factors), list[tuple[int, ...]]()
    for length in shape:
        dim: tuple[int, ...] = ()
        while rest and elements(sizes[f] for f in dim) < length:
            dim = (*dim, rest.pop(0))
        dims.append(dim)
    if tuple(elements(sizes[f] for f in dim) for dim in dims) != tuple(shape) or rest:
        raise no_graph(f"an array of {list(shape)} around experts is not tokens by what they are wide")
    return tuple(dims)
