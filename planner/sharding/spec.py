"""How a tensor lies on a mesh, and how an operator is split over it.

A `Strategy` gives each mesh axis at most one dim of the operator's iteration space. What each of the
operator's tensors looks like follows: an axis whose dim the tensor has shards that dim; an axis whose dim
the tensor lacks leaves it replicated (inputs, weights) or, if the dim is contracted, partial (outputs).
This is GSPMD's and Mesh-TensorFlow's view; Megatron's layouts are points of it.

Source: Xu et al., GSPMD, arXiv:2105.04663; Shazeer et al., Mesh-TensorFlow, arXiv:1811.02084.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

from planner.graph import BATCH, TOKEN_DIMS, Graph, Op, Tensor
from planner.sharding.mesh import Mesh

Strategy = tuple[tuple[str, str], ...]
"""(mesh axis, dim) pairs, in the order of the mesh's axes; an axis that is absent computes the same twice."""


class ShardingSpec(NamedTuple):
    """A tensor on a mesh: which axis shards which dim, and over which axes it is a pending sum."""

    shards: Strategy = ()
    partial: tuple[str, ...] = ()

    def on(self, axis: str) -> str | None:
        """The dim that ``axis`` shards, ``"+"`` where the tensor is partial over it, None where replicated."""
        return self.by_axis().get(axis)

    def by_axis(self) -> dict[str, str]:
        """Axis -> the dim that it shards, ``"+"`` where the tensor is partial over it; absent: replicated."""
        return {**dict(self.shards), **dict.fromkeys(self.partial, "+")}


def has_dim(graph: Graph, tensor: Tensor, dim: str) -> bool:
    """Whether splitting ``dim`` splits ``tensor``: it has the dim, or one that follows it."""
    if dim in tensor.dims:
        return True
    followers = graph.followers.get(dim)
    return followers is not None and not followers.isdisjoint(tensor.dims)


def input_spec(graph: Graph, tensor: Tensor, strategy: Strategy) -> ShardingSpec:
    """What ``strategy`` needs of an input or weight."""
    return ShardingSpec(tuple(s for s in strategy if has_dim(graph, tensor, s[1])))


def output_spec(graph: Graph, tensor: Tensor, strategy: Strategy, contracted: frozenset[str]) -> ShardingSpec:
    """What ``strategy`` leaves of an output; an axis on a contracted dim leaves it partial."""
    return ShardingSpec(
        tuple(s for s in strategy if has_dim(graph, tensor, s[1])),
        tuple(a for a, dim in strategy if dim in contracted),
    )


def gradient_of_input(graph: Graph, tensor: Tensor, strategy: Strategy) -> ShardingSpec:
    """Gradient that an operator leaves for an input: partial over every axis whose dim the input lacks."""
    return ShardingSpec(
        tuple(s for s in strategy if has_dim(graph, tensor, s[1])),
        tuple(a for a, dim in strategy if not has_dim(graph, tensor, dim)),
    )


def gradient_of_output(spec: ShardingSpec) -> ShardingSpec:
    """Gradient that an operator needs for an output: whole where the output was partial."""
    return ShardingSpec(spec.shards)


def carried(graph: Graph, tensor: Tensor, spec: ShardingSpec) -> ShardingSpec:
    """How ``tensor`` lies where its neighbour lies as ``spec``: positions of one sequence for those of another.

    An encoder hands on what a decoder reads under another dim; an axis that splits neither leaves it whole.
    """
    positions = next((d for d in tensor.dims if d in TOKEN_DIMS), None)
    shards = []
    for axis, dim in spec.shards:
        if has_dim(graph, tensor, dim):
            shards.append((axis, dim))
        elif dim in TOKEN_DIMS and positions is not None:
            shards.append((axis, positions))
    return ShardingSpec(tuple(shards), spec.partial)


class Sizes:
    """Local sizes on one mesh for one batch, memoised: the arithmetic that everything else leans on."""

    def __init__(
        self,
        graph: Graph,
        mesh: Mesh,
        batch: int,
        expert_imbalance: float = 1.0,
        expert_capacity: float | None = None,
    ) -> None:
        """``batch`` is the sequences of one micro-batch over the whole mesh; the others are as in `Job`."""
        self.graph, self.mesh, self.batch = graph, mesh, batch
        self.expert_imbalance, self.expert_capacity = expert_imbalance, expert_capacity
        self._dims: Mapping[str, int] = {**graph.dims, BATCH: batch}
        self._shares: dict[tuple[str, Strategy], float] = {}
        self._products: dict[tuple[tuple[str, ...], Strategy], float] = {}

    def full(self, dim: str) -> int:
        """Global size of ``dim``."""
        return self._dims[dim]

    def local(self, dim: str, strategy: Strategy) -> float:
        """Size of ``dim`` on one device; a follower is split up to its own size; uneven dims are padded."""
        key = (dim, strategy)
        if key not in self._shares:
            leader = self.graph.follows.get(dim, dim)
            degree = math.prod(self.mesh.size(a) for a, d in strategy if d in (dim, leader))
            self._shares[key] = float(max(1, math.ceil(self._dims[dim] / degree)))
        return self._shares[key]

    def elements(self, tensor: Tensor, spec: ShardingSpec) -> float:
        """Elements of ``tensor`` on one device: on the fullest one, where ranks have tokens of different experts."""
        key = (tensor.dims, spec.shards)
        if key not in self._products:
            self._products[key] = math.prod(self.local(d, spec.shards) for d in tensor.dims)
        return tensor.scale * self.load(tensor, spec.shards) * self._products[key]

    def load(self, tensor: Tensor, strategy: Strategy) -> float:
        """Tokens of ``tensor`` on the fullest rank over the mean: only ranks with experts of their own differ.

        Experts with a capacity all compute as many.
        """
        if tensor.is_parameter or "experts" not in tensor.dims:
            return 1.0
        if self.expert_capacity is not None:
            return self.expert_capacity
        return self.expert_imbalance if self.local("experts", strategy) < self.full("experts") else 1.0

    def divides(self, dim: str, degree: int) -> bool:
        """Whether ``dim`` can be split ``degree`` ways; a vocabulary is padded, a follower may be replicated."""
        size = self._dims[dim]
        if dim == "vocab":
            return size >= degree
        return size % degree == 0

    def legal(self, op: Op, strategy: Strategy) -> bool:
        """Whether every dim divides evenly and followers divide or are divided."""
        for dim in {d for _, d in strategy}:
            degree = math.prod(self.mesh.size(a) for a, d in strategy if d == dim)
            if not self.divides(dim, degree):
                return False
            for follower, leader in self.graph.follows.items():
                size = self._dims[follower]
                if leader == dim and size % degree and degree % size:
                    return False
        return True
