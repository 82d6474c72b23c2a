"""Which targets train models with linear recurrences, and which of them split their heads over tensor ranks."""

from collections.abc import Mapping
from types import MappingProxyType

from planner.errors import Unsupported
from planner.evaluation.setting import graph_of
from planner.graph import has_scans
from planner.plans import Plan

MODULES = (
    "jax", "fsdp2", "fsdp1", "accelerate", "accelerate-fsdp1", "hf-trainer", "deepspeed", "axolotl",
)  # fmt: skip
"""Targets that shard whatever model the script builds."""

_MEGATRON = frozenset({"mamba2", "nemotron_h", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"})
FAMILIES: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "megatron-lm": _MEGATRON,
        "megatron-bridge": _MEGATRON,
        "maxtext": frozenset({"qwen3_next"}),
    }
)
"""Target with models of its own -> families among them; others have none.

Source: NVIDIA/Megatron-LM@d98e8a64 ``megatron/core/ssm/mamba_mixer.py`` and ``gated_delta_net/gdn.py``;
NVIDIA-NeMo/Megatron-Bridge@067f987 ``src/megatron/bridge/models/qwen/qwen35_bridge.py`` (the same operator's flags);
AI-Hypercomputer/maxtext@e591f30 ``src/maxtext/configs/models/qwen3-next-80b-a3b.yml``;
pytorch/torchtitan 0.3.0 ``torchtitan/models``.
"""

SPLITTING = ("jax", "megatron-lm", "megatron-bridge")
"""Targets that give tensor ranks heads of their own: transformers' modules hold their projections as one weight."""


def check_known(plan: Plan, target: str) -> None:
    """Raises ``Unsupported`` where ``target`` has no such linear recurrences, however the plan is changed."""
    if target in MODULES or plan.model.family in FAMILIES.get(target, frozenset()) or not _scans(plan):
        return
    able = [t for t in (*MODULES, *FAMILIES) if t in MODULES or plan.model.family in FAMILIES[t]]
    raise Unsupported(
        f"target {target} is not known to have the linear recurrences of {plan.model.name}; export to "
        f"{', '.join(able)}"
    )


def check_scans(plan: Plan, target: str) -> None:
    """Raises ``Unsupported`` where ``target`` has no such linear recurrences, or does not split their heads."""
    check_known(plan, target)
    if plan.plan.tensor > 1 and target not in SPLITTING and _scans(plan):
        raise Unsupported(
            f"target {target} does not split linear recurrences over tensor ranks; plan again with --tensor 1, or "
            f"export to {', '.join(SPLITTING)}"
        )


def unsplit(plan: Plan) -> tuple[str, ...]:
    """Whether some targets that have the model's linear recurrences refuse the plan's tensor ranks, in a sentence."""
    if plan.plan.tensor == 1 or not _scans(plan):
        return ()
    able = [t for t in SPLITTING if t in MODULES or plan.model.family in FAMILIES[t]]
    others = [t for t, families in FAMILIES.items() if plan.model.family in families and t not in able]
    named = f"{', '.join(others)} and " if others else ""
    return (
        f"linear recurrences are split over tensor ranks, which of the targets of exports {', '.join(able)} can: for "
        f"{named}all that shard the modules of a script plan with --tensor 1",
    )


def _scans(plan: Plan) -> bool:
    return has_scans(graph_of(plan.model, plan.job))
