"""What is likely to be asked next, planned while nobody waits: one search at a time, given up when somebody does."""

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import zip_longest

from cluster_specs.sizing import default_sizes
from planner.errors import PlannerError
from planner.plans import Job
from planner.server.answering import Desk, Overtaken, TooLong
from planner.server.asking import Asked
from planner.server.form import BATCH, CLUSTER, DEVICES, LENGTH, MODEL, MOST_OFFERED

LIKELY = ((MODEL, DEVICES), ("llama-3.1-70b", 64), (MODEL, 64))
"""Models and devices of `CLUSTER` that are planned as soon as a server starts: what the page asks first, and what makes
the other sizes of these models quick, whose prices are the same."""

STOPS = 3
"""Sizes on either side of the last question that are planned next."""


def beginnings() -> Iterator[Asked]:
    """`LIKELY`, as the form asks it."""
    for model, devices in LIKELY:
        job = Job(global_batch=BATCH, seq_len=LENGTH, precision="bf16", optimizer="adamw")
        yield Asked(model=model, cluster=CLUSTER, devices=devices, job=job)


def neighbours(asked: Asked) -> Iterator[Asked]:
    """The next `STOPS` of the slider of sizes up and down, the nearest first."""
    sizes = default_sizes(asked.cluster, MOST_OFFERED)
    larger = [n for n in sizes if n > asked.devices][:STOPS]
    smaller = [n for n in reversed(sizes) if n < asked.devices][:STOPS]
    for pair in zip_longest(larger, smaller):
        yield from (asked.model_copy(update={"devices": n}) for n in pair if n is not None)


class Ahead:
    """A queue of questions, and the thread that has their first answers prepared."""

    def __init__(self, desk: Desk) -> None:
        """Nothing is queued yet."""
        self._desk = desk
        self._queue: deque[Asked] = deque()
        self._changed = threading.Condition()

    def start(self) -> None:
        """Prepare what is queued, now and later, on a thread that ends with the process."""
        threading.Thread(target=self._run, daemon=True).start()

    def put(self, questions: Iterable[Asked]) -> None:
        """Prepare these, and no longer what is still queued."""
        with self._changed:
            self._queue = deque(questions)
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue)
                asked = self._queue[0]
            self._desk.idle.wait()
            if self._prepared(asked):
                with self._changed:
                    if self._queue and self._queue[0] is asked:
                        self._queue.popleft()

    def _prepared(self, asked: Asked) -> bool:
        """Whether nothing is left to do for a question; what has no plan is left to whoever asks it."""
        try:
            self._desk.prepare(asked)
        except Overtaken:
            return False
        except (PlannerError, TooLong):
            return True
        return True
