"""How far a step may be from what is predicted: an 80 % interval, of which one in ten steps is beyond either end.

Its ends are quantiles of errors on published runs, which take longer than predicted more often, and by more, than they
take less: sources differ most in what slows them. The quantiles are data: ``cost_models/data/intervals.toml``.
"""

from typing import Literal, NamedTuple

from cost_models.constants import constants


class Spread(NamedTuple):
    """Shares by which a step of a source that was not seen may be off."""

    faster: float
    """It takes as little as ``t / (1 + faster)``."""
    slower: float
    """It takes as much as ``t (1 + slower)``."""


def spread(models: Literal["dense", "experts"]) -> Spread:
    """What such models of published runs were off by."""
    return Spread(**constants("intervals")[models])


def interval(seconds: float, off: Spread, unexplained: float = 0.0) -> tuple[float, float]:
    """The 80 % interval of a step of so many ``seconds`` [s]; ``unexplained`` [s] is what it may take longer, too."""
    return seconds / (1 + off.faster), seconds * (1 + off.slower) + unexplained
