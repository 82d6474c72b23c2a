"""Operators that XLA gathers whole before it runs them, though their parts have nothing to do with one another.

Each device runs its own part by itself, in a ``shard_map``. Of a convolution of images in parts that are the channels
that it makes: XLA, told of both, moves half of an image and adds up all of what is made. It exchanges borders inside.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from planner.tracing.applying.parts import Loops
from planner.tracing.applying.views import partition_of
from planner.tracing.program import Dims, elements
from planner.tracing.sharded import spec_arguments


def _transforms(equation: Any, loops: Loops) -> set[int]:
    """Of a Fourier transform all that can be split: what it does not transform."""
    return {f for dim in loops.writes for f in dim}


def _images_and_groups(equation: Any, loops: Loops) -> set[int]:
    """Of a convolution in groups of channels its images and groups."""
    params = equation.params
    if params["feature_group_count"] == 1 or params["batch_group_count"] > 1:
        return set()
    return {*loops.writes[params["dimension_numbers"].out_spec[0]], _group(equation, loops)}


def _group(equation: Any, loops: Loops) -> int:
    """The loop over groups, the major one of the image's channels."""
    channels: int = equation.params["dimension_numbers"].lhs_spec[1]
    return loops.reads[0][channels][0]


def _rows(equation: Any, loops: Loops) -> set[int]:
    """Of a choice of the largest all but where it chooses."""
    return {f for dim in loops.writes[:-1] for f in dim}


APART: Mapping[str, Callable[[Any, Loops], set[int]]] = MappingProxyType(
    {
        "approx_top_k": _rows,
        "conv_general_dilated": _images_and_groups,
        "fft": _transforms,
        "top_k": _rows,
    }
)
"""Primitive -> loops of which devices may each run a part."""


def axes_apart(equation: Any, loops: Loops) -> frozenset[str]:
    """Axes along which devices can run their parts of it by themselves, and XLA would not let them."""
    free = APART.get(equation.primitive.name)
    known = len(equation.invars) == len(loops.reads)  # a literal is no array that lies somewhere
    if free is None or not known:
        return frozenset()
    if {*loops.split.values()} <= free(equation, loops):
        return frozenset(loops.mesh.axis_names)
    return _made_channels(equation, loops) if "dimension_numbers" in equation.params else frozenset()


def _made_channels(equation: Any, loops: Loops) -> frozenset[str]:
    """Axes that split the channels that a convolution makes, where others split its images."""
    params, of = equation.params, equation.params["dimension_numbers"].out_spec
    image = {f for dim in of[2:] for f in loops.writes[dim]}
    if params["batch_group_count"] > 1 or image.isdisjoint(loops.split.values()):
        return frozenset()
    return frozenset(axis for axis, f in loops.split.items() if f in loops.writes[of[1]])


def run_apart(equation: Any, operands: list[Any], loops: Loops, axes: frozenset[str]) -> list[Any]:
    """The results, which all lie alike, of operands that lie as the loops say: apart along ``axes``."""
    import jax
    from jax.sharding import PartitionSpec

    split = {axis: f for axis, f in loops.split.items() if axis in axes}

    def spec(dims: Dims) -> Any:
        return PartitionSpec(*spec_arguments(partition_of(dims, split)))

    params = dict(equation.params)
    if params.get("feature_group_count", 1) > 1:
        group = _group(equation, loops)
        params["feature_group_count"] //= elements(
            loops.mesh.shape[a] for a, f in split.items() if f == group
        )

    def run(*parts: Any) -> Any:
        made = equation.primitive.bind(*parts, **params)
        return made if equation.primitive.multiple_results else [made]

    mapped: Callable[..., Any] = jax.shard_map(
        run,
        mesh=loops.mesh,
        axis_names=axes,
        in_specs=tuple(map(spec, loops.reads)),
        out_specs=[spec(loops.writes)] * len(equation.outvars),
        check_vma=False,
    )
    return list(mapped(*operands))
