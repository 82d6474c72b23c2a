"""What a relaxation of a network says, and where it stands."""

from typing import NamedTuple

from planner.intra_op.problem import Array


class Bound(NamedTuple):
    """What messages and prices prove."""

    value: float
    margins: dict[int, Array]
    """Per node, by how much each strategy lifts the bound."""


class State(NamedTuple):
    """Where messages and prices stand."""

    prices: Array
    messages: Array
