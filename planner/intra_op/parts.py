"""The best choice of a part of a network whose memory is limited: messages and prices leave out ever more of it.

They are sent between classes of strategies (`planner.intra_op.compact`), so that a pass takes milliseconds. What is
left of the part when they leave out no more has its tables written out for branches and the integer program.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from planner.errors import Infeasible, SolverStopped
from planner.intra_op import clock
from planner.intra_op.answers import NOTHING, NetworkAnswer, combined
from planner.intra_op.anytime import solve_network
from planner.intra_op.ascent import aim
from planner.intra_op.bounds import Bound
from planner.intra_op.compact import Compact
from planner.intra_op.folding import MOST_SUMS_OF_A_PART, fold
from planner.intra_op.liveness import fits, settle
from planner.intra_op.messages import MARGIN, Relaxation
from planner.intra_op.shrinking import shrink
from planner.intra_op.unlimited import solve_unlimited

STEPS = 25
"""Of the prices between two looks at the bound and at a choice."""

CLOSED, GAINED = 0.5, 3e-3
"""Of what the bound lacks, or of the bound if that is less: what so many steps must gain for more to follow."""

BEYOND = 3e-3
"""Of the most that a choice may cost: how far above it steps of the prices aim, so that they do not end short of it."""

SMALLER = 0.8
"""Of the strategies of a part: what must be left at most for messages to start anew there."""


PATIENCE = 4.0
"""Times as long as messages took, in which what is left of a part is decided where a known choice will do."""


class TooLarge(Exception):
    """What is left of a part has more entries than are to be decided."""


def cheapest_within(
    network: Compact,
    bound: Bound,
    least: float,
    most: float,
    prices: Mapping[int, float],
    deadline: float,
    largest: float = np.inf,
    near: float = -np.inf,
) -> NetworkAnswer:
    """The best choice of a network if it costs at most so much, by original numbers.

    Where there is none, or none was found, a dearer one may be given, or none at ``inf``; the lower bound is just above
    ``most`` at most. No choice costs less than ``least``. ``bound`` is what messages say of the network, and ``prices``
    of memory, by original row, are where others start from. Where a choice that costs ``near`` or less turns up, the
    part may take no long time, as the caller would do better to look below that. Raises `TooLarge` where more than
    ``largest`` entries of tables are left to be decided.
    """
    best, size, began = replace(NOTHING, lower_bound=least), np.inf, clock.now()
    try:
        while True:
            part = left(network, bound, most)
            if not part.rows.size:
                return combined(solve_unlimited(part, deadline, most + 1), best)
            now = clock.now()
            if part.num_strategies > SMALLER * size or now > deadline:
                if best.cost <= near:
                    deadline = min(deadline, now + PATIENCE * (now - began))
                return combined(_decided(part, prices, deadline, most + 1, largest), best)
            size, relaxation = part.num_strategies, Relaxation(part, prices)
            best = combined(ascend(part, relaxation, most, deadline, best.lower_bound), best)
            most = min(most, best.cost - 1)
            if best.lower_bound > most:
                return replace(best, lower_bound=most + 1)
            network, bound, prices = part, relaxation.bound(), relaxation.known_prices
            network.absorb(relaxation.exact_messages)
    except Infeasible:  # nothing costs so little
        return replace(best, lower_bound=most + 1)


def ascend(
    part: Compact, relaxation: Relaxation, most: float, deadline: float, least: float = -np.inf
) -> NetworkAnswer:
    """Better messages and prices, while they lift the bound ``least`` and do not lift it above ``most``.

    The best choice that was read off them and fits, and a bound.
    """
    best, helps = replace(NOTHING, lower_bound=least), True
    while helps and best.lower_bound <= min(most, best.cost - 1):
        before = relaxation.proven()
        for _ in range(STEPS):
            relaxation.sweep()
            reached = relaxation.value()
            relaxation.reprice(reached, aim(reached, max(reached, most + BEYOND * max(abs(most), 1.0))))
            if clock.now() > deadline:
                break
        relaxation.sweep()
        choice, cost = relaxation.priced_decode()
        improved = relaxation.improve(choice)
        for found, costs in ((choice, cost), (improved, part.cost(improved))):
            if costs < best.cost - 0.5 and fits(part, found):
                best = combined(NetworkAnswer(part.expand(found), float(np.rint(costs)), -np.inf), best)
        relaxation.return_to_best()
        value = relaxation.best - MARGIN * abs(relaxation.best)
        best = combined(replace(NOTHING, lower_bound=value), best)
        lacks = min(most, best.cost - 1) - before
        gained = relaxation.best - before
        helps = gained > min(CLOSED * lacks, GAINED * abs(value)) and clock.now() <= deadline
    return best


def left(network: Compact, bound: Bound, most: float) -> Compact:
    """What choices of at most so much contain, without nodes whose memory no longer matters.

    Raises `Infeasible` where there is none.
    """
    slack, size = most - bound.value + MARGIN * abs(bound.value), -1
    part = network.only({v: np.flatnonzero(margins <= slack) for v, margins in bound.margins.items()})
    while size != part.num_strategies:
        size = part.num_strategies
        settle(part)
        part.propagate()
    fold(part, MOST_SUMS_OF_A_PART)
    part.propagate()
    return part


def _decided(
    part: Compact, prices: Mapping[int, float], deadline: float, below: float, largest: float
) -> NetworkAnswer:
    """The best choice of a part with all its tables, by original numbers, if it costs less than ``below``."""
    network = part.written_out()
    try:
        shrink(network, deadline)
        if network.size > largest:
            raise TooLarge
        if network.rows.size:
            answer = solve_network(network, deadline, below, prices)
        else:
            answer = solve_unlimited(Compact.of(network), deadline, below)
            answer = replace(answer, choice=network.expand(answer.choice) if answer.choice else {})
    except SolverStopped:
        return NOTHING
    return replace(answer, choice=part.expand(answer.choice) if answer.cost < np.inf else {})
