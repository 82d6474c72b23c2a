"""The weights of a block on one device: those that are trained, and those that are frozen."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from operator import add
from typing import NamedTuple

from cluster_specs.software import SoftwareSpec
from cost_models.roofline import element_bytes
from planner.flops import matmul_dims
from planner.graph import Block, Op, Tensor
from planner.operators import operator_rule
from planner.plans import NARROW, Job
from planner.sharding.depths import copied_parts
from planner.sharding.frozen import frozen_bytes, multiplied_as_stored
from planner.sharding.mesh import Mesh
from planner.sharding.pricing import Pricer
from planner.sharding.spec import Strategy, input_spec
from planner.sharding.widths import DTYPE_BYTES

SCALED_WHOLE = ("delayed", "tensorwise")
"""Scalings of fp8 with a scale for a whole tensor."""

GATHERED_CAST = (*SCALED_WHOLE, "blockwise")
"""Those whose casts Transformer Engine's stacks gather; MXFP8 is gathered in 16 bits, and cast behind that."""

Shape = tuple[tuple[float, bool], ...]
"""Size of each dim of a weight on one device, those that its product contracts first, and whether it is a part."""


Kind = tuple[tuple[str, ...], int]
"""Axes over which gradients are summed, and tensor ranks that have the same."""


class WeightGroup(NamedTuple):
    """Weights whose gradients are summed over the same axes."""

    sync_axes: tuple[str, ...]
    elements: float
    """On one device, before any ZeRO sharding."""
    shapes: tuple["Shape", ...] = ()
    """Of each array of them there, where a compiler partitions programs."""
    alike: int = 1
    """Tensor ranks that have the same of them, where a compiler partitions programs: fewer heads than ranks."""
    narrow: float = 0.0
    """Of ``elements``, those that are in 8 bits as they are gathered."""
    multiplied: float = 0.0
    """Of ``elements``, those that products read in 8 or 4 bits."""
    unstepped: float = 0.0
    """Of ``elements``, those that no optimizer steps."""

    def times(self, count: float) -> "WeightGroup":
        """``count`` of these."""
        return self._counting(count * own for own in self._counts)

    def plus(self, other: "WeightGroup") -> "WeightGroup":
        """These and others over the same axes."""
        return self._counting(map(add, self._counts, other._counts))

    def stepped(self) -> "WeightGroup":
        """Those that an optimizer steps."""
        return self._replace(elements=self.elements - self.unstepped, unstepped=0.0)

    @property
    def _counts(self) -> tuple[float, ...]:
        return self.elements, self.narrow, self.multiplied, self.unstepped

    def _counting(self, counts: Iterable[float]) -> "WeightGroup":
        elements, narrow, multiplied, unstepped = counts
        return self._replace(elements=elements, narrow=narrow, multiplied=multiplied, unstepped=unstepped)


class FrozenGroup(NamedTuple):
    """Frozen weights of which ranks along the same axes have the same [bytes on one device]."""

    sync_axes: tuple[str, ...]
    data: float
    """Before any ZeRO sharding, which is that of trained weights."""
    scales: float
    """Constants of quantised weights, which are never sharded.

    Source: bitsandbytes-foundation/bitsandbytes ``nn/modules.py`` (``quant_state`` is an attribute, no parameter).
    """
    multiplied: float = 0.0
    """Elements that products read in 8 or 4 bits, where they are stored in more."""

    def times(self, count: float) -> "FrozenGroup":
        """``count`` of these."""
        data, scales, multiplied = (count * size for size in self[1:])
        return FrozenGroup(self.sync_axes, data, scales, multiplied)


class Weights(NamedTuple):
    """Of one block, by the axes whose ranks have the same."""

    trained: tuple[WeightGroup, ...]
    frozen: tuple[FrozenGroup, ...] = ()


def weights_of(
    pricer: Pricer,
    block: Block,
    assignment: Mapping[str, Strategy],
    padded: Callable[[Tensor, Strategy], float],
) -> Weights:
    """Weights of ``block`` on one device; ``padded`` says how much longer one is stored than it is."""
    trained: dict[Kind, WeightGroup] = {}
    shapes: dict[Kind, tuple[Shape, ...]] = {}
    partitioned = pricer.partitioned is not None
    frozen: dict[tuple[str, ...], FrozenGroup] = {}
    for op in block.ops:
        strategy, multiplied = assignment[op.name], _multiplied(pricer, block, op)
        for kind, found in _shapes(pricer, block, op, strategy) if partitioned else ():
            shapes[kind] = (*shapes.get(kind, ()), found)
        for weight in (block.tensor[name] for name in op.weights):
            axes = pricer.sync_axes(weight, strategy)
            local = pricer.sizes.elements(weight, input_spec(pricer.graph, weight, strategy))
            local *= padded(weight, strategy)
            if weight.role == "weight":
                kind = axes, _alike(pricer, weight)
                read = local if weight.name in multiplied else 0.0
                first = read if _is_cast_first(pricer.job, pricer.software, weight) else 0.0
                left = 0.0 if weight.stepped else local
                more = WeightGroup(axes, local, (), kind[1], first, read, left)
                trained[kind] = trained[kind].plus(more) if kind in trained else more
                continue
            each = frozen_bytes(pricer.job, pricer.sizes, block, op, weight)
            before = frozen.get(axes, FrozenGroup(axes, 0.0, 0.0))
            data, scales = before.data + local * each.data, before.scales + local * each.scales
            cast = weight.name in multiplied and not multiplied_as_stored(pricer.job)
            read = before.multiplied + (local if cast else 0.0)
            frozen[axes] = FrozenGroup(axes, data, scales, read)
    groups = (group._replace(shapes=shapes.get(kind, ())) for kind, group in trained.items())
    return Weights(tuple(groups), tuple(frozen.values()))


def casts_alone(job: Job, software: SoftwareSpec) -> bool:
    """Whether casts are all there is of trained weights of products: by the stack's habit, or as a job gathers them.

    Source: NVIDIA/Megatron-LM@core_v0.16.1 ``megatron/core/distributed/distributed_data_parallel_config.py``
    (``fp8_param_gather``); NVIDIA-NeMo/Megatron-Bridge@05097809 ``src/megatron/bridge/training/mixed_precision.py``
    (not by habit where scales are of blocks, ``bf16_with_fp8_subchannel_scaling_mixed``).
    """
    asked = job.narrow_weight_gathers and job.precision == "fp8" and bool(software.cast_layouts)
    usual = job.precision in (software.casts_alone or ()) and job.fp8_scaling != "blockwise"
    return asked or usual


def gathers_casts(job: Job, software: SoftwareSpec) -> bool:
    """Whether ranks gather weights of products in 8 bits.

    Source: pytorch/ao@36027d8 ``torchao/float8/float8_linear_utils.py`` (modules that are ``nn.Linear``);
    NVIDIA/Megatron-LM@core_v0.16.1 ``megatron/core/distributed/distributed_data_parallel.py`` (buffers of
    ``torch.uint8``) and ``param_and_grad_buffer.py`` (``is_mxfp8tensor``).
    """
    if job.precision == "fp8" and software.cast_layouts:
        return casts_alone(job, software) and job.fp8_scaling in GATHERED_CAST
    return job.precision == "fp8" and job.narrow_weight_gathers


def _is_cast_first(job: Job, software: SoftwareSpec, weight: Tensor) -> bool:
    """Whether a weight of a product is in 8 bits as it is gathered: of experts only where there are casts alone."""
    return gathers_casts(job, software) and (casts_alone(job, software) or "experts" not in weight.dims)


def cast_bytes(
    groups: Iterable[WeightGroup | FrozenGroup], job: Job, software: SoftwareSpec, mesh: Mesh
) -> float:
    """Casts of weights that stay throughout the run, in each layout that products of either direction read [bytes].

    Beyond the weights in 16 bits of which they are in place, where a stack has no others of what it trains.
    """
    each = _layouts(job, software, mesh.cluster.device.name) * element_bytes(job.precision)
    alone = casts_alone(job, software)
    trained = max(0.0, each - DTYPE_BYTES[job.weight_dtype]) if alone else each
    return sum(g.multiplied * (trained if isinstance(g, WeightGroup) else each) for g in groups)


def narrower_bytes(groups: Iterable[WeightGroup], job: Job, software: SoftwareSpec, mesh: Mesh) -> float:
    """What weights of products take less than in 16 bits, where casts are all there is of them [bytes]."""
    return narrower(job, software, mesh.cluster.device.name) * sum(group.multiplied for group in groups)


def narrower(job: Job, software: SoftwareSpec, device: str | None) -> float:
    """The same of an element; at most so much on whatever device, where that is None."""
    each = _layouts(job, software, device) * element_bytes(job.precision)
    alone = casts_alone(job, software)
    return max(0.0, DTYPE_BYTES[job.weight_dtype] - each) if alone and each else 0.0


def _layouts(job: Job, software: SoftwareSpec, device: str | None) -> int:
    """Layouts of casts: one where the device multiplies either, and a scale holds for all of a tensor.

    Source: NVIDIA/TransformerEngine@d0067d0 ``transformer_engine/pytorch/csrc/quantizer.cpp`` (``with_transpose`` of
    quantizers by tensor, of delayed and of current scales; that by blocks of MXFP8 makes both).
    """
    usual = software.cast_layouts or 0
    by_tensor = job.fp8_scaling in SCALED_WHOLE and job.precision == "fp8"
    either = by_tensor and any(device is None or fnmatchcase(device, p) for p in software.reads_either or ())
    return min(usual, 1) if either else usual


def _multiplied(pricer: Pricer, block: Block, op: Op) -> frozenset[str]:
    """Weights that ``op`` multiplies in 8 or 4 bits."""
    if pricer.job.precision not in NARROW or operator_rule(op).arithmetic != "matmul":
        return frozenset()
    left, right = block.tensor[op.inputs[0]], block.tensor[op.outputs[0]]
    if pricer.matmul_dtype(block, left, right) not in NARROW:
        return frozenset()
    return frozenset(weight.name for weight, _ in matmul_dims(op, block))


def _shapes(pricer: Pricer, block: Block, op: Op, strategy: Strategy) -> Iterator[tuple[Kind, Shape]]:
    """Of each array of weights of ``op`` that are trained, and what kind they are."""
    arrays: dict[tuple[Kind, str], list[Tensor]] = {}
    for weight in (block.tensor[name] for name in op.weights):
        if weight.role == "weight":
            kind = pricer.sync_axes(weight, strategy), _alike(pricer, weight)
            arrays.setdefault((kind, weight.path or weight.name), []).append(weight)
    for (kind, _), weights in arrays.items():
        yield kind, _shape(pricer, block, op, weights, strategy)


def _alike(pricer: Pricer, weight: Tensor) -> int:
    ranks = pricer.mesh.size("tensor")
    parts = copied_parts(pricer.graph, weight, ranks) if pricer.partitioned is not None else 0
    return ranks // parts if parts else 1


def _shape(pricer: Pricer, block: Block, op: Op, weights: Sequence[Tensor], strategy: Strategy) -> Shape:
    """Of one array; several weights in it lie one after the other, along what they have apart from inputs."""
    read, made = ({d for n in names for d in block.tensor[n].dims} for names in (op.inputs, op.outputs))
    beside = (made - read) if len(weights) > 1 else set()
    common: Shape = ()
    columns, split = 0.0, False
    for weight in weights:
        shards = input_spec(pricer.graph, weight, strategy).shards
        local = {dim: pricer.sizes.local(dim, shards) for dim in sorted(weight.dims, key=made.__contains__)}
        parts = {dim: (size, size < pricer.sizes.full(dim)) for dim, size in local.items()}
        common = tuple(part for dim, part in parts.items() if dim not in beside)
        columns += math.prod(size for dim, size in local.items() if dim in beside)
        split = split or any(cut for dim, (_, cut) in parts.items() if dim in beside)
    return (*common, (columns, split)) if beside else common
