"""How far, and for how long, prices of memory are moved to raise a bound."""

FURTHEST = 0.6
"""Of the bound: how far above it steps of the prices aim at most, where the best choice is not much dearer."""

SETTLING = 10
"""Sweeps before known prices move: steps are the longer the lower the bound is."""

PRICES_PER_LOOK = 50
"""Changes of the prices between two looks at the bound."""

LEAST_GAIN = 0.0003
"""Share by which the bound must rise between two looks for messages to go on."""
