"""Seconds and bytes of one operator of a program under one option, and of one move between layouts.

The physics is asked of ``cost_models``, as in `planner.sharding.pricing`; here loops are turned into the numbers
that it takes. An operator computes its own part and exchanges its sums; nothing overlaps.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from cost_models.attention import AttentionShape
from cost_models.collectives import COLLECTIVES, wire_bytes
from cost_models.compute import attention_seconds, matmul_seconds, memory_seconds, stream_seconds
from planner.errors import Unsupported
from planner.intra_op.problem import Array
from planner.sharding.resharding import Move
from planner.tracing.layouts import PARTS, WHOLE, Codes, Layout, NamedMesh, moves, share, step_of
from planner.tracing.options import Option, layout_of, total_layout
from planner.tracing.program import Attention, Dims, Operation, Program, Value, elements

ELEMENT_BYTES: Mapping[str, float] = MappingProxyType(
    {
        "bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8,
        "bfloat16": 2, "float16": 2, "float32": 4, "float64": 8, "complex64": 8, "complex128": 16,
        "float8_e4m3fn": 1, "float8_e5m2": 1,
    }
)  # fmt: skip
"""Bytes of a stored element [B]; random keys (``key<...>``) are two words."""

KEY_BYTES = 8.0

RATES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "float32": ("tf32", "fp32", "bf16"),
        "bfloat16": ("bf16",),
        "float16": ("fp16", "bf16"),
        "float8_e4m3fn": ("fp8", "bf16"),
        "float8_e5m2": ("fp8", "bf16"),
        "int8": ("int8", "bf16"),
        "float64": ("fp64", "fp32", "bf16"),
    }
)
"""Type of a product's operands -> rates at which it may run, the first that the device has."""


class Exchange(NamedTuple):
    """One priced collective."""

    collective: str
    axes: tuple[str, ...]
    full_bytes: float
    """As `planner.sharding.resharding.Move` [B]."""
    sent_bytes: float
    """By one device [B]."""
    seconds: float
    times: int
    """How often per call of the program; the other fields are of one."""


class Cost(NamedTuple):
    """One operator, once per call for each of its ``times``."""

    compute: float
    """[s], over all times."""
    exchanges: tuple[Exchange, ...] = ()

    @property
    def seconds(self) -> float:
        """Everything, over all times [s]."""
        return self.compute + sum(e.seconds * e.times for e in self.exchanges)


def element_bytes(dtype: str) -> float:
    """Bytes of one element [B]; raises ``Unsupported`` for a type that is not known."""
    if dtype.startswith("key<"):
        return KEY_BYTES
    if dtype not in ELEMENT_BYTES:
        raise Unsupported(f"arrays of type {dtype} are not known; known: {', '.join(ELEMENT_BYTES)}")
    return ELEMENT_BYTES[dtype]


@dataclass(frozen=True)
class ProgramPricer:
    """Prices the operators of ``program`` on ``mesh``."""

    program: Program
    mesh: NamedMesh
    _moves: dict[tuple[Layout, Layout], tuple[Move, ...]] = field(default_factory=dict, repr=False)
    """Of an array of one byte."""
    _exchanges: dict[tuple[Move, int], Exchange] = field(default_factory=dict, repr=False)
    _sums: dict[tuple[object, ...], tuple[Exchange, ...]] = field(default_factory=dict, repr=False)
    _products: dict[tuple[object, ...], float] = field(default_factory=dict, repr=False)

    def full_bytes(self, name: str) -> float:
        """Bytes of a whole array [B]."""
        return array_bytes(self.program.value[name])

    def operation(self, op: Operation, option: Option) -> Cost:
        """One operator: its arithmetic or its traffic, its sums, its borders."""
        alone = self.unsummed(op, option)
        return alone._replace(exchanges=(*self.sums(op, option), *alone.exchanges))

    def unsummed(self, op: Operation, option: Option) -> Cost:
        """What does not depend on where sums are left: all options of one split have it in common."""
        exchanges = (*self._reductions(op, option), *self._halos(op, option))
        return Cost(_PRICES[op.kind](self, op, option) * op.times, exchanges)

    def arrival(self, name: str, layout: Layout) -> float:
        """Data that is new in every call is written to memory once [s]; what stays there is free."""
        value = self.program.value[name]
        if value.role != "input" or name in self.program.kept:
            return 0.0
        return memory_seconds(self.full_bytes(name) * share(self.mesh, layout), self.mesh.cluster.device)

    def move(self, name: str, source: Layout, target: Layout, times: int) -> tuple[Exchange, ...]:
        """Bring a value from one layout to another."""
        if source == target:
            return ()
        found = self._moves.get((source, target))
        if found is None:
            found = self._moves[source, target] = moves(self.mesh, 1.0, source, target)
        size = self.full_bytes(name)
        return tuple(self._exchange(Move(m.collective, m.axes, m.full_bytes * size), times) for m in found)

    def step_seconds(self, name: str, codes: Codes, times: int) -> Array:
        """Of moves of an array by the codes of their steps (`planner.tracing.layouts.steps`), over all times [s]."""
        size = self.full_bytes(name)
        seconds = np.zeros(1 + codes.max(initial=0))
        for code in np.flatnonzero(np.bincount(codes.ravel())):
            if code:
                seconds[code] = self._exchange(step_of(self.mesh, size, int(code)), times).seconds * times
        return np.asarray(seconds[codes])

    def _exchange(self, move: Move, times: int) -> Exchange:
        key = (move, times)
        if key not in self._exchanges:
            axes = tuple(int(a) for a in move.axes)
            group, names = self.mesh.group(axes), tuple(self.mesh.axes)
            self._exchanges[key] = Exchange(
                move.collective,
                tuple(names[a] for a in axes),
                move.full_bytes,
                wire_bytes(move.collective, move.full_bytes, group.size),
                COLLECTIVES[move.collective](move.full_bytes, group).seconds,
                times,
            )
        return self._exchanges[key]

    def _over(self, collective: str, axes: Sequence[int], full_bytes: float, times: int) -> Exchange:
        return self._exchange(Move(collective, tuple(str(a) for a in axes), full_bytes), times)

    def sums(self, op: Operation, option: Option) -> tuple[Exchange, ...]:
        """Partial sums of the first output: scattered where the option says so, else reduced to all.

        Axes that split one factor and end in one place make one collective, as XLA's partitioner has it.
        """
        if op.addends:
            return self._totalled(op, option)
        summed = option.summed(op, 0) if op.outputs else ()
        if not summed:
            return ()
        local = self.full_bytes(op.outputs[0]) * share(self.mesh, layout_of(op.writes[0], option.split))
        ends = tuple((option.writes[0][axis], option.split[axis], axis) for axis in summed)
        return self._summed(local, ends, op.times)

    def _totalled(self, op: Operation, option: Option) -> tuple[Exchange, ...]:
        """The total of addends in parts: scattered along the dim that the kernel splits, or reduced to all."""
        if not option.parts:
            return ()
        wanted = self._after(op, option)
        local = self.full_bytes(op.addends[0]) * share(self.mesh, total_layout(op, option))
        return self._summed(local, tuple((wanted[a], WHOLE, a) for a in option.parts), op.times)

    def _summed(
        self, local: float, ends: tuple[tuple[int, int, int], ...], times: int
    ) -> tuple[Exchange, ...]:
        key = local, ends, times
        if key not in self._sums:
            self._sums[key] = tuple(self._reduced(*key))
        return self._sums[key]

    def _reduced(self, local: float, ends: Sequence[tuple[int, int, int]], times: int) -> Iterable[Exchange]:
        """Sums of arrays of ``local`` bytes, by the dim where each ends, its factor and its axis."""
        together: dict[tuple[int, int], list[int]] = {}
        for dim, factor, axis in ends:
            together.setdefault((dim, factor), []).append(axis)
        together = {end: axes for end, axes in together.items() if end[0] != PARTS}
        for (dim, _), axes in sorted(together.items(), reverse=True):  # scattered ones first: they leave less
            yield self._over("all_reduce" if dim == WHOLE else "reduce_scatter", axes, local, times)
            local /= 1 if dim == WHOLE else self.mesh.degree(axes)

    def _reductions(self, op: Operation, option: Option) -> Iterable[Exchange]:
        for reduction in op.reductions:
            if axes := [a for a, f in enumerate(option.split) if f in reduction.over]:
                size = elements(self._local_size(op, option, f) for f in reduction.dims)
                yield self._over("all_reduce", axes, size * element_bytes(reduction.dtype), op.times)

    def _halos(self, op: Operation, option: Option) -> Iterable[Exchange]:
        """Borders of a split image, to both neighbours together; corners are left out."""
        for halo in op.halos:
            if axes := [a for a, f in enumerate(option.split) if f == halo.factor]:
                local = self.full_bytes(op.inputs[halo.operand]) * share(
                    self.mesh, option.reads[halo.operand]
                )
                dim = next(i for i, d in enumerate(op.reads[halo.operand]) if halo.factor in d)
                extent = self.program.value[op.inputs[halo.operand]].shape[dim] / self.mesh.degree(axes)
                yield self._over("send", axes, local / extent * halo.elements, op.times)

    def _local_size(self, op: Operation, option: Option, factor: int) -> int:
        return op.sizes[factor] // self.mesh.degree([a for a, f in enumerate(option.split) if f == factor])

    def _local_bytes(self, names: Sequence[str], dims: Sequence[Dims], option: Option) -> float:
        layouts = (layout_of(d, option.split) for d in dims)
        return sum(
            self.full_bytes(n) * share(self.mesh, layout) for n, layout in zip(names, layouts, strict=True)
        )

    def _product(self, op: Operation, option: Option) -> float:
        """Rows, columns, depth and batch are the loops that left, right and result have in common."""
        left, right, result = (_indexed(d) for d in _operands(op))

        def extent(factors: Iterable[int]) -> int:
            return elements(self._local_size(op, option, f) for f in factors)

        depth = extent((right if len(op.reads) > 1 else left) - result)
        columns, batch = extent(result & right - left), extent(result & left & right)
        rows = extent(result - right)
        device = self.mesh.cluster.device
        dtype = self.program.value[(*op.inputs, *op.outputs)[0]].dtype
        rate = self._rate(dtype)
        key = rows, columns, depth, batch, rate, dtype
        if key not in self._products:
            time = matmul_seconds(rows, columns, depth, device, rate, batch, element_bytes(dtype))
            self._products[key] = time.seconds
        return self._products[key]

    def _rate(self, dtype: str) -> str:
        known = self.mesh.cluster.device.peak_flops_per_second
        return next((rate for rate in RATES.get(dtype, ("bf16",)) if rate in known), "bf16")

    def _attention(self, op: Operation, option: Option) -> float:
        """One attention kernel; a backward one that finds no scores makes them again, as a forward one does.

        Heads that share keys count as heads of a batch of key heads.
        """
        how = op.attention
        assert how is not None

        def extent(factors: Iterable[int]) -> int:
            return elements(self._local_size(op, option, f) for f in factors)

        named = {*how.queries, *how.keys, *how.width, *how.depth}
        positions = _positions(op, how)
        shape = AttentionShape(
            batch=extent(f for f in range(len(op.sizes)) if f not in named),
            heads=extent(f for f in how.queries if f != positions),
            q_len=extent(f for f in how.queries if f == positions),
            kv_len=extent(how.keys),
            qk_dim=extent(how.width),
            v_dim=extent(how.depth),
            kv_heads=1,
            causal=how.causal,
        )
        device, rate = self.mesh.cluster.device, self._rate(self.program.value[op.inputs[0]].dtype)
        passes = (False, True) if how.backward and how.kernel == "plain" else (how.backward,)
        return sum(attention_seconds(shape, device, rate, how.kernel, again).seconds for again in passes)

    def _traffic(self, op: Operation, option: Option) -> float:
        """Every input read and every output written once; a total of parts is written and read beside."""
        read = sum(
            self.full_bytes(n) * share(self.mesh, w) for n, w in zip(op.inputs, option.reads, strict=True)
        )
        local = read + self._local_bytes(op.outputs, op.writes, option)
        device = self.mesh.cluster.device
        if not (op.addends and option.parts):
            return stream_seconds(local, device).seconds
        total = self.full_bytes(op.addends[0]) * share(self.mesh, total_layout(op, option))
        summed = sum(n in op.addends for n in op.inputs) * total
        later = local - summed + self.full_bytes(op.addends[0]) * share(self.mesh, self._after(op, option))
        return stream_seconds(summed + total, device).seconds + stream_seconds(later, device).seconds

    def _after(self, op: Operation, option: Option) -> Layout:
        """How a total lies when it has been summed up."""
        return layout_of(next(m.writes[0] for m in op.members if m.name == op.total), option.split)

    def _lookup(self, op: Operation, option: Option) -> float:
        """Rows that are read and written, and the indices."""
        read = self._local_bytes(op.inputs[1:], op.reads[1:], option)
        written = self._local_bytes(op.outputs, op.writes, option)
        return stream_seconds(read + 2 * written, self.mesh.cluster.device).seconds

    def _accumulate(self, op: Operation, option: Option) -> float:
        """Updates read, rows read and written; the result written once before."""
        updates = self._local_bytes(op.inputs, op.reads, option)
        written = self._local_bytes(op.outputs, op.writes, option)
        return stream_seconds(3 * updates + written, self.mesh.cluster.device).seconds

    def _nothing(self, op: Operation, option: Option) -> float:
        return 0.0


_PRICES = MappingProxyType(
    {
        "product": ProgramPricer._product,
        "loop": ProgramPricer._traffic,
        "view": ProgramPricer._traffic,
        "lookup": ProgramPricer._lookup,
        "accumulate": ProgramPricer._accumulate,
        "boundary": ProgramPricer._nothing,
        "attention": ProgramPricer._attention,
    }
)


def array_bytes(value: Value) -> float:
    """Bytes of a whole array [B]."""
    return elements(value.shape) * element_bytes(value.dtype)


def _positions(op: Operation, how: Attention) -> int:
    """Of the loops that only queries have, the one over positions: as long as keys are, else the longest."""
    keys = elements(op.sizes[f] for f in how.keys)
    return max(how.queries, key=lambda f: (op.sizes[f] == keys, op.sizes[f]), default=WHOLE)


def _operands(op: Operation) -> tuple[Dims, Dims, Dims]:
    right = op.reads[1] if len(op.reads) > 1 else ()
    return op.reads[0] if op.reads else (), right, op.writes[0]


def _indexed(dims: Dims) -> set[int]:
    return {f for dim in dims for f in dim}
