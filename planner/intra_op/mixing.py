"""What prices of memory leave undecided, and the two branches that decide a part of it.

Prices mix choices that fit only on average: one of them takes too much, another leaves memory free. A branch says of
one node that it takes more than the mean of the mixture, the other that it takes less, so both mixtures end.

Source: Land and Doig, "An automatic method of solving discrete programming problems", Econometrica 28 (1960).
"""

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from planner.intra_op.messages import Relaxation
from planner.intra_op.problem import Array

FRACTION = 1e-5
"""Weights this close to one are taken as one."""

Mixture = Mapping[int, Array]
"""Per node, the weight of each strategy; they sum to one."""


def mixture(relaxation: Relaxation, steps: int, aim: Callable[[float], float]) -> Mixture:
    """How often each strategy is read off the messages while prices change so many times; best prices afterwards.

    Steps go from each bound to what ``aim`` says. Choices are read off where prices have just moved: a sweep in
    between would take the move back, and what is undecided would hardly show.
    """
    choices = []
    for _ in range(steps):
        relaxation.press_on()
        value = relaxation.value()
        relaxation.reprice(value, aim(value))
        choices.append(relaxation.decode())
    relaxation.sweep()
    relaxation.return_to_best()
    nodes = list(choices[0])
    taken = np.array([list(choice.values()) for choice in choices])
    costs = relaxation.network.costs
    return {v: np.bincount(taken[:, k], minlength=costs[v].size) / steps for k, v in enumerate(nodes)}


def most_mixed(relaxation: Relaxation, weights: Mixture) -> int:
    """The node of which the mixture says least how much it pays for memory."""
    nodes = sorted(relaxation.network.nodes)
    return max(nodes, key=lambda v: spread(relaxation.memory_costs(v), weights[v]))


def spread(memory_costs: Array, weights: Array) -> tuple[float, float, int]:
    """Variance of what the relaxation lets a node pay for memory, then how undecided it is at all."""
    undecided = float(1 - weights.max())
    if undecided < FRACTION:
        return 0.0, 0.0, weights.size
    mean = memory_costs @ weights
    return float((memory_costs - mean) ** 2 @ weights), undecided, weights.size


def deviation(memory_costs: Array, weights: Array) -> float:
    """Standard deviation of what a node pays for memory in a mixture."""
    return float(np.sqrt(spread(memory_costs, weights)[0]))


def cheaper_half(memory_costs: Array, weights: Array) -> npt.NDArray[np.bool_]:
    """Strategies that pay no more than the mean, or the likeliest alone where all pay about the same."""
    half: npt.NDArray[np.bool_] = memory_costs <= memory_costs @ weights / weights.sum()
    if half.all() or not half.any():
        half = np.arange(weights.size) == weights.argmax()
    return half
