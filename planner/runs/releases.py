"""Which release of a stack a run had: by the run's own flags, or by the date or the formats that its source names.

A run file that gives ``parallel.stack`` needs none of this.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from planner.runs.origins import Origin

VARIANTS: Mapping[tuple[str, str, bool], str] = {
    ("torch-fsdp2", "compile", False): "torch-eager",
    ("torch-compiled-loss", "compile", False): "torch-eager",
    ("kempner-forge", "compile", False): "torch-eager",
    ("prime-rl", "compile", False): "torch-eager",
    ("torch-eager", "compile", True): "torch-compiled-loss",
    ("torch-fsdp2", "async_tp", True): "torch-async-tp",
}
"""(stack, flag of a run, its value) -> the stack that the run had."""

Month = tuple[int, int]
"""Year, and month from 1."""


class Era(NamedTuple):
    """When something was so, by what sources of runs name."""

    source: str
    """Of the era itself."""
    since: Month | None = None
    """Runs from then on are in it; all that name a month, where ``until`` alone is given."""
    until: Month | None = None
    """Runs up to then are in it."""
    formats: Sequence[str] = ()
    """Data types that no earlier run has."""


class Release(NamedTuple):
    """A version of a program that is priced as a stack of its own."""

    stack: str
    """What runs of the program have otherwise."""
    program: str
    """As sources spell it, with the version where they name it."""
    had: Mapping[str, Any]
    """Fields of `Origin` that this release had otherwise."""
    era: Era
    """Of runs that had it; without months where ``program`` names the version."""


RELEASES: Sequence[Release] = (
    Release(
        "torch-fsdp2",
        "torchtitan",
        {"stack": "torch-compiled-loss"},
        Era(
            "pytorch/torchtitan@bbb1b61 (April 2025) compiles the loss; formats: its "
            "torchtitan/components/quantization/mxfp8.md and nvfp4.md, both later",
            since=(2025, 4),
            formats=("mxfp8", "nvfp4"),
        ),
    ),
    *(
        Release(
            "nemo",
            program,
            {"stack": "nemo-25.11"},
            Era(
                "NVIDIA-NeMo/Megatron-Bridge@v0.5.0 docs/releases/software-versions.md: cuDNN 9.18 in 26.02; "
                "NVIDIA/cudnn-frontend@0b1577c measures 9.13, of PyTorch's container 25.09",
                until=(2025, 11),
            ),
        )
        for program in ("Megatron-Bridge", "dgxc-benchmarking")
    ),
    Release(
        "jax-xla",
        "libtpu 0.0.51",
        {"stack": "libtpu-0.0.51"},
        Era("compiled steps of both versions: 0.0.52 sums the head's gradient last"),
    ),
    Release(
        "jax-xla",
        "JAX-Toolbox",
        {"attention": "plain"},
        Era(
            "NVIDIA/JAX-Toolbox rosetta/rosetta/projects/pax/README.md: no word of fused attention beside figures "
            "until @d80ad7fd (16 April 2024); @00056429, with the figures of container 24.04, fuses it",
            until=(2024, 3),
        ),
    ),
    Release(
        "hf-fsdp",
        "docs/reference_throughput",
        {"master_dtype": "bf16"},
        Era("VectorInstitute/vectorlm@9045f08 profiling/benchmark.py casts the model before it is sharded"),
    ),
)

FUSED_UPDATES: Mapping[str, Era] = {
    "torchtitan": Era(
        "pytorch/torchtitan@6e49885 (24 February 2025): AdamW is one kernel by default, and was one for each "
        "operation (foreach); 1.6 to 3.6 % faster steps of 8B are told there",
        since=(2025, 3),
        formats=("mxfp8", "nvfp4"),
    ),
}
"""Program, as series spell it -> when its update is one kernel, where its runs do not say."""

MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip

_NUMBERS = re.compile(r"(?<![0-9a-fA-F])(20\d\d)-?(0[1-9]|1[0-2])(?:-?[0-3]\d)?(?![0-9a-fA-F])")
_WORDS = re.compile(rf"\b({'|'.join(MONTHS)}) (20\d\d)\b")
_VERSIONS = re.compile(r"(?:\[|@v)(2\d)\.(0[1-9]|1[0-2])\b")


def month_of(source: str) -> Month | None:
    """The latest month that ``source`` names: 202506, 2025-06, June 2025, or a version by month as [25.06] or @v25.06.

    Digits of a commit are none.
    """
    named = [(int(year), int(month)) for year, month in _NUMBERS.findall(source)]
    named += [(int(year), 1 + MONTHS.index(month)) for month, year in _WORDS.findall(source)]
    named += [(2000 + int(year), int(month)) for year, month in _VERSIONS.findall(source)]
    return max(named, default=None)


def _is_in(era: Era, source: str) -> bool:
    """Whether a run of ``source`` is in the era."""
    if era.since is None and era.until is None:
        return True
    month = month_of(source)
    dated = month is not None and (era.since or month) <= month <= (era.until or month)
    return dated or any(word in source for word in era.formats)


def fuses_update(series: str, source: str) -> bool | None:
    """Whether the update of a run of ``series`` was one kernel by default; None where its stack says it."""
    eras = (era for program, era in FUSED_UPDATES.items() if program in series)
    return next((_is_in(era, source) for era in eras), None)


def told_by(stack: str, flags: Mapping[str, Any]) -> str:
    """The stack that a run's own ``flags`` make of ``stack``."""
    found = (
        other for (known, flag, on), other in VARIANTS.items() if stack == known and flags.get(flag) is on
    )
    return next(found, stack)


def variant(origin: Origin, flags: Mapping[str, Any], source: str, notes: str = "") -> Origin:
    """``origin`` as the run's own flags say, else its source, or its notes where that names no month; the first
    that applies.
    """
    if (told := told_by(origin.stack, flags)) != origin.stack:
        return origin._replace(stack=told)
    dated = source if month_of(source) else f"{source} {notes}"
    for release in RELEASES:
        if origin.stack == release.stack and release.program in source and _is_in(release.era, dated):
            return origin._replace(**release.had)
    return origin
