"""Costs as values: seconds kept in parts, so that a report can say where time goes."""

from dataclasses import dataclass
from typing import NamedTuple


class CommTime(NamedTuple):
    """Time of one collective on one rank [s], in the alpha-beta parts."""

    latency: float = 0.0
    transfer: float = 0.0

    @property
    def seconds(self) -> float:
        """Latency plus transfer [s]."""
        return self.latency + self.transfer


@dataclass(frozen=True, slots=True)
class ComputeTime:
    """Time of kernels on one device [s], with how long each resource was busy.

    One kernel takes the largest of its arithmetic, its memory traffic and the launch floor; kernels in
    sequence add up, so that ``seconds`` lies between the largest part and the sum of the parts.
    """

    seconds: float = 0.0
    arithmetic: float = 0.0
    memory: float = 0.0

    def __add__(self, other: "ComputeTime") -> "ComputeTime":
        """One after the other."""
        return ComputeTime(
            self.seconds + other.seconds, self.arithmetic + other.arithmetic, self.memory + other.memory
        )

    def __mul__(self, times: float) -> "ComputeTime":
        """Repeated ``times`` times."""
        return ComputeTime(self.seconds * times, self.arithmetic * times, self.memory * times)

    __rmul__ = __mul__

    @property
    def bound(self) -> str:
        """What limits it: ``arithmetic``, ``memory``, or ``launch`` where neither fills the time by half."""
        if max(self.arithmetic, self.memory) < self.seconds / 2:
            return "launch"
        return "arithmetic" if self.arithmetic >= self.memory else "memory"


def kernel_time(arithmetic: float, memory: float, launch: float = 0.0) -> ComputeTime:
    """One kernel [s]: arithmetic, memory traffic and launch overlap, the longest decides."""
    return ComputeTime(max(arithmetic, memory, launch), arithmetic, memory)
