"""What operators and reshardings cost on one device."""

from typing import NamedTuple


class Comm(NamedTuple):
    """One priced collective."""

    collective: str
    axes: tuple[str, ...]
    seconds: float
    sent_bytes: float
    """Bytes that one device sends."""
    ranks: int = 0
    """Of a collective over the tensor axis."""


class OpCost(NamedTuple):
    """One operator on one device for one micro-batch [s]; communication inside the operator apart."""

    forward: float
    backward_input: float
    backward_weight: float
    comm_forward: tuple[Comm, ...] = ()
    comm_backward: tuple[Comm, ...] = ()

    @property
    def seconds(self) -> float:
        """Forward and backward, communication included."""
        comm = sum(c.seconds for c in (*self.comm_forward, *self.comm_backward))
        return self.forward + self.backward_input + self.backward_weight + comm


class EdgeCost(NamedTuple):
    """Resharding of one tensor between producer and consumer, and of its gradient on the way back."""

    forward: tuple[Comm, ...] = ()
    backward: tuple[Comm, ...] = ()

    @property
    def seconds(self) -> float:
        """Forward and backward."""
        return sum(c.seconds for c in (*self.forward, *self.backward))
