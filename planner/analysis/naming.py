"""Plans in a few letters, as practitioners write them."""

from collections.abc import Mapping

from planner.pipeline.generators import is_written_out
from planner.plans import Parallelism

LETTERS: Mapping[str, str] = {"data": "dp", "tensor": "tp", "pipeline": "pp", "context": "cp", "expert": "ep"}
"""What practitioners call the degrees where there is no room."""


EXCHANGES: Mapping[str, str] = {
    "all_to_all": "all-to-all, a copy for each expert of a token",
    "all_gather": "all-gather, every token to every rank",
    "deepep": "DeepEP, once to each node and rank",
    "hybridep": "HybridEP, once to each node and rank",
}
"""How tokens get to their experts, in words."""


def short_name(choice: Parallelism) -> str:
    """A plan in a few letters: ``dp16 tp8 pp2 1f1b zero3 mb1 selective``."""
    degrees = [
        f"{letters}{getattr(choice, axis)}" for axis, letters in LETTERS.items() if getattr(choice, axis) > 1
    ]
    virtual = f" v{choice.virtual_stages}" if choice.virtual_stages > 1 else ""
    name = "written-order" if is_written_out(choice.schedule) else choice.schedule
    schedule = [f"{name}{virtual}"] if choice.pipeline > 1 else []
    hybrid = [f"x{choice.replicate_degree}"] if choice.zero_stage and choice.replicate_degree > 1 else []
    recompute = [choice.recompute] if choice.recompute != "none" else []
    return " ".join(
        [*degrees, *schedule, f"zero{choice.zero_stage}", *hybrid, f"mb{choice.micro_batch}", *recompute]
    )
