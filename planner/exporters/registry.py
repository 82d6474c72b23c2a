"""The export targets, as one table: `export` turns a plan into files of a framework, as text."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from cluster_specs.software import Axis
from planner.errors import UnknownName, Unsupported
from planner.exporters import (
    accelerate,
    accelerate_fsdp1,
    axolotl,
    deepspeed,
    fsdp,
    fsdp1,
    hf_trainer,
    jax,
    levanter,
    maxtext,
    megatron,
    nanotron,
    torchtitan,
)
from planner.exporters.adapters import check_adapter, peft_files
from planner.exporters.limits import Limits, expresses, lacking_axes, refused
from planner.exporters.nearest import nearest_within
from planner.exporters.scans import check_known, check_scans
from planner.exporters.stacks import RUNS_AS, TORCHTITAN, priced_apart
from planner.exporters.unsaid import unsaid
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


def _target(name: str, description: str, files: tuple[str, ...], export: Exporter, limits: Limits) -> Target:
    """A target whose `Limits` say everything."""
    return Target(name, description, files, expresses(limits), refused(limits), export)


_TARGETS = (
    Target(
        "jax",
        "JAX: a module with the mesh, partition specs of parameters and activations, and the remat policy",
        ("jax_shardings.py",),
        (
            "data, tensor, sequence, context and expert parallelism, operator by operator",
            "ZeRO 0 to 3 and hybrid sharding",
            "recompute none, selective, products, mlp, alternate, attention, full",
            "optimizer offload",
        ),
        ("pipelines", "offload of weights and activations", "uneven splits (pad the vocabulary)"),
        jax.to_jax,
    ),
    Target(
        "fsdp2",
        "PyTorch: a script that applies FSDP2, tensor parallelism, checkpointing and a pipeline to a module",
        ("fsdp2_plan.py",),
        (
            "fully sharded (ZeRO 2, 3), hybrid and replicated data parallelism",
            "tensor and sequence parallelism of linear layers and vocabulary-parallel loss",
            "pipelines of any stages: all schedules of torch; those that split the backward pass up to ZeRO 2",
            "context parallelism of plain causal attention; experts spread over data-parallel ranks",
            "recompute none, selective, products, alternate, full, by stage",
            "fp32 or bf16 gradient reduction",
            "offload of parameters and optimizer together",
        ),
        (
            "context parallelism of windowed attention",
            "expert beside tensor parallelism",
            "ZeRO 1",
            "fp8",
            "fp4",
        ),
        fsdp.to_fsdp2,
    ),
    _target(
        fsdp1.TARGET,
        "PyTorch: a script that wraps a module in the first FSDP, with its ShardingStrategy",
        (fsdp1.FILE,),
        fsdp1.to_fsdp1,
        fsdp1.LIMITS,
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
        ("pipelines", "tensor and expert parallelism", "ZeRO 0 and 1", "selective recompute", "fp8", "fp4"),
        accelerate.to_accelerate,
    ),
    _target(
        accelerate_fsdp1.TARGET,
        "Hugging Face accelerate: a configuration for `accelerate launch` with PyTorch's first FSDP",
        (accelerate_fsdp1.FILE,),
        accelerate_fsdp1.to_accelerate_fsdp1,
        accelerate_fsdp1.LIMITS,
    ),
    _target(
        hf_trainer.TARGET,
        "Hugging Face Trainer: TrainingArguments and fsdp_config as JSON",
        hf_trainer.FILES,
        hf_trainer.to_hf_trainer,
        hf_trainer.LIMITS,
    ),
    _target(
        deepspeed.TARGET,
        "DeepSpeed: its JSON configuration, with ZeRO, offload and automatic tensor parallelism",
        (deepspeed.FILE, deepspeed.NOTES_FILE),
        deepspeed.to_deepspeed,
        deepspeed.LIMITS,
    ),
    _target(
        torchtitan.TARGET,
        "torchtitan from 0.3.0 on: a configuration in Python, and its flags",
        (torchtitan.PYTHON_FILE, torchtitan.FLAGS_FILE),
        torchtitan.to_torchtitan,
        torchtitan.LIMITS,
    ),
    _target(
        torchtitan.OLD_TARGET,
        "torchtitan up to 0.2.2: a configuration in TOML",
        (torchtitan.TOML_FILE,),
        torchtitan.to_torchtitan_toml,
        torchtitan.OLD_LIMITS,
    ),
    _target(
        megatron.TARGET,
        "Megatron-LM: command-line arguments, with the layout of uneven stages",
        (megatron.FILE,),
        megatron.to_megatron_lm,
        megatron.LIMITS,
    ),
    _target(
        megatron.BRIDGE_TARGET,
        "Megatron-Bridge (NeMo): overrides of a recipe's ConfigContainer",
        (megatron.BRIDGE_FILE, megatron.BRIDGE_NOTES_FILE),
        megatron.to_megatron_bridge,
        megatron.BRIDGE_LIMITS,
    ),
    _target(
        maxtext.TARGET,
        "MaxText: overrides of base.yml",
        (maxtext.FILE,),
        maxtext.to_maxtext,
        maxtext.LIMITS,
    ),
    _target(
        levanter.TARGET,
        "Levanter: the trainer section of its configuration",
        (levanter.FILE,),
        levanter.to_levanter,
        levanter.LIMITS,
    ),
    _target(
        nanotron.TARGET,
        "nanotron: the sections that decide how it runs",
        (nanotron.FILE,),
        nanotron.to_nanotron,
        nanotron.LIMITS,
    ),
    _target(
        axolotl.TARGET,
        "axolotl: the keys that decide how it runs",
        (axolotl.FILE,),
        axolotl.to_axolotl,
        axolotl.LIMITS,
    ),
)

EXPORTERS: Mapping[str, Target] = MappingProxyType({target.name: target for target in _TARGETS})
"""Every target by name."""

LIMITS: Mapping[str, Limits] = MappingProxyType(
    {
        fsdp1.TARGET: fsdp1.LIMITS,
        "accelerate": accelerate.LIMITS,
        accelerate_fsdp1.TARGET: accelerate_fsdp1.LIMITS,
        hf_trainer.TARGET: hf_trainer.LIMITS,
        deepspeed.TARGET: deepspeed.LIMITS,
        torchtitan.TARGET: torchtitan.LIMITS,
        torchtitan.OLD_TARGET: torchtitan.OLD_LIMITS,
        megatron.TARGET: megatron.LIMITS,
        megatron.BRIDGE_TARGET: megatron.BRIDGE_LIMITS,
        maxtext.TARGET: maxtext.LIMITS,
        levanter.TARGET: levanter.LIMITS,
        nanotron.TARGET: nanotron.LIMITS,
        axolotl.TARGET: axolotl.LIMITS,
    }
)
"""What a target can say, as data, where it has one layout of operators; the others judge every plan by itself."""

OTHERS_LACK: Mapping[str, tuple[Axis, ...]] = MappingProxyType({"jax": ("pipeline",)})
"""Axes over which a target outside of `LIMITS` splits nothing."""


def chunks_loss(stack: str) -> bool:
    """Whether a target that starts ``stack`` can have a loss in chunks; PyTorch's own run the `fsdp2` script."""
    own = [target for target, stacks in RUNS_AS.items() if stack in stacks]
    return stack in TORCHTITAN or any(target not in LIMITS or LIMITS[target].fused_loss for target in own)


def targets() -> tuple[Target, ...]:
    """All targets, in the order in which they are shown."""
    return _TARGETS


def export(plan: Plan, target: str) -> dict[str, str]:
    """The files of ``target`` for ``plan``: name -> text.

    What the target has no word for and can do without stands in the header (`planner.exporters.unsaid`), and what a
    priced plan takes where the target starts other software than it was priced for (`planner.exporters.stacks`).

    Raises ``UnknownName`` for a target that is not in `EXPORTERS`, ``Unsupported`` with the reason for a plan
    that the target cannot express.
    """
    if target not in EXPORTERS:
        raise UnknownName("export target", target, EXPORTERS, see="`meshwright targets` lists them")
    _refuse_unlike(plan, target)
    check_adapter(plan, target)
    check_scans(plan, target)
    noted = plan.model_copy(update={"warnings": (*plan.warnings, *notes(plan, target))})
    return {**EXPORTERS[target].export(noted), **peft_files(plan, target)}


def notes(plan: Plan, target: str) -> tuple[str, ...]:
    """What the files of ``target`` say beside the plan: what they cannot, and, of a priced plan, what they start."""
    apart = priced_apart(plan, target, _lacking(target)) if plan.estimate is not None else ()
    return (*unsaid(plan, target), *apart)


def _lacking(target: str) -> tuple[Axis, ...]:
    """Axes over which the target splits nothing."""
    if target not in LIMITS:
        return OTHERS_LACK.get(target, ())
    return lacking_axes(LIMITS[target])


def _refuse_unlike(plan: Plan, target: str) -> None:
    """Refuse stages that differ in their meshes, or that do not follow the order of the devices."""
    order = [stage.devices[0] for stage in plan.plan.stages[: plan.plan.pipeline]]
    if plan.plan.stages_differ or (plan.cluster.others and order != sorted(order)):
        raise Unsupported(
            f"target {target} cannot express stages with meshes of their own, or against the order of the devices"
        )


def nearest(plan: Plan, target: str) -> Plan:
    """``plan``, or the fastest plan of the same degrees that ``target`` can express (`nearest_within`).

    What changed, and the loss of speed, is the last of the answer's warnings, and so in the header of its files.
    Targets outside of `LIMITS` get the plan as it is. Raises ``Unsupported`` where there is none.
    """
    _refuse_unlike(plan, target)
    limits = LIMITS.get(target)
    if limits is None:
        return plan
    check_known(plan, target)  # before its degrees, which would be changed in vain
    return nearest_within(plan, target, limits, EXPORTERS[target].export)
