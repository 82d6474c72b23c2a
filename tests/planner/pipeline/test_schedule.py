"""Schedules as text: PyTorch's files round-trip, and a schedule that cannot be complete is refused."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import InputError
from planner.pipeline.generators import SCHEDULES, generate, refusal
from planner.pipeline.schedule import Action, Pass, Schedule, check, from_csv, parse_action, to_csv

DATA = Path(__file__).parents[2] / "data" / "schedules"
FILES = sorted(DATA.glob("*.csv"))


def without_idle(text: str) -> str:
    return "".join(re.sub(",+", ",", line).strip(",") + "\n" for line in text.splitlines())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_pytorch_files_round_trip(path: Path) -> None:
    text = path.read_text()
    assert to_csv(from_csv(text)) == without_idle(text)


@given(
    st.sampled_from(sorted(SCHEDULES)),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(1, 12),
)
def test_generated_schedules_round_trip(name: str, p: int, v: int, m: int) -> None:
    if refusal(name, p, v, m):
        return
    schedule = generate(name, p, v, m)
    assert from_csv(str(schedule)) == schedule


@given(st.integers(0, 999), st.sampled_from(Pass), st.integers(0, 9999))
def test_actions_round_trip(stage: int, work: Pass, microbatch: int) -> None:
    action = Action(stage, work, microbatch)
    assert parse_action(f" {action} ") == action


def test_an_action_reads_as_pytorch_writes_it() -> None:
    assert str(Action(2, Pass.F, 0)) == "2F0"
    assert parse_action("10W3") == Action(10, Pass.W, 3)


def test_idle_and_communication_cells_are_skipped() -> None:
    lowered = "0UNSHARD,0F0,0SEND_F0,,0RECV_B0,0B0,0REDUCE_GRAD\n,1RECV_F0,1F0,1B0,1SEND_B0,1RESHARD\n\n"
    assert to_csv(from_csv(lowered)) == "0F0,0B0\n1F0,1B0\n"


def test_overlapped_pairs_are_kept() -> None:
    text = "0F0,(0F1;0B0)OVERLAP_F_B,0B1\n"
    schedule = from_csv(text)
    assert schedule.overlapped == {Action(0, Pass.F, 1)}
    assert to_csv(schedule) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the schedule is empty"),
        ("0F0,0X0", "cannot read pipeline action '0X0'; write stage, pass"),
        ("0F0,0B0\n2F0,2B0", "no work for stages [1]"),
        ("0F0,0B0,0F0", "stage 0 runs F, B, F for microbatch 0; it has to run F and B, or F, I and W"),
        ("0F0,0I0", "stage 0 runs F, I for microbatch 0"),
        ("0F0,0B0,0W0", "stage 0 runs F, B, W for microbatch 0"),
        ("0F0,0F1,0B1", "stage 0 runs F for microbatch 0"),
        ("0F0,0B0,0F2,0B2", "stage 0 runs nothing for microbatch 1"),
        ("0F0,0B0,1F0\n1B0", "rank 1 runs 1B0, but stage 1 lives on rank 0"),
        ("0F0,(0F1;0I0)OVERLAP_F_B,0W0,0B1", "0F1 overlaps with 0I0; only a forward overlaps"),
        ("0F0,(0B0;0F1)OVERLAP_F_B,0B1", "0B0 overlaps with 0F1; only a forward overlaps"),
    ],
)
def test_bad_text_is_refused_in_one_sentence(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        from_csv(text)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_schedule_by_hand_is_checked() -> None:
    good = from_csv("0F0,0B0\n1F0,1B0")
    check(good)
    for bad, message in (
        (replace(good, num_microbatches=2), "stage 0 runs nothing for microbatch 1"),
        (replace(good, stage_to_rank=(0, 5)), "stages live on ranks (0, 5), but there are 2"),
        (Schedule((*good.ranks, ()), (0, 1), 1), "rank 2 has no work"),
        (replace(good, stage_to_rank=(1, 0)), "rank 0 runs 0F0, but stage 0 lives on rank 1"),
        (replace(good, overlapped=frozenset({Action(0, Pass.F, 7)})), "0F7 overlaps with nothing"),
        (Schedule(good.ranks, (0, 1), 0), "rank 0 runs 0F0, but the schedule has stages 0 to 1"),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            check(bad)


@given(st.data())
def test_any_action_left_out_or_doubled_is_found(data: st.DataObject) -> None:
    schedule = generate("interleaved-zb", 2, 2, 4)
    rank = data.draw(st.integers(0, 1))
    actions = schedule.ranks[rank]
    place = data.draw(st.integers(0, len(actions) - 1))
    for wrong in (actions[:place] + actions[place + 1 :], (*actions, actions[place])):
        ranks = tuple(wrong if r == rank else schedule.ranks[r] for r in range(2))
        with pytest.raises(InputError, match=f"stage {actions[place].stage} runs"):
            check(replace(schedule, ranks=ranks))
