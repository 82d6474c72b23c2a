"""Answers to what browsers ask: searched once, remembered, given up where a newer question overtakes."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from cluster_specs.units import format_bytes, format_seconds
from planner import search
from planner.analysis.naming import short_name
from planner.analysis.questions import Progress, Question, known, priced
from planner.analysis.replicas import replicated
from planner.models.catalog import counted
from planner.pages.plan import plan_body, plan_content, plan_data, title
from planner.plans import Objective, Plan
from planner.server.asking import Asked, Nearby
from planner.server.keeping import Shelf
from planner.sweep.answers import key_of

REMEMBERED = 128
"""Answers that are kept, about half a megabyte each."""

TABS = 64
"""Browser tabs whose latest question is known."""

ALTERNATIVES = 5
"""Plans that a whole answer has."""

FIRST = "first"
"""Sets keys of first answers apart."""

PATIENCE = 120.0
"""A search that takes longer is given up [s]."""

WORTH_PREPARING = 20.0
"""A search that takes longer is not done before anybody asks [s]."""

Clock = Callable[[], float]
Key = tuple[str, ...]


class Reply(NamedTuple):
    """The answer as a page shows it."""

    plan: Plan
    title: str
    html: str
    """What is below the title, with the data of its charts."""
    complete: bool = True
    """What came close was looked at too, and other hardware; a first answer has the best plan alone."""


class Overtaken(Exception):
    """The same tab has asked something newer, or somebody waits while nobody asked for this."""


class TooLong(Exception):
    """The search takes longer than a page can wait."""


class Desk:
    """Takes questions, one search at a time, and remembers the answers; for several threads."""

    def __init__(
        self, shelf: Shelf | None = None, patience: float = PATIENCE, clock: Clock = time.monotonic
    ) -> None:
        """``shelf`` keeps plans for the next desk."""
        self._shelf, self._patience, self._clock = shelf, patience, clock
        self._searching = threading.Lock()
        self._noting = threading.Lock()
        self._replies: OrderedDict[Key, Reply] = OrderedDict()
        self._turns: OrderedDict[str, int] = OrderedDict()
        self._waiting = 0
        self.idle = threading.Event()
        """Set while nobody waits for an answer."""
        self.idle.set()

    def answer(self, asked: Asked, tab: str = "", turn: int = 0, first: bool = False) -> Reply:
        """The best plan for a question; ``tab`` asks its questions with growing ``turn``.

        ``first``: without what came close, where that would have to be searched for.
        Raises ``InputError`` and ``Infeasible`` as the search does, `Overtaken`, `TooLong`.
        """
        question = asked.question()
        self._note(tab, turn)
        self._count_waiting(1)
        try:
            return self._found(question, asked, self._watch(tab, turn), first)
        finally:
            self._count_waiting(-1)

    def prepare(self, asked: Asked) -> None:
        """Have the first answer to a question at hand before it is asked.

        Raises `Overtaken` as soon as somebody waits for another, and what `answer` raises.
        """
        start = self._clock()

        def watch(looked: int, total: int) -> None:
            if not self.idle.is_set():
                raise Overtaken
            if self._clock() - start > WORTH_PREPARING:
                raise TooLong

        self._found(asked.question(), asked, watch, first=True)

    def _found(self, question: Question, asked: Asked, watch: Progress, first: bool) -> Reply:
        """The answer that is remembered, or else is searched for: the first one only where the whole is not known."""
        key = _key(question, asked)
        found = self._known(key, first)
        if found is not None:
            return found
        with self._searching:
            found = self._known(key, first)  # it may have been asked twice at once
            if found is None:
                found = self._reply(key[0], question, asked.objective, watch, first)
                self._remember(key if found.complete else (*key, FIRST), found)
        return found

    def _known(self, key: Key, first: bool) -> Reply | None:
        return self._remembered(key) or (self._remembered((*key, FIRST)) if first else None)

    def _count_waiting(self, more: int) -> None:
        with self._noting:
            self._waiting += more
            (self.idle.clear if self._waiting else self.idle.set)()

    def nearby(self, near: Nearby) -> str | None:
        """What the plan that answered ``before`` does under the new question, with more or fewer replicas of it.

        No search, so at once. None where it cannot be carried over. Raises ``InputError`` as `answer`.
        """
        question, before = near.asked.question(), self._remembered(_key(near.before.question(), near.before))
        if before is None or near.asked.model != near.before.model:
            return None
        factor = question.cluster.num_devices / before.plan.cluster.num_devices
        choice = replicated(before.plan.plan, question.job.global_batch, factor)
        return None if choice is None else _carried_over(priced(question, choice))

    def _reply(
        self, key: str, question: Question, objective: Objective, watch: Progress, first: bool
    ) -> Reply:
        kept = self._shelf.get(key, question) if self._shelf else None
        if kept is not None:
            return _shown(kept)
        watch(0, 0)  # it may have waited for another search
        plan = search.plan(*question, objective=objective, top=1 if first else ALTERNATIVES, progress=watch)
        if self._shelf and not first:
            with suppress(OSError):  # a full disk takes no answer away
                self._shelf.put(key, plan)
        return _shown(plan, complete=not first)

    def _watch(self, tab: str, turn: int) -> Progress:
        """Ends a search that nobody waits for any more, or that takes too long."""
        start = self._clock()

        def watch(looked: int, total: int) -> None:
            if self._turns.get(tab, turn) > turn:
                raise Overtaken
            if self._clock() - start > self._patience:
                raise TooLong

        return watch

    def _note(self, tab: str, turn: int) -> None:
        with self._noting:
            self._turns[tab] = max(turn, self._turns.pop(tab, turn))
            while len(self._turns) > TABS:
                self._turns.popitem(last=False)

    def _remembered(self, key: Key) -> Reply | None:
        with self._noting:
            if key in self._replies:
                self._replies.move_to_end(key)
            return self._replies.get(key)

    def _remember(self, key: Key, reply: Reply) -> None:
        with self._noting:
            self._replies[key] = reply
            while len(self._replies) > REMEMBERED:
                self._replies.popitem(last=False)


def _shown(plan: Plan, complete: bool = True) -> Reply:
    content = plan_content(plan, around=complete)
    return Reply(plan, title(plan), "\n".join([*plan_body(content), *plan_data(content)]), complete)


def _carried_over(plan: Plan) -> str:
    estimate = known(plan)
    return (
        f"The last plan, carried over ({short_name(plan.plan)}): {format_seconds(estimate.step_time_s)} a step, "
        f"{estimate.tokens_per_s:,.0f} {counted(plan.model)}/s, {format_bytes(estimate.memory_bytes)} of "
        f"{format_bytes(estimate.memory_limit_bytes)}{'' if estimate.fits else ', which does not fit'}."
    )


def _key(question: Question, asked: Asked) -> Key:
    """What an answer depends on; the digest leaves out names and prices, which the page shows."""
    return key_of(question, asked.objective), asked.model, asked.cluster, str(asked.devices)
