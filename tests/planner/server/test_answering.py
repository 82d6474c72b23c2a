"""Answers: the search's own, remembered, and given up when nobody waits for them."""

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from planner import api
from planner.errors import Infeasible
from planner.server import answering, keeping
from planner.server.answering import Desk, Overtaken, TooLong
from planner.server.asking import Asked, Nearby
from planner.server.keeping import Shelf


def asked(question: dict[str, Any], **changes: Any) -> Asked:
    return Asked.model_validate({**question, **changes})


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every search that is made."""
    made: list[Any] = []
    search = answering.search.plan

    def counted(*question: Any, **options: Any) -> Any:
        made.append(question)
        return search(*question, **options)

    monkeypatch.setattr(answering.search, "plan", counted)
    return made


def test_the_answer_is_that_of_the_search(question: dict[str, Any]) -> None:
    reply = Desk().answer(asked(question, pins={"pipeline": 2}))
    best = api.plan("llama-3.2-1b", "dgx-h100:1", global_batch=64, seq_len=2048, pipeline=2)
    assert reply.plan.plan == best.plan
    assert reply.plan.estimate == best.estimate
    assert 'id="charts"' in reply.html
    assert 'id="step"' in reply.html
    assert "<script>" not in reply.html  # data only: what comes from the server is never run


def test_what_was_asked_before_is_not_searched_again(question: dict[str, Any], searches: list[Any]) -> None:
    desk = Desk()
    first = desk.answer(asked(question))
    assert desk.answer(asked(question)) is first
    assert len(searches) == 1
    desk.answer(asked(question, network=2))
    assert len(searches) == 2


def test_the_first_answer_is_the_best_plan_alone(question: dict[str, Any], searches: list[Any]) -> None:
    desk = Desk()
    first = desk.answer(asked(question), first=True)
    assert not first.complete
    assert not first.plan.alternatives
    assert desk.answer(asked(question), first=True) is first
    whole = desk.answer(asked(question))
    assert whole.complete
    assert whole.plan.alternatives
    for figure, around in (("time", False), ("sensitivity", True)):
        assert f'id="{figure}"' in whole.html
        assert (f'id="{figure}"' in first.html) != around
    assert first.plan.estimate is not None
    assert whole.plan.estimate is not None
    assert whole.plan.estimate.step_time_s <= first.plan.estimate.step_time_s
    assert desk.answer(asked(question), first=True) is whole
    assert len(searches) == 2


def test_first_answers_are_not_kept_on_disk(question: dict[str, Any], tmp_path: Path) -> None:
    Desk(Shelf(tmp_path)).answer(asked(question), first=True)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_takes_no_answer_away(
    question: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Shelf, key: str, plan: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Shelf, "put", full)
    assert Desk(Shelf(tmp_path)).answer(asked(question)).complete


def test_plans_written_longest_ago_make_room(
    question: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "MOST_PLANS", 2)
    shelf, plan = Shelf(tmp_path), Desk().answer(asked(question)).plan
    for age, key in ((300, "a"), (100, "b"), (200, "c")):
        shelf.put(key, plan)
        moment = time.time() - age
        os.utime(tmp_path / f"{key}.json", (moment, moment))
    shelf.put("d", plan)
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["b", "d"]


def test_the_usual_folder_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert keeping.usual_folder() == tmp_path / "meshwright" / "plans"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert keeping.usual_folder() == Path.home() / ".cache" / "meshwright" / "plans"


def test_equal_hardware_under_another_name_has_its_own_page(question: dict[str, Any]) -> None:
    desk = Desk()
    here, there = (desk.answer(asked(question, cluster=name)) for name in ("dgx-h100", "dgx-h200"))
    assert "dgx-h100" in here.title
    assert "dgx-h200" in there.title


def test_the_oldest_answers_are_forgotten(question: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "REMEMBERED", 2)
    desk = Desk()
    first = desk.answer(asked(question))
    for batch in (8, 16):
        desk.answer(asked(question, job={"global_batch": batch, "seq_len": 128}))
    assert desk.answer(asked(question)) is not first


def test_plans_outlive_the_desk(question: dict[str, Any], searches: list[Any], tmp_path: Path) -> None:
    first = Desk(Shelf(tmp_path / "cache")).answer(asked(question))
    again = Desk(Shelf(tmp_path / "cache")).answer(asked(question))
    assert len(searches) == 1
    assert again.html == first.html
    (kept,) = (tmp_path / "cache").iterdir()
    assert api.read_plan(kept).plan.plan == first.plan.plan
    kept.write_text("{")
    assert Desk(Shelf(tmp_path / "cache")).answer(asked(question)).html == first.html
    assert len(searches) == 2


def test_one_search_at_a_time_and_once(question: dict[str, Any], searches: list[Any]) -> None:
    desk, replies = Desk(), []
    threads = [
        threading.Thread(target=lambda: replies.append(desk.answer(asked(question)))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(searches) == 1
    assert len({id(reply) for reply in replies}) == 1


def test_a_newer_question_of_the_same_tab_overtakes(question: dict[str, Any], searches: list[Any]) -> None:
    desk = Desk()
    desk.answer(asked(question), "a", 5)
    with pytest.raises(Overtaken):
        desk.answer(asked(question, devices=16), "a", 4)
    assert len(searches) == 1
    desk.answer(asked(question, devices=16), "b", 4)


def test_patience_ends(question: dict[str, Any]) -> None:
    moments = iter(range(0, 10_000, 100))
    with pytest.raises(TooLong):
        Desk(patience=60.0, clock=lambda: float(next(moments))).answer(asked(question))


def test_what_does_not_fit_is_said(question: dict[str, Any]) -> None:
    large = asked(question, model="llama-3.1-405b", job={"global_batch": 64, "seq_len": 8192})
    with pytest.raises(Infeasible):
        Desk().answer(large)


def test_the_last_plan_is_carried_over(question: dict[str, Any], searches: list[Any]) -> None:
    desk, pins = Desk(), {"micro_batch": 1, "tensor": 1}
    before = asked(question, pins=pins)
    found = desk.answer(before)
    text = desk.nearby(Nearby(asked=before, before=before))
    assert text is not None
    assert found.plan.estimate is not None
    assert f"{found.plan.estimate.tokens_per_s:,.0f} tokens/s" in text
    double = desk.nearby(Nearby(asked=asked(question, devices=16, pins=pins), before=before))
    assert double is not None
    assert "dp16" in double
    assert len(searches) == 1


@pytest.mark.parametrize(
    "changes", [{"devices": 24}, {"model": "llama-3.1-8b"}, {"job": {"global_batch": 7, "seq_len": 2048}}]
)
def test_or_not_where_that_makes_no_plan(question: dict[str, Any], changes: dict[str, Any]) -> None:
    desk, before = Desk(), asked(question)
    assert desk.nearby(Nearby(asked=before, before=before)) is None  # nothing was answered yet
    desk.answer(before)
    assert desk.nearby(Nearby(asked=asked(question, **changes), before=before)) is None
