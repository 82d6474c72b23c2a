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

    def beside(self, compute: float, slowdown: float) -> "Comm":
        """What shows of it beside so many seconds of compute, which it slows down by this share."""
        return self._replace(seconds=self.seconds - (1 - slowdown) * min(self.seconds, compute))


class OpCost(NamedTuple):
    """One operator on one device for one micro-batch [s]; communication inside the operator apart."""

    forward: float
    backward_input: float
    backward_weight: float
    comm_forward: tuple[Comm, ...] = ()
    comm_backward: tuple[Comm, ...] = ()
    held_backward: float = 0.0
    """Most that its backward holds beside the gradients of its inputs and results [bytes]."""

    @property
    def seconds(self) -> float:
        """Forward and backward, communication included."""
        comm = sum(c.seconds for c in (*self.comm_forward, *self.comm_backward))
        return self.forward + self.backward_input + self.backward_weight + comm


class EdgeCost(NamedTuple):
    """Resharding of one tensor between producer and consumer, and of its gradient on the way back."""

    forward: tuple[Comm, ...] = ()
    backward: tuple[Comm, ...] = ()
    again: tuple[Comm, ...] = ()
    """Gathers of ``forward`` that the gradients of the consumer's weights need once more, as nobody kept the result."""
    remade: tuple[Comm, ...] | None = None
    """``forward`` where it comes again in the backward, if that is less: what both would send is sent once."""

    def backwards(self, repeated: bool, shared: bool) -> tuple[Comm, ...]:
        """All of the backward; ``repeated``: the forward comes again in it, and its gathers are ``shared`` or not."""
        first = (self.forward if self.remade is None else self.remade) if repeated else ()
        return (*self.backward, *first, *(() if repeated and shared else self.again))

    @property
    def seconds(self) -> float:
        """Forward and backward, nothing repeated."""
        return sum(c.seconds for c in (*self.forward, *self.backward, *self.again))
