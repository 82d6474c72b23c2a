"""A program for lifting: without constants, every dim cut alike by all who index it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from planner.errors import Unsupported
from planner.tracing.cleaning.draft import Draft, Unmatched, cut_alike, renamed
from planner.tracing.cleaning.redundant import drop_dead, merge_equal
from planner.tracing.cleaning.views import absorb_views
from planner.tracing.lifting.batches import batched, is_key, is_of_one
from planner.tracing.lifting.grouped import by_group
from planner.tracing.lifting.unmapped import unmapped
from planner.tracing.program import WEIGHTS, Operation, Program, elements

PASSES: Sequence[Callable[[Program], Program]] = (drop_dead, merge_equal, absorb_views)

TRIANGLES = frozenset({"tril", "triu"})

COMPARISONS = frozenset({"ge", "gt", "le", "lt", *TRIANGLES})
"""Of positions: what a causal mask is made of."""

MASKS = frozenset({"attention", "select_n", "where", "masked_fill", "add", "mul"})


def no_graph(what: str) -> Unsupported:
    """The error for a program that blocks of operators cannot say."""
    return Unsupported(
        f"{what}: a graph of blocks cannot say that; meshwright shard takes the program as it is"
    )


@dataclass
class Plain:
    """Operators that depend on weights or data, and where constants were."""

    program: Program
    drafts: list[Draft]
    masked: set[str] = field(default_factory=set)
    """Operators that read a constant made by comparing positions."""
    prepared: set[str] = field(default_factory=set)
    """What is made of parameters and constants alone."""
    factors: set[str] = field(default_factory=set)
    """Constants that data or activations are multiplied by (filters, bases): like data, they have no gradient."""
    shares: dict[str, float] = field(default_factory=dict)
    """Value at experts -> how much it has of every token at every expert (`planner.tracing.lifting.mixtures`)."""

    recurrences: dict[str, Any] = field(default_factory=dict)
    """Operator that stands for a loop over time -> its `planner.tracing.lifting.recurrences.Recurrence`."""

    def __post_init__(self) -> None:
        self.value = dict(self.program.value)
        self.weights = frozenset(v.name for v in self.program.values if v.role in WEIGHTS)
        """Names of parameters."""

    @property
    def data(self) -> list[str]:
        """What a call is given, in order: neither parameters nor buffers."""
        return [n for n in self.program.inputs if self.value[n].role == "input"]

    def size(self, name: str) -> int:
        """Elements of a value."""
        return elements(self.value[name].shape)

    def copied(self, name: str, times: int) -> str:
        """A new value: so many copies of another."""
        copies = self.value[name].model_copy(update={"name": f"{name} copied"})
        self.value[copies.name] = copies.model_copy(update={"shape": (times, *copies.shape)})
        return copies.name

    def cut_alike(self) -> None:
        """Cut loops until every dim has the same ones wherever it is indexed.

        Raises ``Unsupported`` where there are none that nest.
        """
        try:
            cut_alike(self.drafts)
        except Unmatched as found_so:
            raise no_graph(str(found_so)) from None


def plain(program: Program) -> Plain:
    """``program`` cleaned, without what depends on neither weights nor data.

    Raises ``Unsupported`` where it holds a backward pass.
    """
    cleaned = by_group(unmapped(program))
    for step in PASSES:
        cleaned = step(cleaned)
    parameters = {v.name for v in cleaned.values if v.role == "parameter"}
    if any(t.target in parameters for t in cleaned.ties):
        raise Unsupported(
            f"program {program.name} holds its backward pass, which a plan derives itself: trace the loss alone, "
            "or choose layouts for the whole step with meshwright shard"
        )
    found = _without_constants(cleaned)
    return _without_constants(batched(cleaned)) if is_of_one(cleaned, found.data) else found


def _compares_positions(op: Operation) -> bool:
    """With one another; with a number they are compared where nothing is masked too."""
    return op.primitive in COMPARISONS and (op.primitive in TRIANGLES or len(op.inputs) > 1)


def _without_constants(program: Program) -> Plain:
    constant = {v.name: False for v in program.values if v.role == "constant" or is_key(v)}
    found = Plain(program, [])
    biases = {v.name: False for v in program.values if v.role in WEIGHTS}
    """What is made of parameters and constants alone, and whether a mask is in it."""
    for op in program.operations:
        if op.kind != "boundary" and constant.keys() >= set(op.inputs):
            compares = _compares_positions(op) or any(constant[n] for n in op.inputs)
            constant.update(dict.fromkeys(op.outputs, compares))
            continue
        rows = op.kind == "boundary" and ("/slice." in op.name or "/stack." in op.name)
        if rows and constant.keys() >= set(op.inputs):
            constant.update(dict.fromkeys(op.outputs, any(constant[n] for n in op.inputs)))
            continue
        draft = Draft.of(op)
        masked = op.primitive in MASKS and any(constant.get(n) or biases.get(n) for n in draft.inputs)
        if masked:
            found.masked.add(op.name)
        if op.kind != "boundary" and all(n in constant or n in biases for n in op.inputs):
            biases.update(dict.fromkeys(op.outputs, masked or any(biases.get(n) for n in op.inputs)))
        pairs = [
            (n, r)
            for n, r in zip(op.inputs, op.reads, strict=True)
            if n not in constant or draft.kind == "product"
        ]
        found.factors.update(n for n, _ in pairs if n in constant)
        draft.inputs, draft.reads = [n for n, _ in pairs], [r for _, r in pairs]
        found.drafts.append(draft)
    found.prepared = _prepared(found)
    return found


def _prepared(found: Plain) -> set[str]:
    """Parameters, rows of them, and what loops make of them."""
    prepared = set(found.weights)
    for draft in found.drafts:
        rows = draft.kind == "boundary" and "/slice." in draft.name
        if (
            (rows or draft.kind in ("loop", "view", "lookup"))
            and draft.inputs
            and prepared.issuperset(draft.inputs)
        ):
            prepared.update(draft.outputs)
    return prepared


def copy_first_states(found: Plain) -> None:
    """Let loops begin with copies of data: what a layer changes is not what the program was given."""
    read = {n for d in found.drafts if d.kind != "boundary" for n in d.inputs}
    states = [
        d for d in found.drafts if d.kind == "boundary" and "/carry." in d.name and d.outputs[0] in read
    ]
    for carry in [d for d in states if set(d.inputs) & set(found.data)]:
        data, name = carry.inputs[0], f"{carry.name} begins"
        dims = carry.reads[0]
        flat = [f for dim in dims for f in dim]
        at = {f: (i,) for i, f in enumerate(flat)}
        found.value[name] = found.value[data].model_copy(
            update={"name": name, "role": "intermediate", "path": ""}
        )
        copy = Draft(
            name=name, kind="loop", primitives=["copy"], inputs=[data], outputs=[name],
            sizes=[carry.sizes[f] for f in flat], reads=[renamed(dims, at)], writes=[renamed(dims, at)],
            whole=set(), reductions=[], halos=[], times=carry.times, region=carry.region, key="",
        )  # fmt: skip
        carry.inputs[0] = name
        found.drafts.insert(found.drafts.index(carry), copy)
