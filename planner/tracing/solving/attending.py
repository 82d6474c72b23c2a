"""Seconds of attention as one operator, and of what goes round where it runs in a ring.

Around a ring, fused kernels work on a part of keys and values at a time and merge their results, as
`planner.sharding.context` has it. Where scores are whole arrays (``plain``), each product is made part by part: the
rows of scores are complete before the softmax, and keys and values are passed on for each product that reads them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from cost_models.attention import AttentionShape, attention_seconds, plain_products
from cost_models.collectives import COLLECTIVES
from cost_models.compute import stream_seconds
from cost_models.constants import constants
from planner.intra_op.problem import Array
from planner.sharding.context import Steps, ring_exposed
from planner.tracing.layouts import Codes, Layouts, NamedMesh, among, degrees, different, mask
from planner.tracing.program import Attention, Operation, elements
from planner.tracing.solving.options import Options
from planner.tracing.solving.rings import Ring, from_both_ends, loops_of, positions, ring_of


class Passed(NamedTuple):
    """What goes round for one product, or one kernel, by option."""

    axes: Codes
    """Of the ring, a bit each; 0 where nothing goes round."""
    block_bytes: Array
    """Of one hop [B]."""
    hops: Codes
    seconds: Array
    """That work does not hide, over all hops [s]."""


class _Round(NamedTuple):
    """One array on its way: how often, and what that takes beside the work [s]."""

    block_bytes: float
    hops: int
    seconds: float


class _Blocks(NamedTuple):
    """Bytes of a device's part of what goes round [B]; 0 for what does not."""

    keys: float
    values: float
    key_gradients: float
    value_gradients: float


@dataclass(frozen=True)
class Attending:
    """One attention operator under many options."""

    op: Operation
    options: Options
    mesh: NamedMesh
    rate: str
    widths: tuple[float, ...]
    """Bytes of an element of each input [B]."""
    gradient_widths: tuple[float, ...]
    """Of each of the operator's reductions [B]."""

    @property
    def how(self) -> Attention:
        """What its loops are."""
        assert self.op.attention is not None
        return self.op.attention

    def seconds(self) -> Array:
        """Of computing, per run [s]: [option]."""
        loops = self._loops()
        distinct, place = different(loops)
        found = [self._computed(*self._shape(row)) for row in distinct.tolist()]
        return np.array(found)[place]

    def passed(self) -> Iterator[Passed]:
        """Everything that goes round, in order."""
        ring = ring_of(self.op)
        axes = self._axes(ring)
        if ring is None or not axes.any():
            return
        table = np.column_stack([self._loops(), axes, self._blocks(ring)])
        distinct, place = np.unique(table, axis=0, return_inverse=True)
        rounds = [self._rounds(row) for row in distinct.tolist()]
        for number in range(max(map(len, rounds))):
            of = [r[number] if r else _Round(0.0, 0, 0.0) for r in rounds]
            sizes, hops, seconds = (np.array(column)[place.ravel()] for column in zip(*of, strict=True))
            yield Passed(axes, sizes, hops, seconds)

    def _axes(self, ring: Ring | None) -> Codes:
        split = self.options.split
        return np.zeros(len(split), np.int64) if ring is None else mask(split == ring.keys)

    def _loops(self) -> Codes:
        """[option, 7]: batch, heads that share keys, queries, keys, width, depth on one device; devices of the ring."""
        op, how, ring = self.op, self.how, ring_of(self.op)
        rows = {positions(op, how)} & set(how.queries)
        queries, keys, width, depth = map(set, (how.queries, how.keys, how.width, how.depth))
        batch = set(range(len(op.sizes))) - queries - keys - width - depth
        split = self.options.split
        by_rows = split if ring is None else ring.along((), split)
        groups = (
            (batch, split),
            (queries - rows, split),
            (rows, by_rows),
            (keys, split),
            (width, split),
            (depth, split),
        )
        sizes = [elements(op.sizes[f] for f in loops) // self._cut(at, loops) for loops, at in groups]
        return np.stack([*sizes, self._cut(split, keys)], axis=1)

    def _cut(self, split: Layouts, loops: set[int]) -> Codes:
        """Parts into which loops are cut, [option]."""
        return degrees(self.mesh.sizes, among(split, loops))

    def _blocks(self, ring: Ring) -> Array:
        """[option, 4]: as `_Blocks`."""
        read = zip(map(loops_of, self.op.reads), self.widths, strict=True)
        made = zip((r.dims for r in self.op.reductions), self.gradient_widths, strict=True)
        inner = (set(self.how.width), set(self.how.depth))
        found = [np.zeros(len(self.options)) for _ in range(4)]
        for first, arrays in ((0, read), (2, made)):
            for loops, width in arrays:
                for k, kind in enumerate(inner):
                    if ring.passes(loops) and kind & set(loops):
                        size = width * elements(self.op.sizes[f] for f in loops)
                        found[first + k] = size / self._cut(self.options.split, set(loops))
        return np.stack(found, axis=1)

    def _shape(self, loops: list[int]) -> tuple[AttentionShape, int]:
        """One step of the kernel, and how many there are; heads that share keys are heads of a batch of key heads."""
        batch, heads, q_len, kv_len, qk_dim, v_dim, steps = loops
        shape = AttentionShape(
            batch=batch,
            heads=heads,
            q_len=q_len,
            kv_len=kv_len,
            qk_dim=qk_dim,
            v_dim=v_dim,
            kv_heads=1,
            causal=self.how.causal,
        )
        return shape, steps

    def _computed(self, shape: AttentionShape, steps: int) -> float:
        """A backward kernel that finds no scores makes them again, as a forward one does."""
        plain = self.how.kernel == "plain"
        passes = (False, True) if self.how.backward and plain else (self.how.backward,)
        if steps == 1:
            return sum(self._kernel(shape, again) for again in passes)
        if plain:
            return sum(self._product_by_product(shape, again, steps) for again in passes)
        own, other = self._steps(shape, self.how.backward)
        return own + (steps - 1) * other

    def _kernel(self, shape: AttentionShape, backward: bool) -> float:
        device = self.mesh.cluster.device
        return attention_seconds(shape, device, self.rate, self.how.kernel, backward).seconds

    def _steps(self, shape: AttentionShape, backward: bool) -> Steps:
        """Of a fused kernel: dealt out from both ends, else on the device with the last queries, which see all keys."""
        halved = from_both_ends(self.how, int(shape.kv_len))
        part = replace(shape, causal=False, kv_len=shape.kv_len / 2 if halved else shape.kv_len)
        other = self._kernel(part, backward)
        return Steps(self._kernel(shape, backward), other + self._merged(shape, backward))

    def _merged(self, shape: AttentionShape, backward: bool) -> float:
        facts, size = constants("kernels")["ring"], shape.batch * shape.heads * shape.q_len
        merged = (
            facts["backward_merge_bytes"] * shape.qk_dim
            if backward
            else facts["forward_merge_bytes"] * shape.v_dim
        )
        return stream_seconds(size * merged, self.mesh.cluster.device).seconds

    def _product_by_product(self, part: AttentionShape, backward: bool, steps: int) -> float:
        """Passes over whole rows of scores, between products that are made part by part."""
        whole = replace(part, kv_len=part.kv_len * steps)
        passes = self._kernel(whole, backward) - sum(self._products(whole, backward))
        return (
            passes + steps * sum(self._products(part, backward)) + (steps - 1) * self._merged(part, backward)
        )

    def _products(self, shape: AttentionShape, backward: bool) -> list[float]:
        return [p.seconds for p in plain_products(shape, self.mesh.cluster.device, self.rate, backward)]

    def _rounds(self, row: list[float]) -> list[_Round]:
        """Of one option: its `_loops`, the ring's axes, and its `_blocks`."""
        shape, steps = self._shape([int(n) for n in row[:7]])
        if steps == 1:
            return []
        of = _Blocks(*row[8:])
        axes = [a for a in range(len(self.mesh.sizes)) if int(row[7]) >> a & 1]
        if self.how.kernel == "plain":
            return list(self._beside_products(shape, steps, axes, of))
        return list(self._beside_kernels(shape, steps, axes, of))

    def _hop(self, block_bytes: float, steps: int, axes: list[int]) -> float:
        """One round's share of gathering what goes round [s], as `planner.sharding.context` has it."""
        return COLLECTIVES["all_gather"](steps * block_bytes, self.mesh.group(axes)).seconds / (steps - 1)

    def _beside_products(
        self, shape: AttentionShape, steps: int, axes: list[int], of: _Blocks
    ) -> Iterator[_Round]:
        """Each product hides what goes round for it, but for what takes longer."""
        scores, context = self._products(shape, False)
        sent = [(of.keys, scores), (of.values, context)]
        if self.how.backward:
            of_scores, of_values, of_queries, of_keys = self._products(shape, True)
            sent = [(of.keys, scores), (of.values, of_scores), (of.keys, of_queries)]
            sent += [(of.key_gradients, of_keys), (of.value_gradients, of_values)]
        for size, product in sent:
            if size:
                hop = self._hop(size, steps, axes)
                yield _Round(size, steps - 1, ring_exposed(steps, Steps(product, product), hop))

    def _beside_kernels(
        self, shape: AttentionShape, steps: int, axes: list[int], of: _Blocks
    ) -> Iterator[_Round]:
        """Keys and values together, gradients behind them; what is not hidden is noted with the former."""
        kernels = self._steps(shape, self.how.backward)
        gradients = of.key_gradients + of.value_gradients
        there = self._hop(of.keys + of.values, steps, axes)
        back = self._hop(gradients, steps, axes) if gradients else 0.0
        yield _Round(of.keys + of.values, steps - 1, ring_exposed(steps, kernels, there, back))
        if gradients:
            yield _Round(gradients, steps, 0.0)
