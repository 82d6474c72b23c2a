"""A training run that fails at random, event by event: the witness of the closed form of goodput."""

import heapq
import random
from collections import Counter
from typing import NamedTuple


class Case(NamedTuple):
    """A run and what strikes it; times in seconds."""

    rate: float
    repair_share: float
    checkpoint: float
    interval: float
    restart: float
    repair: float = 0.0
    spares: int = 0


class Run:
    """One run; ``spent`` has the seconds by what it did with them."""

    def __init__(self, case: Case, seed: int, random_repairs: bool) -> None:
        self.case, self.random_repairs = case, random_repairs
        self.chance = random.Random(seed)
        self.spent: Counter[str] = Counter()
        self.now = 0.0
        self.away: list[float] = []  # when nodes in repair come back

    def attempt(self, seconds: float) -> float | None:
        """None if ``seconds`` pass without a failure, else when in them it struck."""
        failure = self.chance.expovariate(self.case.rate)
        self.now += min(failure, seconds)
        return failure if failure < seconds else None

    def lose_a_node(self) -> None:
        """Perhaps send a node to repair, and wait for one where no spare is left."""
        repair = self.case.repair
        if not repair or self.chance.random() >= self.case.repair_share:
            return
        while self.away and self.away[0] <= self.now:
            heapq.heappop(self.away)
        heapq.heappush(
            self.away, self.now + (self.chance.expovariate(1 / repair) if self.random_repairs else repair)
        )
        if len(self.away) > self.case.spares:
            back = heapq.heappop(self.away)
            self.spent["repairs"] += back - self.now
            self.now = back

    def recover(self) -> None:
        """Restart until a restart is not itself struck."""
        self.lose_a_node()
        while (struck := self.attempt(self.case.restart)) is not None:
            self.spent["restarts"] += struck
            self.lose_a_node()
        self.spent["restarts"] += self.case.restart

    def stretch(self) -> None:
        """Train for an interval and write a checkpoint, however often it takes."""
        case = self.case
        while (struck := self.attempt(case.interval + case.checkpoint)) is not None:
            self.spent["rework"] += struck
            self.recover()
        self.spent["useful"] += case.interval
        self.spent["checkpoints"] += case.checkpoint


def simulate(case: Case, failures: int, seed: int, random_repairs: bool = False) -> Counter[str]:
    """Seconds by what a run did with them, that is long enough for about so many failures."""
    run = Run(case, seed, random_repairs)
    for _ in range(int(failures / (case.interval * case.rate))):
        run.stretch()
    return run.spent
