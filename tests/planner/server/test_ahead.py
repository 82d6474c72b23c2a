"""What is planned before it is asked: likely questions, only while nobody waits, and nothing else than asked later."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from planner.server import answering
from planner.server.ahead import LIKELY, Ahead, beginnings, neighbours
from planner.server.answering import Desk, Overtaken, TooLong
from planner.server.asking import Asked


def test_the_neighbours_are_the_next_stops_of_the_slider(question: dict[str, Any]) -> None:
    def sizes(devices: int, cluster: str = "dgx-h100") -> list[int]:
        found = neighbours(Asked.model_validate({**question, "devices": devices, "cluster": cluster}))
        return [each.devices for each in found]

    assert sizes(16) == [24, 8, 32, 48]
    assert sizes(8) == [16, 24, 32]
    assert sizes(40) == [48, 32, 64, 24, 96, 16]
    assert sizes(16, "tpu-v5e") == [32, 8, 64, 4, 128, 1]


def test_what_is_likely_at_first_can_be_asked() -> None:
    asked = list(beginnings())
    assert [(each.model, each.devices) for each in asked] == list(LIKELY)
    assert all(each.question().cluster.num_devices == each.devices for each in asked)


def test_prepared_answers_are_there(question: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    desk, asked = Desk(), Asked.model_validate(question)
    desk.prepare(asked)
    monkeypatch.setattr(answering.search, "plan", None)
    assert not desk.answer(asked, first=True).complete


def test_whoever_waits_goes_first(question: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A search ahead is given up when somebody asks, and taken up again afterwards."""
    desk, search = Desk(), answering.search.plan
    started, order = threading.Event(), []

    def slow(*given: Any, progress: Callable[[int, int], None], **options: Any) -> Any:
        devices = given[1].num_devices
        if devices == 16:
            started.set()
            while not order:  # until the question below is answered, as a long search would
                progress(0, 1)
        order.append(devices)
        return search(*given, progress=progress, **options)

    monkeypatch.setattr(answering.search, "plan", slow)
    ahead = Ahead(desk)
    ahead.put([Asked.model_validate({**question, "devices": 16})])
    ahead.start()
    assert started.wait(30)
    desk.answer(Asked.model_validate(question))
    for _ in range(600):
        if order == [8, 16]:
            break
        threading.Event().wait(0.05)
    assert order == [8, 16]


def test_what_has_no_plan_is_passed_over(question: dict[str, Any]) -> None:
    desk = Desk()
    ahead = Ahead(desk)
    large = {"model": "llama-3.1-405b", "job": {"global_batch": 64, "seq_len": 8192}}
    ahead.put([Asked.model_validate({**question, **large}), Asked.model_validate(question)])
    ahead.start()
    for _ in range(600):
        if desk._replies:
            break
        threading.Event().wait(0.05)
    assert [key[1] for key in desk._replies] == ["llama-3.2-1b"]


def test_long_searches_are_left_to_whoever_asks(question: dict[str, Any]) -> None:
    moments = iter(range(0, 10_000, 15))
    with pytest.raises(TooLong):
        Desk(clock=lambda: float(next(moments))).prepare(Asked.model_validate(question))


def test_nothing_is_prepared_while_somebody_waits(question: dict[str, Any]) -> None:
    desk = Desk()
    desk.idle.clear()
    with pytest.raises(Overtaken):
        desk.prepare(Asked.model_validate(question))
