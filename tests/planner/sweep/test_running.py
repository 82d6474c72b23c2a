"""Sweeps: every point equals a plan of its own, equal points are planned once, nothing finished is lost."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from small import AXES, PINS

from planner import plan
from planner.analysis.economics import Terms
from planner.analysis.questions import Question
from planner.errors import InputError
from planner.plans import Objective
from planner.sweep import engines
from planner.sweep.answers import TAKES_PIPELINES, ask, key_of
from planner.sweep.grid import cells
from planner.sweep.journal import Journal
from planner.sweep.running import sweep

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def answer():  # type: ignore[no-untyped-def]
    return sweep(AXES, Terms(tokens=1e10), fixed=PINS)


def test_every_point_is_a_plan_of_its_own(answer) -> None:  # type: ignore[no-untyped-def]
    assert [(p.inputs.devices, p.inputs.global_batch) for p in answer.points] == [
        (4, 32),
        (4, 64),
        (8, 32),
        (8, 64),
    ]
    own = plan("gpt2", "dgx-h100:1", global_batch=64, seq_len=1024, top=1, **PINS)
    assert answer.points[3].estimate == own.estimate
    assert answer.searches == 4


def test_economics_follow_from_the_estimate(answer) -> None:  # type: ignore[no-untyped-def]
    for point in answer.points:
        spent = point.economics
        assert spent.time_to_train_s == pytest.approx(1e10 / point.estimate.tokens_per_s / spent.goodput)
        assert spent.cost == pytest.approx(spent.time_to_train_s / 3600 * point.inputs.devices * 6.88)


def test_recommended_points_say_what_they_hang_on(answer) -> None:  # type: ignore[no-untyped-def]
    for i, point in enumerate(answer.points):
        numbers = [each.number for each in point.sensitivity]
        assert (numbers[:1] == ["compute"]) is (i in answer.recommended)
    assert len(answer.recommended) == 2


def test_schedules_have_the_names_of_others() -> None:
    (theirs,) = cells(
        {**AXES, "devices": (8,), "global_batch": (32,), "schedule": ("1F1B",)}, {"pipeline": 2}
    )
    assert theirs.question is not None
    assert theirs.question.pins.schedule == "1f1b"


def test_equal_points_are_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name, a price, or a factor of one change nothing that a plan depends on."""
    asked = []
    monkeypatch.setattr(engines, "ask", lambda q, o: asked.append(q) or ask(q, o))
    axes = {**AXES, "devices": (8,), "global_batch": (64,)}
    found = sweep({**axes, "price.per_device_hour": (2.0, 4.0), "compute": ("1x", "1.0x")}, fixed=PINS)
    assert (len(found.points), found.searches, len(asked)) == (4, 1, 1)
    cheap, dear = found.points[0].economics, found.points[2].economics
    assert cheap is not None
    assert dear is not None
    assert dear.cost == pytest.approx(2 * (cheap.cost or 0))


def test_points_without_a_plan_say_why() -> None:
    axes = {**AXES, "devices": (8, 12), "global_batch": (64,), "tensor": (1, 5)}
    fixed = {name: value for name, value in PINS.items() if name != "tensor"}
    good, five, twelve, _ = sweep(axes, fixed=fixed).points
    assert good.status == "planned"
    assert (five.status, twelve.status) == ("invalid", "invalid")
    assert "does not divide" in (five.reason or "")
    assert "nodes of 8" in (twelve.reason or "")


def test_what_cannot_fit_is_infeasible() -> None:
    axes = {
        **AXES,
        "model": ("llama-3.1-8b",),
        "devices": (1,),
        "global_batch": (8,),
        "optimizer": ("adamw",),
    }
    (point,) = sweep(axes, fixed={**PINS, "context": 1, "zero_stage": 0}).points
    assert point.status == "infeasible"
    assert "does not fit" in (point.reason or "")


@pytest.mark.parametrize(
    ("axes", "fixed", "said"),
    [
        ({**AXES, "modle": ("x",)}, {}, "model"),
        ({**AXES, "devices": ()}, {}, "no values"),
        ({name: AXES[name] for name in ("model", "devices")}, {}, "needs a cluster"),
        ({**AXES, "batch_tokens": (4096,)}, {}, "either in sequences or in tokens"),
        ({**AXES, "tensor": (1, 2)}, PINS, "both fixed and swept"),
        ({**AXES, "devices": (3,)}, {}, "no point can be planned"),
        ({**AXES, "model": ("nonsense",)}, {}, "nonsense"),
    ],
)
def test_bad_input_is_refused(axes: dict, fixed: dict, said: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(InputError, match=said):
        sweep(axes, fixed=fixed)


def test_a_batch_in_tokens_follows_the_sequence() -> None:
    axes = {name: values for name, values in AXES.items() if name != "global_batch"}
    found = list(cells({**axes, "seq_len": (512, 1024), "batch_tokens": (65536,)}, PINS))
    assert [cell.inputs.global_batch for cell in found] == [128, 64, 128, 64]


def test_tpus_have_their_own_stack() -> None:
    axes = {**AXES, "cluster": ("tpu-v4", "dgx-h100"), "devices": (8,)}
    stacks = [cell.question.job.stack for cell in cells(axes, PINS) if cell.question]
    assert stacks == ["jax-xla", "jax-xla", "torch-fsdp2", "torch-fsdp2"]
    given = [
        cell.question.job.stack for cell in cells({**axes, "stack": ("megatron",)}, PINS) if cell.question
    ]
    assert set(given) == {"megatron"}


# --- the journal ------------------------------------------------------------------------------------------


def test_a_rerun_plans_only_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = tmp_path / "points.jsonl"
    first = sweep({**AXES, "devices": (4,)}, fixed=PINS, journal=journal)
    asked = []
    monkeypatch.setattr(engines, "ask", lambda q, o: asked.append(q) or ask(q, o))
    whole = sweep(AXES, fixed=PINS, journal=journal)
    assert [q.cluster.num_devices for q in asked] == [8, 8]
    assert [p.estimate for p in whole.points[:2]] == [p.estimate for p in first.points]
    asked.clear()
    assert sweep(AXES, fixed=PINS, journal=journal) == whole
    assert asked == []


def test_a_line_cut_off_is_dropped(tmp_path: Path) -> None:
    journal = tmp_path / "points.jsonl"
    sweep({**AXES, "devices": (4,)}, fixed=PINS, journal=journal)
    whole = journal.read_bytes()
    journal.write_bytes(whole[:-40])
    with Journal(journal) as kept:
        assert len(kept.answers) == 1
    assert journal.read_bytes() == whole[: whole[:-1].rfind(b"\n") + 1]


@pytest.mark.parametrize("kept", [0, 1, 20])
def test_a_journal_cut_off_in_its_first_line_begins_anew(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "points.jsonl"
    with Journal(path):
        first = path.read_bytes()
    path.write_bytes(first[:kept])
    with Journal(path) as journal:
        assert journal.answers == {}
    assert path.read_bytes() == first


def test_a_folder_is_no_journal(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder"):
        Journal(tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("not json\n", "line 1: not a JSON object"),
        ("not json", "is no journal of a sweep"),
        ('{"schema": "meshwright/plan/1"}', "expected schema"),
        ('{\n  "schema": "meshwright/plan/1"\n}', "line 1: not a JSON object"),
        ('{"schema": "something/1"}\n', "expected schema"),
        ('{"schema": "meshwright/sweep-journal/1"}\n{"key": "a"}\n', "line 2: 'answer' is missing"),
        ('{"schema": "meshwright/sweep-journal/1"}\n{"key": "a", "answer": {"status": "odd"}}\n', "line 2"),
    ],
)
def test_other_files_are_not_overwritten(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "other.txt"
    path.write_text(content)
    with pytest.raises(InputError, match=said):
        Journal(path)
    assert path.read_text() == content


def test_two_sweeps_do_not_share_a_journal(tmp_path: Path) -> None:
    with Journal(tmp_path / "points.jsonl"), pytest.raises(InputError, match="in use"):
        Journal(tmp_path / "points.jsonl")


def test_keys_tell_questions_apart() -> None:
    """Whatever is changed, but a name or a price, is another question."""
    base = {**AXES, "devices": (8,), "global_batch": (64,)}
    changes: list[Mapping[str, tuple[object, ...]]] = [
        {},
        {"model": ("gpt2-medium",)},
        {"seq_len": (512,)},
        {"global_batch": (32,)},
        {"precision": ("fp16",)},
        {"tensor": (2,)},
        {"compute": ("2x",)},
        {"latency": ("2x",)},
        {"host.memory": ("1 TB",)},
    ]
    fixed = {name: value for name, value in PINS.items() if name != "tensor"}
    questions = [next(iter(cells({**base, **change}, fixed))).question for change in changes]  # type: ignore[dict-item]
    assert len({key_of(q, "time") for q in questions if q}) == len(changes)
    assert key_of(questions[0], "time") != key_of(questions[0], "cost")  # type: ignore[arg-type]


# --- engines ------------------------------------------------------------------------------------------------


def questions() -> dict[str, Question]:
    """By key."""
    found = [cell.question for cell in cells(AXES, PINS)]
    return {key_of(question, "time"): question for question in found if question}


@pytest.fixture(scope="module")
def here() -> dict[str, Any]:
    """Answers of one process."""
    return dict(engines.here(questions(), "time", 1))


def test_processes_answer_as_one_process_does(here: dict[str, Any]) -> None:
    assert dict(engines.processes(questions(), "time", 2)) == here


def test_a_lost_worker_is_replaced(here: dict[str, Any]) -> None:
    """The first worker to be seen is killed; every question still gets its answer."""
    import multiprocessing

    before = set(multiprocessing.active_children())
    answers = {}
    for key, answer in engines.processes(questions(), "time", 2):
        answers[key] = answer
        if len(answers) == 1:
            workers = set(multiprocessing.active_children()) - before
            os.kill(next(iter(workers)).pid or 0, signal.SIGKILL)
    assert answers == here


COMMAND = (
    "-m", "planner.cli", "what-if", "gpt2", "dgx-h100", "--devices", "4,8,16,32", "--seq-len", "512,1024",
    "--batch", "64,128,192", "--pipeline", "1", "--quiet", "--json",
)  # fmt: skip


def test_killed_at_any_moment_nothing_finished_is_lost(tmp_path: Path) -> None:
    journal = tmp_path / "points.jsonl"
    command = [sys.executable, *COMMAND, "--resume", str(journal)]
    killed = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=ROOT)
    while not journal.exists() or journal.read_bytes().count(b"\n") < 6:
        time.sleep(0.02)
        assert killed.poll() is None
    killed.kill()
    killed.wait()
    with Journal(journal) as kept:
        finished = dict(kept.answers)
    assert len(finished) >= 5
    whole = json.loads(subprocess.run(command, capture_output=True, check=True, cwd=ROOT).stdout)
    with Journal(journal) as kept:
        assert len(kept.answers) == whole["searches"]
        assert {key: kept.answers[key] for key in finished} == finished


SLOW_LINKS = {"model": ["llama-2-7b"], "cluster": ["a100-4x-50g:2"], "seq_len": [4096], "global_batch": [64]}
"""Between two nodes: `plan` warns, a curve over devices would have a kink."""


@pytest.fixture(scope="module")
def named_seconds() -> float:
    """Of the pipeline that `plan` names."""
    named = plan("llama-2-7b", "a100-4x-50g:2", global_batch=64, seq_len=4096).faster_with
    [seconds] = [each.step_time_s for each in named if each.change == "pipeline"]
    return seconds


@pytest.mark.parametrize("objective", ["time", "cost"])
def test_a_pipeline_that_plan_only_names_is_taken_for_time(
    objective: Objective, named_seconds: float
) -> None:
    [point] = sweep(SLOW_LINKS, objective=objective).points
    assert point.plan is not None
    assert point.estimate is not None
    assert (point.estimate.step_time_s == named_seconds) is (objective == "time")
    assert (point.plan.pipeline > 1) is (objective == "time")
    assert (TAKES_PIPELINES in point.warnings) is (objective == "time")


def test_a_pipeline_is_not_taken_where_it_is_pinned_to_one() -> None:
    [pinned] = sweep(SLOW_LINKS, fixed={"pipeline": 1}).points
    assert pinned.plan is not None
    assert pinned.plan.pipeline == 1
    assert TAKES_PIPELINES not in pinned.warnings
