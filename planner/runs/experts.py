"""How a run routes tokens to its experts, in the words of its source or else of its notes."""

import re
from collections.abc import Sequence

from planner.runs.origins import Origin
from planner.runs.record import RunFile
from planner.runs.vocabulary import Meaning, Table, mean

DISPATCHERS: Table = (
    (r"all[-_ ]?to[-_ ]?all|nccl", Meaning("all_to_all")),
    (r"all[-_ ]?gather", Meaning("all_gather")),
    (r"deep[-_ ]?ep|flex", Meaning("deepep")),
    (r"hybrid[-_ ]?ep", Meaning("hybridep")),
)
"""``moe_dispatcher``; Megatron's ``flex`` is DeepEP's where nothing else is said."""

ROUTINGS: Table = (
    (r"balanced|consecutive", Meaning("")),
    (r"random", Meaning("balanced")),
    (r"round[-_ ]robin|in[-_ ]turn", Meaning("consecutive")),
)
"""``expert_routing``."""

FORCED: Sequence[tuple[str, str]] = (
    (r"AutoModel", "consecutive"),
    (r"torchtitan.* balanced by force", "consecutive"),
)
"""Series and notes of runs -> routing of their benchmarks where they do not say: experts of tokens in turn
(NVIDIA-NeMo/Automodel nemo_automodel/components/moe/layers.py, ``FakeBalancedGate``; pytorch/torchtitan@b5bcd76c
torchtitan/models/common/moe.py, ``_debug_force_load_balance_routing``). Megatron Core's are random."""


def token_exchange(run: RunFile, origin: Origin) -> str:
    """By the dispatcher's name, in its field or else in the notes; without one as the origin's runs."""
    if run.parallel.moe_dispatcher is not None:
        return mean(DISPATCHERS, "moe_dispatcher", run.parallel.moe_dispatcher).value
    noted = re.search(r"(deep|hybrid)-?ep|flex", run.notes or "", re.IGNORECASE)
    return mean(DISPATCHERS, "notes", noted[0]).value if noted else origin.token_exchange


def expert_routing(run: RunFile) -> str:
    """As given, else as benchmarks of its series force it."""
    if run.parallel.expert_routing is not None:
        return mean(ROUTINGS, "expert_routing", run.parallel.expert_routing).value
    text = f"{run.series} {run.notes}"
    found = (routing for pattern, routing in FORCED if re.search(pattern, text, re.IGNORECASE))
    return next(found, "balanced")


def expert_capacity(run: RunFile) -> float | None:
    """As given, be it none, else by the notes."""
    if "moe_capacity_factor" in run.parallel.model_fields_set:
        return run.parallel.moe_capacity_factor
    noted = re.search(r"capacity[_ ]factor (\d+(\.\d+)?)", run.notes or "", re.IGNORECASE)
    return float(noted[1]) if noted else None
