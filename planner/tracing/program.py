"""A traced program as data: arrays with shapes, and operators that say how their loops index them.

An operator iterates over *factors* (loop indices). Each dim of each array that it reads or writes is indexed by
a list of factors, the major one first: a product of matrices is ``reads ((0), (2)), ((2), (1))  writes ((0),
(1))``; a reshape of ``[heads x size]`` is a dim with two factors on one side and two dims on the other. How an
operator may be split over a mesh follows from this alone, whatever framework it came from.

Source: the notation is that of Shardy's op_sharding_rule (openxla/shardy, docs/sharding_representation.md) and
of Einstein sums; a dim of size 1 has no factor.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, Literal

from pydantic import Field, model_validator

from cluster_specs.record import Record

Dims = tuple[tuple[int, ...], ...]
"""Per dim of an array, the factors that index it, major first."""

Role = Literal["parameter", "frozen", "input", "constant", "intermediate"]
"""A ``frozen`` parameter is read as any other, but has no gradient."""

WEIGHTS = ("parameter", "frozen")
"""Roles of what a model has learned."""

SCHEMA: Literal["meshwright/program/1"] = "meshwright/program/1"

Kind = Literal["product", "loop", "lookup", "accumulate", "view", "boundary", "attention"]
"""What an operator is priced as, and what its split factors leave.

``product`` (matrix product, convolution), ``lookup`` (gather) and ``accumulate`` (scatter): a split factor that
the output lacks leaves partial sums. ``loop``: element-wise work with reductions inside. ``view``: another
shape of the same data. ``boundary``: where values enter or leave a scan, free of cost. ``attention``: scores, softmax
and context as one kernel, forward or backward.
"""


class Value(Record):
    """An array of the program."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """As numpy names it: ``float32``, ``bfloat16``, ``int32``."""
    role: Role = "intermediate"
    path: str = ""
    """Inputs: where it is in the arguments, as ``params.layers.0.kernel``."""


class Reduction(Record):
    """A sum or maximum inside an operator, needed whole before the operator goes on (softmax, norms)."""

    dims: tuple[int, ...]
    """Factors of the result."""
    over: tuple[int, ...]
    """Factors that it reduces."""
    dtype: str


class Halo(Record):
    """Elements that neighbours exchange where a factor is split (windows of a convolution)."""

    factor: int
    operand: int
    elements: int
    """Along that dim, both sides together."""


class Member(Record):
    """An operator of the framework, in the factors of the operator that it became part of."""

    name: str
    reads: tuple[Dims, ...]
    writes: tuple[Dims, ...]


class Attention(Record):
    """Which loops of an attention are what; those that are left are batch and heads."""

    queries: tuple[int, ...]
    """Positions of queries, and heads that share keys."""
    keys: tuple[int, ...]
    """Positions of keys."""
    width: tuple[int, ...]
    """What scores sum over."""
    depth: tuple[int, ...]
    """Of values."""
    causal: bool
    """Whether the kernel leaves out what comes after a query."""
    backward: bool
    kernel: Literal["flash", "plain"]
    """Whether scores stay inside the kernel, or are written to memory in between."""


class Operation(Record):
    """One operator, or several that run as one."""

    name: str
    kind: Kind
    primitive: str
    """The framework's name of it; joined by ``+`` where several were merged."""
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    sizes: tuple[int, ...]
    """Of each factor."""
    reads: tuple[Dims, ...]
    """How each input is indexed."""
    writes: tuple[Dims, ...]
    """How each output is indexed."""
    whole: tuple[int, ...] = ()
    """Factors that cannot be split: sorted, scanned or sliced along."""
    reductions: tuple[Reduction, ...] = ()
    halos: tuple[Halo, ...] = ()
    implied: Mapping[int, tuple[int, ...]] = {}
    """Factors of a product that add no multiplications, and which ones stand for them: where a window lies says which
    part of an image it meets."""
    times: int = Field(default=1, ge=1)
    """Runs per call of the program: the length of the scans around it."""
    region: str = ""
    """The scan whose body it is in; empty outside."""
    branch: str = ""
    """The branch of a ``cond``, or the test of a loop, that it is in: it shares no work with what is outside."""
    again: str = ""
    """The call (``jax.checkpoint``) that it runs in for a second time: what comes into it is held back until then."""
    key: str = ""
    """Digest of the framework's parameters: with the inputs it says what is computed."""
    members: tuple[Member, ...] = ()
    addends: tuple[str, ...] = ()
    """Products among the inputs of which only their sum, ``total``, is needed: they may arrive as partial sums."""
    total: str = ""
    kernel: str = ""
    """The kernel that it is to be part of: operators of one run as one (`planner.tracing.cleaning.joining`)."""
    attention: Attention | None = None
    manual: Mapping[str, int] | None = None
    """Where the program fixes layouts itself (``shard_map``): mesh axis -> factor that it splits; no other is split."""

    @property
    def body(self) -> tuple[str, str, str]:
        """What it runs in: it shares neither work nor copies with what runs in another."""
        return self.region, self.branch, self.again

    def image_length(self, halo: Halo) -> int:
        """Elements along the dim of an image whose neighbours exchange borders.

        What lies behind a view may have that dim as a part of another.
        """
        reads = self.members[0].reads if self.members else self.reads
        dim = next(d for d in reads[halo.operand] if halo.factor in d)
        return elements(self.sizes[f] for f in dim)

    @property
    def takes_rows_for(self) -> str:
        """The loop whose passes each get a row of what it reads; empty for other operators."""
        loop, takes, _ = self.name.rpartition("/slice.")
        return loop if takes and self.kind == "boundary" and self.inputs else ""


class Tie(Record):
    """One value is to arrive as another lies: a new weight where the old one was, a carry where it came in."""

    source: str
    target: str
    times: int = 1


class Program(Record):
    """A traced function or module: its operators, in an order in which they can run.

    The body of a scan stands among them once, with how often it runs.
    """

    schema_version: Literal["meshwright/program/1"] = Field(default=SCHEMA, alias="schema")
    name: str
    values: tuple[Value, ...]
    operations: tuple[Operation, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    results: tuple[str | None, ...] = ()
    """Every array that the function returns, in order; None for a number that is written in it."""
    ties: tuple[Tie, ...] = ()
    applied: tuple[str, ...] = ()
    """Clean-up passes, in order, with what each did."""
    replicated: tuple[str, ...] = ()
    """Operators without a rule, taken to be computed alike everywhere."""
    rules: Mapping[str, str] = {}
    """Of kernels that nothing can look into: name -> how its loops index its arrays, as the user says."""
    sums_at_once: bool = False
    """Whether partial sums along several loops that are wanted everywhere are added up at once, as ``DTensor`` adds up
    those of one layout; XLA's partitioner adds them up loop after loop."""
    source: str = ""
    """``FILE.py:NAME`` of the function that it was traced from, where the command line traced it."""
    traced_with: Mapping[str, str] = {}
    """Options of the command line that a module was traced with: ``gradient``, ``optimizer``, ``trips``."""

    def to_json(self) -> str:
        """The program as a file has it."""
        return self.model_dump_json(by_alias=True)

    @cached_property
    def value(self) -> Mapping[str, Value]:
        """Values by name."""
        return {v.name: v for v in self.values}

    @cached_property
    def producer(self) -> Mapping[str, int]:
        """Position of the operator that makes each value; inputs and constants have none."""
        return {name: i for i, op in enumerate(self.operations) for name in op.outputs}

    @cached_property
    def readers(self) -> Mapping[str, tuple[int, ...]]:
        """Positions of the operators that read each value, each once."""
        found: dict[str, list[int]] = {}
        for i, op in enumerate(self.operations):
            for name in dict.fromkeys(op.inputs):
                found.setdefault(name, []).append(i)
        return {name: tuple(at) for name, at in found.items()}

    @cached_property
    def returned(self) -> Mapping[str, tuple[str, ...]]:
        """Inputs -> what is to lie as they do where the program ends."""
        found: dict[str, tuple[str, ...]] = {}
        for tie in (tie for tie in self.ties if tie.target not in self.producer):
            found[tie.target] = (*found.get(tie.target, ()), tie.source)
        return found

    @cached_property
    def kept(self) -> frozenset[str]:
        """Inputs that a call hands on to the next one: weights and optimizer states."""
        tied = {t.target for t in self.ties}
        return frozenset(v.name for v in self.values if v.role in (*WEIGHTS, "constant") or v.name in tied)

    def with_parts(self, **parts: Any) -> "Program":
        """The same with other fields, and nothing that was worked out from the old ones."""
        fields = {name: getattr(self, name) for name in Program.model_fields if name != "schema_version"}
        return Program.model_construct(**fields | parts)

    @model_validator(mode="after")
    def _consistent(self) -> "Program":
        return self.checked()

    def checked(self) -> "Program":
        """Itself; raises ``ValueError`` where an operator reads what there is not, or loops make another shape."""
        have = {v.name for v in self.values if v.role != "intermediate"}
        shapes = {v.name: v.shape for v in self.values}
        for op in self.operations:
            for name, dims in zip((*op.inputs, *op.outputs), (*op.reads, *op.writes), strict=True):
                if name not in shapes:
                    raise ValueError(f"operator {op.name}: no value named {name!r}")
                _check_dims(op, name, shapes[name], dims)
            missing = [name for name in op.inputs if name not in have]
            if missing:
                raise ValueError(f"operator {op.name}: {missing} used before it is made")
            have |= set(op.outputs)
        ends = (*self.inputs, *self.outputs, *(n for t in self.ties for n in (t.source, t.target)))
        if lost := [name for name in ends if name not in have]:
            raise ValueError(f"program {self.name}: {lost} are not made by any operator")
        return self


def _check_dims(op: Operation, name: str, shape: tuple[int, ...], dims: Dims) -> None:
    if len(dims) != len(shape):
        raise ValueError(f"operator {op.name}: {name} has {len(shape)} dims, {len(dims)} are indexed")
    if bad := [f for factors in dims for f in factors if not 0 <= f < len(op.sizes)]:
        raise ValueError(f"operator {op.name}: {name} is indexed by factors {bad} that have no size")
    found = tuple(elements(op.sizes[f] for f in factors) for factors in dims)
    if found != shape:
        raise ValueError(f"operator {op.name}: the loops over {name} make {found}, its shape is {shape}")


def elements(sizes: Iterable[int]) -> int:
    """Their product."""
    total = 1
    for size in sizes:
        total *= size
    return total
