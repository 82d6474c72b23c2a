"""A program for lifting: without constants, every dim cut alike by all who index it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from planner.errors import Unsupported
from planner.tracing.cleaning.draft import Draft, Unmatched, cut_alike
from planner.tracing.cleaning.redundant import drop_dead, merge_equal
from planner.tracing.cleaning.views import absorb_views
from planner.tracing.program import Operation, Program, elements

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

    def __post_init__(self) -> None:
        self.value = self.program.value
        self.weights = frozenset(v.name for v in self.program.values if v.role == "parameter")
        """Names of parameters."""

    def size(self, name: str) -> int:
        """Elements of a value."""
        return elements(self.value[name].shape)


def plain(program: Program) -> Plain:
    """``program`` cleaned, without what depends on neither weights nor data.

    Raises ``Unsupported`` where it holds a backward pass, or indexes a dim in ways that do not nest.
    """
    cleaned = program
    for step in PASSES:
        cleaned = step(cleaned)
    parameters = {v.name for v in cleaned.values if v.role == "parameter"}
    if any(t.target in parameters for t in cleaned.ties):
        raise Unsupported(
            f"program {program.name} holds its backward pass, which a plan derives itself: trace the loss alone, "
            "or choose layouts for the whole step with meshwright shard"
        )
    found = _without_constants(cleaned)
    try:
        cut_alike(found.drafts)
    except Unmatched as found_so:
        raise no_graph(str(found_so)) from None
    return found


def _compares_positions(op: Operation) -> bool:
    """With one another; with a number they are compared where nothing is masked too."""
    return op.primitive in COMPARISONS and (op.primitive in TRIANGLES or len(op.inputs) > 1)


def _without_constants(program: Program) -> Plain:
    constant: dict[str, bool] = {v.name: False for v in program.values if v.role == "constant"}
    found = Plain(program, [])
    biases = {v.name: False for v in program.values if v.role == "parameter"}
    """What is made of parameters and constants alone, and whether a mask is in it."""
    for op in program.operations:
        if op.kind != "boundary" and constant.keys() >= set(op.inputs):
            compares = _compares_positions(op) or any(constant[n] for n in op.inputs)
            constant.update(dict.fromkeys(op.outputs, compares))
            continue
        if op.kind == "boundary" and op.inputs and op.inputs[0] in constant and ".slice" in op.name:
            constant.update(dict.fromkeys(op.outputs, constant[op.inputs[0]]))
            continue
        draft = Draft.of(op)
        masked = op.primitive in MASKS and any(constant.get(n) or biases.get(n) for n in draft.inputs)
        if masked:
            found.masked.add(op.name)
        if op.kind != "boundary" and all(n in constant or n in biases for n in op.inputs):
            biases.update(dict.fromkeys(op.outputs, masked or any(biases.get(n) for n in op.inputs)))
        pairs = [(n, r) for n, r in zip(op.inputs, op.reads, strict=True) if n not in constant]
        draft.inputs, draft.reads = [n for n, _ in pairs], [r for _, r in pairs]
        found.drafts.append(draft)
    return found
