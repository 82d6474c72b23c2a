"""What a run computes again in the backward pass, as its source says or as its origin's runs are."""

import re
from collections.abc import Mapping

from planner.runs import vocabulary
from planner.runs.assumptions import Assumptions
from planner.runs.flop_rates import layers_per_recomputed
from planner.runs.origins import Origin
from planner.runs.record import RunFile
from planner.runs.vocabulary import UNSAID

UNKEPT: Mapping[tuple[str, str], str] = {("alternate", "fp4"): "all_but_attention"}
"""(policy, number format) -> what the policy comes to where products of the format are on none of its lists.

Source: pytorch/torchtitan@00d1c0e ``distributed/activation_checkpoint.py`` keeps ``aten.mm`` and PyTorch's own list;
pytorch/pytorch ``torch/_functorch/partitioners.py``: ``_scaled_mm_v2``, which multiplies in fp4, is on none.
"""


def recompute_every(run: RunFile, assume: Assumptions) -> int:
    """One layer in so many; where only ``n`` is printed, as the printed utilisations tell, else every other one."""
    numbered = re.search(r"every (?:(\d+)(?:st|nd|rd|th)|other|(n-?th))\b", run.parallel.recompute or "")
    if numbered is None:
        return 1
    told = layers_per_recomputed(run) if numbered[2] else None
    if told is not None:
        return assume.default("recompute_every", None, told)
    return int(numbered[1] or 2)


def recompute(run: RunFile, origin: Origin, assume: Assumptions) -> str:
    """The policy, as the run's number format leaves it."""
    policy, precision = _policy(run, origin, assume), run.parallel.precision
    if precision is None:
        return policy
    left = UNKEPT.get((policy, vocabulary.mean(vocabulary.PRECISIONS, "precision", precision).value))
    return policy if left is None else assume.default("recompute", None, left)


def _policy(run: RunFile, origin: Origin, assume: Assumptions) -> str:
    """The policy; where the source says none of it, that of its origin."""
    text = run.parallel.recompute
    if origin.recompute != "none" and text in UNSAID:
        return assume.default("recompute", None, origin.recompute)
    mixture = ((run.model.model_extra or {}).get("experts") or 0) > 1
    if mixture and text is not None and re.fullmatch(vocabulary.DENSE_MLP, text):
        return assume.default("recompute", None, "latent" if "mla_up_proj" in text else "none")
    if text == "selective":
        return vocabulary.STACK_HABITS[origin.stack].selective
    return assume.understand("recompute", text, vocabulary.RECOMPUTES, "none")
