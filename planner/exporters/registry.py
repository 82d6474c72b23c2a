"""The export targets, as one table: `export` turns a plan into files of a framework, as text."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from planner.errors import UnknownName
from planner.exporters.accelerate import to_accelerate
from planner.exporters.fsdp import to_fsdp2
from planner.exporters.jax import to_jax
from planner.plans import Plan

Exporter = Callable[[Plan], Mapping[str, str]]
"""From a plan to its files: name -> text. Raises ``Unsupported`` where the target cannot express the plan."""


class Target(NamedTuple):
    """A framework, or a launcher, that can run a plan."""

    name: str
    description: str
    files: tuple[str, ...]
    expresses: tuple[str, ...]
    """What of a plan it can say."""
    refuses: tuple[str, ...]
    """What it cannot; such a plan raises ``Unsupported``."""
    export: Exporter


_TARGETS = (
    Target(
        "jax",
        "JAX: a module with the mesh, partition specs of parameters and activations, and the remat policy",
        ("jax_shardings.py",),
        (
            "data, tensor, sequence, context and expert parallelism, operator by operator",
            "ZeRO 0 to 3 and hybrid sharding",
            "recompute none, selective, attention, full",
            "optimizer offload",
        ),
        ("pipelines", "offload of weights and activations", "uneven splits (pad the vocabulary)"),
        to_jax,
    ),
    Target(
        "fsdp2",
        "PyTorch: a script that applies FSDP2, tensor parallelism and activation checkpointing to a module",
        ("fsdp2_plan.py",),
        (
            "fully sharded (ZeRO 2, 3), hybrid and replicated data parallelism",
            "tensor and sequence parallelism of linear layers and vocabulary-parallel loss",
            "recompute none, selective, full",
            "fp32 or bf16 gradient reduction",
            "offload of parameters and optimizer together",
        ),
        ("pipelines", "context parallelism", "expert parallelism", "ZeRO 1", "fp8"),
        to_fsdp2,
    ),
    Target(
        "accelerate",
        "Hugging Face accelerate: a configuration for `accelerate launch` with FSDP2",
        ("accelerate_fsdp2.yaml",),
        (
            "fully sharded (ZeRO 2, 3) and hybrid data parallelism",
            "context parallelism",
            "recompute none, full",
            "offload of parameters and optimizer together",
        ),
        ("pipelines", "tensor and expert parallelism", "ZeRO 0 and 1", "selective recompute", "fp8"),
        to_accelerate,
    ),
)

EXPORTERS: Mapping[str, Target] = MappingProxyType({target.name: target for target in _TARGETS})
"""Every target by name."""


def targets() -> tuple[Target, ...]:
    """All targets, in the order in which they are shown."""
    return _TARGETS


def export(plan: Plan, target: str) -> dict[str, str]:
    """The files of ``target`` for ``plan``: name -> text.

    Raises ``UnknownName`` for a target that is not in `EXPORTERS`, ``Unsupported`` with the reason for a plan
    that the target cannot express.
    """
    if target not in EXPORTERS:
        raise UnknownName("export target", target, EXPORTERS)
    return dict(EXPORTERS[target].export(plan))
