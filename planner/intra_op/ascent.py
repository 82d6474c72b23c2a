"""How far, and for how long, prices of memory are moved to raise a bound."""

FURTHEST = 0.6
"""Of the bound: how far above it steps of the prices aim at most, where the best choice is not much dearer."""

SETTLING = 10
"""Sweeps before known prices move: steps are the longer the lower the bound is."""

PRICES_PER_LOOK = 50
"""Changes of the prices between two looks at the bound."""

LEAST_GAIN = 0.0003
"""Share by which the bound must rise between two looks for messages to go on."""

STEP = 0.15
"""First step, as a share of the step that would close the gap if the bound were linear and rose along it."""

MOMENTUM = 0.9
"""Share of the last direction that the next one keeps: decoded choices take too much here, then there, and only
their mean says where memory is short. It does not change how long steps are."""

PATIENCE, SHORTER, GAIN = 10, 0.7, 1e-5
"""Steps that gain less than a relative ``GAIN`` in all before prices go back to the best ones, and what the step
is multiplied by then."""


def aim(value: float, cost: float) -> float:
    """What steps of the prices aim at, given the bound and the best cost."""
    return min(cost, value + FURTHEST * max(abs(value), 1.0))


def kept_length(step: float, value: float, before: float, cost: float) -> float:
    """The step by which prices move as far as one did when the best cost was the one ``before``, not ``cost``.

    A better choice lowers what steps aim at, and says nothing of prices. At most as far as first steps do.
    """
    aimed, target = aim(value, before), aim(value, cost)
    return min(STEP, step * (aimed - value) / (target - value)) if value < target < aimed else step
