"""A mesh of devices played by numpy: what each rank holds of an array, and what collectives do to it."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from planner.sharding.spec import ShardingSpec

Coordinates = tuple[int, ...]
"""Of a rank, one per axis of the mesh."""

Shards = dict[Coordinates, np.ndarray]
"""What every rank holds."""


class NumpyMesh:
    """Ranks on named axes, and arrays with named dims over them."""

    def __init__(self, degrees: Mapping[str, int], dims: Sequence[str] = ()) -> None:
        self.degrees, self.axes, self.dims = degrees, tuple(degrees), tuple(dims)

    def ranks(self) -> Iterator[Coordinates]:
        return itertools.product(*(range(n) for n in self.degrees.values()))

    def with_dims(self, dims: Sequence[str]) -> "NumpyMesh":
        return NumpyMesh(self.degrees, dims)

    def piece(self, array: np.ndarray, dim: str, axis: str, rank: Coordinates) -> np.ndarray:
        """The rank's share of ``array`` where ``axis`` cuts ``dim``."""
        parts = np.split(array, self.degrees[axis], self.dims.index(dim))
        return parts[rank[self.axes.index(axis)]]

    def lay_out(self, whole: np.ndarray, spec: ShardingSpec, rng: np.random.Generator) -> Shards:
        """``whole`` on every rank: cut where ``spec`` shards, random addends where it is partial."""
        shape = [self.degrees[a] if a in spec.partial else 1 for a in self.axes]
        addends = rng.integers(-9, 9, (*shape, *whole.shape))
        flat = addends.reshape(math.prod(shape), *whole.shape)
        flat[0] = whole - flat[1:].sum(0)
        held = {}
        for rank in self.ranks():
            array = addends[
                tuple(c if a in spec.partial else 0 for a, c in zip(self.axes, rank, strict=True))
            ]
            for axis, dim in spec.shards:
                if dim in self.dims:
                    array = self.piece(array, dim, axis, rank)
            held[rank] = array
        return held

    def peers(self, axis: str, rank: Coordinates) -> list[Coordinates]:
        """Ranks that differ from ``rank`` only on ``axis``, in order."""
        i = self.axes.index(axis)
        return [(*rank[:i], c, *rank[i + 1 :]) for c in range(self.degrees[axis])]

    def collective(
        self, kind: str, held: Shards, axis: str, source: str | None, target: str | None
    ) -> Shards:
        """Every rank's array after one collective over ``axis``, from dim ``source`` to dim ``target``."""
        after = {}
        for rank in held:
            peers = [held[peer] for peer in self.peers(axis, rank)]
            if kind == "all_to_all":
                peers = [self.piece(p, str(target), axis, rank) for p in peers]
            if kind in ("all_gather", "all_to_all"):
                after[rank] = np.concatenate(peers, self.dims.index(str(source)))
            else:
                total = np.sum(peers, axis=0)
                after[rank] = total if kind == "all_reduce" else self.piece(total, str(target), axis, rank)
        return after
