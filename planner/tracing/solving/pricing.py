"""Seconds and bytes of one operator of a program under one option, and of one move between layouts.

The physics is asked of ``cost_models``, as in `planner.sharding.pricing`; here loops are turned into the numbers
that it takes. An operator computes its own part and exchanges its sums; nothing overlaps.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from cluster_specs.topology import CommGroup
from cost_models.collectives import COLLECTIVES, wire_bytes
from cost_models.compute import memory_seconds
from cost_models.products import streams_seconds
from planner.intra_op.problem import Array
from planner.sharding.resharding import Move
from planner.tracing.layouts import (
    ALL,
    CODES,
    COLLECTIVE_OF,
    MAX_AXES,
    WHOLE,
    Codes,
    Layout,
    Layouts,
    NamedMesh,
    PartialSums,
    Ways,
    among,
    axes_of,
    codes_of,
    degrees,
    divisors,
    mask,
    moves,
    share,
    step_of,
    sums,
)
from planner.tracing.program import Operation, Program, elements
from planner.tracing.solving.attending import Attending, Passed
from planner.tracing.solving.multiplying import loops_of_products, multiplied
from planner.tracing.solving.options import Option, Options, layouts_of, total_layouts
from planner.tracing.solving.rings import ring_of
from planner.tracing.solving.stored import array_bytes, element_bytes, made_in_products

RATES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "float32": ("tf32", "fp32", "bf16"),
        "bfloat16": ("bf16",),
        "float16": ("fp16", "bf16"),
        "float8_e4m3fn": ("fp8", "bf16"),
        "float8_e5m2": ("fp8", "bf16"),
        "float4_e2m1fn": ("fp4", "fp8", "bf16"),
        "int8": ("int8", "bf16"),
        "float64": ("fp64", "fp32", "bf16"),
    }
)
"""Type of a product's operands -> rates at which it may run, the first that the device has."""

Runs = Sequence[tuple[Operation, Options]]
"""Operators, each under many options."""

Steps = tuple[float, Codes]
"""Collectives, in order: bytes of a whole array, and codes of steps, [option, step]."""


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


@dataclass(frozen=True)
class ProgramPricer:
    """Prices the operators of ``program`` on ``mesh``."""

    program: Program
    mesh: NamedMesh
    _moves: dict[tuple[Layout, Layout], tuple[Move, ...]] = field(default_factory=dict, repr=False)
    """Of an array of one byte."""
    _exchanges: dict[tuple[Move, int], Exchange] = field(default_factory=dict, repr=False)
    _operations: dict[tuple[str, tuple[str, ...], Option], Cost] = field(default_factory=dict, repr=False)
    """By name, which a collective shares with what hands it on, what it makes, and option."""
    _steps: dict[float, Array] = field(default_factory=dict, repr=False)
    """By bytes of a whole array: of each code, once [s]; NaN if not known."""
    _once: dict[tuple[int, float], float] = field(default_factory=dict, repr=False)
    """By collective and axes, as codes have them, and bytes of what these do not split, once [s]."""

    @cached_property
    def made_in_products(self) -> frozenset[str]:
        """Values that are never stored."""
        return made_in_products(self.program, self.mesh.cluster.device.kind)

    def stored_bytes(self, name: str) -> float:
        """Bytes of a whole array in memory [B]."""
        return 0.0 if name in self.made_in_products else self.full_bytes(name)

    def full_bytes(self, name: str) -> float:
        """Bytes of a whole array [B]."""
        return array_bytes(self.program.value[name])

    def operation(self, op: Operation, option: Option) -> Cost:
        """One operator: its arithmetic or its traffic, its sums, its borders."""
        key = op.name, op.outputs, option
        if key not in self._operations:
            self._operations[key] = self._operation(op, option)
        return self._operations[key]

    def _operation(self, op: Operation, option: Option) -> Cost:
        one = Options.of(option)
        ((compute,), (steps,)) = self._computed([(op, one)]), self._collectives([(op, one)])
        found = (
            self._exchange(step_of(self.mesh, size, code), op.times)
            for size, codes in steps
            for code in codes[0].tolist()
            if code
        )
        rounds = (self._round(p, op.times) for p in self._passed(op, one) if p.hops[0])
        return Cost(float(compute[0]) * op.times, (*found, *rounds))

    def _round(self, passed: Passed, times: int) -> Exchange:
        """Hops of one array, of the only option that there is; seconds are what work does not hide of one."""
        size, hops = float(passed.block_bytes[0]), int(passed.hops[0])
        axes = tuple(axis for a, axis in enumerate(self.mesh.axes) if int(passed.axes[0]) >> a & 1)
        return Exchange("send", axes, size, size, float(passed.seconds[0]) / hops, times * hops)

    def seconds(self, runs: Runs) -> Iterator[Array]:
        """Of each of many options of operators, over all times [s]; what these have in common is priced at once."""
        priced = zip(runs, self._computed(runs), self._collectives(runs), strict=True)
        for (op, options), compute, steps in priced:
            total = compute * op.times
            for size, codes in steps:
                total = total + self._step_seconds(size, codes.T, op.times)
            yield total + op.times * sum((p.seconds for p in self._passed(op, options)), np.zeros(1))

    def _computed(self, runs: Runs) -> list[Array]:
        """Of arithmetic or traffic, by option, once [s]."""
        products = iter(self._products([run for run in runs if run[0].kind == "product"]))
        return [next(products) if op.kind == "product" else _PRICES[op.kind](self, op, o) for op, o in runs]

    def arrives(self, name: str) -> bool:
        """Whether an input is new in every call."""
        return self.program.value[name].role == "input" and name not in self.program.kept

    def arrival(self, name: str, layout: Layout) -> float:
        """Data that is new in every call is written to memory once [s]; what stays there is free."""
        if not self.arrives(name):
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

    def way_seconds(self, name: str, ways: Ways, times: int) -> Array:
        """Of moves of an array, over all times [s]: [source, target]."""
        seconds = np.zeros(len(ways.codes))
        taken = np.flatnonzero(np.bincount(ways.which.ravel()))
        seconds[taken] = self._step_seconds(self.full_bytes(name), ways.codes[taken].T, times)
        return seconds[ways.which]

    def _step_seconds(self, full_bytes: float, codes: Iterable[Codes], times: int) -> Array:
        """Of all steps together; one array of codes for each."""
        steps = list(codes)
        prices = self._prices(full_bytes, np.concatenate(steps)) * times
        return np.asarray(sum(prices[step] for step in steps))

    def _prices(self, full_bytes: float, codes: Codes) -> Array:
        """By code, of those that there are, once [s]."""
        prices = self._steps.get(full_bytes)
        if prices is None:
            prices = self._steps[full_bytes] = np.where(np.arange(CODES) == 0, 0.0, np.nan)
        seen = np.zeros(CODES, np.bool_)
        seen[codes] = True
        unknown = np.flatnonzero(seen & np.isnan(prices))
        if unknown.size:
            local = full_bytes / divisors(self.mesh.sizes)[unknown & ALL]
            keys = zip((unknown >> MAX_AXES).tolist(), local.tolist(), strict=True)
            prices[unknown] = [self._priced_once(how, size) for how, size in keys]
        return prices

    def _priced_once(self, how: int, local_bytes: float) -> float:
        """A collective over axes, as codes have them, of an array of which they split so much [s]."""
        key = how, local_bytes
        seconds = self._once.get(key)
        if seconds is None:
            collective, group = COLLECTIVE_OF[how >> MAX_AXES], self.mesh.group(axes_of(how & ALL))
            seconds = self._once[key] = COLLECTIVES[collective](local_bytes, group).seconds
        return seconds

    def _exchange(self, move: Move, times: int) -> Exchange:
        key = (move, times)
        if key not in self._exchanges:
            names = tuple(self.mesh.axes)
            self._exchanges[key] = Exchange(
                move.collective,
                tuple(names[int(a)] for a in move.axes),
                move.full_bytes,
                wire_bytes(move.collective, move.full_bytes, self._group(move).size),
                self._collective(move),
                times,
            )
        return self._exchanges[key]

    def _collective(self, move: Move) -> float:
        """Once [s]."""
        return COLLECTIVES[move.collective](move.full_bytes, self._group(move)).seconds

    def _group(self, move: Move) -> CommGroup:
        return self.mesh.group(tuple(map(int, move.axes)))

    def _collectives(self, runs: Runs) -> list[list[Steps]]:
        """Those of the operators themselves."""
        added = {i: found for i, run in enumerate(runs) if (found := self._sums(*run)) is not None}
        codes = dict(zip(added, sums([parts for _, parts in added.values()]), strict=True))
        return [
            [
                *([(added[i][0], codes[i])] if i in added else []),
                *self._reductions(op, options),
                *self._halos(op, options),
            ]
            for i, (op, options) in enumerate(runs)
        ]

    def _sums(self, op: Operation, options: Options) -> tuple[float, PartialSums] | None:
        """What is added up, and bytes of the whole."""
        together = self.program.sums_at_once or op.addends
        kinds = np.full_like(options.split, WHOLE) if together else options.split
        if op.addends:
            if not (parts := options.parts).any():
                return None
            before, after = total_layouts(op, options)
            return self.full_bytes(op.addends[0]), PartialSums(after, kinds, parts, mask(before >= 0))
        if not (summed := options.summed(op)).any():
            return None
        inner = mask(layouts_of(op.writes[0], options.split) >= 0)
        return self.full_bytes(op.outputs[0]), PartialSums(options.writes[0], kinds, summed, inner)

    def _reductions(self, op: Operation, options: Options) -> Iterator[Steps]:
        ring = ring_of(op)
        for reduction in op.reductions:
            at = options.split if ring is None else ring.along(reduction.dims, options.split)
            over, split = (mask(among(at, fs)) for fs in (reduction.over, reduction.dims))
            size = elements(op.sizes[f] for f in reduction.dims) * element_bytes(reduction.dtype)
            yield size, codes_of("all_reduce", over, split)[:, None]

    def _halos(self, op: Operation, options: Options) -> Iterator[Steps]:
        """Borders of a split image, to both neighbours together: dim after dim, so that later ones have corners."""
        longer = {h.operand: np.ones(len(options.split)) for h in op.halos}  # than without borders
        for halo in op.halos:
            name, factors = op.inputs[halo.operand], longer[halo.operand]
            length, along = op.image_length(halo), options.split == halo.factor
            axes = mask(along)
            others = mask(options.reads[halo.operand] >= 0) & ~axes
            for factor in np.unique(factors[axes > 0]):
                size = self.full_bytes(name) / length * halo.elements * float(factor)
                yield size, codes_of("send", np.where(factors == factor, axes, 0), others)[:, None]
            factors *= 1 + (degrees(self.mesh.sizes, along) * (axes > 0)) * halo.elements / length

    def _local(self, names: Sequence[str], layouts: Sequence[Layouts]) -> Array:
        """Bytes on one device of arrays together, [option] [B]."""
        parts = {id(w): degrees(self.mesh.sizes, w >= 0) for w in layouts}
        shares = (self.full_bytes(n) / parts[id(w)] for n, w in zip(names, layouts, strict=True))
        return np.asarray(sum(shares, np.zeros(1)))

    def _written(self, op: Operation, options: Options) -> Array:
        made = {dims: layouts_of(dims, options.split) for dims in dict.fromkeys(op.writes)}
        return self._local(op.outputs, [made[dims] for dims in op.writes])

    def saved_as_one(self, ops: Sequence[Operation], options: Sequence[Options], place: int) -> Array:
        """What running products as one saves, less the copy of their own operands, by option, over all times [s].

        They share the operand at ``place``; each device puts what it holds of the others side by side.
        """
        found = loops_of_products(
            [(op, o.split) for op, o in zip(ops, options, strict=True)], self.mesh.sizes
        )
        loops = [sizes[of] for sizes, of in found]
        together = loops[0].copy()
        together[:, 1 - place] = sum(rows_columns[:, 1 - place] for rows_columns in loops)
        *apart, as_one = self._multiplied([*loops, together], self._operands(ops[0]))
        own = (
            self._local([op.inputs[1 - place]], [o.reads[1 - place]])
            for op, o in zip(ops, options, strict=True)
        )
        copies = self._streamed(2 * np.asarray(sum(own)))
        return np.asarray(sum(apart) - as_one - copies) * ops[0].times

    def _products(self, runs: Runs) -> list[Array]:
        """Once [s], those of one type together."""
        alike: dict[str, list[int]] = {}
        for i, (op, _) in enumerate(runs):
            alike.setdefault(self._operands(op), []).append(i)
        found = [np.zeros(0)] * len(runs)
        for dtype, places in alike.items():
            loops = loops_of_products([(runs[i][0], runs[i][1].split) for i in places], self.mesh.sizes)
            each = self._multiplied([sizes for sizes, _ in loops], dtype)
            for i, seconds, (_, of) in zip(places, each, loops, strict=True):
                found[i] = seconds[of]
        return found

    def _operands(self, op: Operation) -> str:
        """Their type."""
        return self.program.value[(*op.inputs, *op.outputs)[0]].dtype

    def _multiplied(self, loops: Sequence[Codes], dtype: str) -> list[Array]:
        """Seconds of products of these sizes, of a type."""
        return multiplied(loops, self.mesh.cluster.device, self._rate(dtype), element_bytes(dtype))

    def _rate(self, dtype: str) -> str:
        known = self.mesh.cluster.device.peak_flops_per_second
        return next((rate for rate in RATES.get(dtype, ("bf16",)) if rate in known), "bf16")

    def _attention(self, op: Operation, options: Options) -> Array:
        return self._attending(op, options).seconds()

    def _attending(self, op: Operation, options: Options) -> Attending:
        types = [self.program.value[name].dtype for name in op.inputs]
        read, summed = (
            tuple(map(element_bytes, names)) for names in (types, [r.dtype for r in op.reductions])
        )
        return Attending(op, options, self.mesh, self._rate(types[0]), read, summed)

    def _passed(self, op: Operation, options: Options) -> Iterator[Passed]:
        """What goes round beside an attention."""
        return iter(()) if op.attention is None else self._attending(op, options).passed()

    def _streamed(self, bytes_: Array) -> Array:
        return streams_seconds(bytes_, self.mesh.cluster.device)

    def _traffic(self, op: Operation, options: Options) -> Array:
        """Every input read and every output written once; a total of parts is written and read beside."""
        stored = [(n, w) for n, w in zip(op.outputs, options.writes, strict=True) if self.stored_bytes(n)]
        written = self._local([n for n, _ in stored], [w for _, w in stored])
        local = self._local(op.inputs, options.reads) + written
        if not op.addends:
            return self._streamed(local)
        before, after = total_layouts(op, options)
        total = self._local(op.addends[:1], [before])
        summed = sum(n in op.addends for n in op.inputs) * total
        later = local - summed + self._local(op.addends[:1], [after])
        apart = self._streamed(summed + total) + self._streamed(later)
        return np.where(options.parts.any(axis=1), apart, self._streamed(local))

    def _lookup(self, op: Operation, options: Options) -> Array:
        """Rows that are read and written, and the indices."""
        indices = [layouts_of(dims, options.split) for dims in op.reads[1:]]
        return self._streamed(self._local(op.inputs[1:], indices) + 2 * self._written(op, options))

    def _accumulate(self, op: Operation, options: Options) -> Array:
        """Updates read, rows read and written; the result written once before."""
        updates = self._local(op.inputs, [layouts_of(dims, options.split) for dims in op.reads])
        return self._streamed(3 * updates + self._written(op, options))

    def _nothing(self, op: Operation, options: Options) -> Array:
        return np.zeros(len(options))


_PRICES = MappingProxyType(
    {
        "loop": ProgramPricer._traffic,
        "view": ProgramPricer._traffic,
        "lookup": ProgramPricer._lookup,
        "accumulate": ProgramPricer._accumulate,
        "boundary": ProgramPricer._nothing,
        "attention": ProgramPricer._attention,
    }
)
