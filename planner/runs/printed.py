"""What the peak memory that a source prints is of: all that the driver reports, or what the allocator had reserved."""

import re
from collections.abc import Mapping
from types import MappingProxyType

from planner.plans import Estimate
from planner.runs.record import RunFile

ANSWERS: Mapping[str, str] = MappingProxyType({"used": "memory_bytes", "reserved": "reserved_bytes"})
"""What is printed -> the field of `Estimate` that answers it."""

RESERVED = ("torchtitan", "ml-engineering", "prime-rl")
"""Found in the series of runs whose source prints what PyTorch's allocator has reserved.

Source: pytorch/torchtitan ``torchtitan/components/metrics.py`` (``max_reserved_gib``); stas00/ml-engineering@18fa017
``insights/when-to-upgrade-gpus/README.md`` (``max_memory_reserved``, worst rank); PrimeIntellect-ai/prime-rl@11d87ee88
``src/prime_rl/trainer/rl/train.py`` (``max_memory_reserved``).
"""


def printed_memory(run: RunFile) -> str:
    """``used`` or ``reserved``: as the run says, as its source is known to print, or as the driver reports."""
    if run.measured is not None and run.measured.memory_kind is not None:
        return run.measured.memory_kind
    found = re.search("|".join(RESERVED), run.series or "", re.IGNORECASE)
    return "reserved" if found else "used"


def answer_of(kind: str, estimate: Estimate) -> float:
    """What ``estimate`` says of the memory that is printed [bytes]."""
    return float(getattr(estimate, ANSWERS[kind]))
