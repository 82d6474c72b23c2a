"""Generated orders equal PyTorch's own, action by action; each schedule keeps its published promises."""

from pathlib import Path

import pytest

from planner.errors import InputError, UnknownName
from planner.pipeline.dependencies import arrange
from planner.pipeline.generators import SCHEDULES, generate, refusal, stage_to_rank
from planner.pipeline.schedule import Pass, Schedule, from_csv

DATA = Path(__file__).parents[2] / "data" / "schedules"
FILES = sorted(DATA.glob("*.csv"))
NAMES = {entry.torch_name: name for name, entry in SCHEDULES.items() if entry.torch_name}


def shapes(name: str) -> list[tuple[int, int, int]]:
    return [
        (p, v, m)
        for p in (1, 2, 3, 4, 6, 7)
        for v in (1, 2, 3, 4)
        for m in (1, 2, 3, 6, 8, 10, 12, 14, 16)
        if not refusal(name, p, v, m)
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_order_is_pytorchs(path: Path) -> None:
    torch_name, ranks, microbatches, virtual_stages = path.stem.split("_")
    ours = generate(NAMES[torch_name], int(ranks), int(virtual_stages), int(microbatches))
    assert ours == from_csv(path.read_text())


def test_every_schedule_of_pytorch_is_tested() -> None:
    assert {path.stem.split("_")[0] for path in FILES} == set(NAMES)


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_are_complete_and_can_run(name: str) -> None:
    assert len(shapes(name)) >= 10
    for shape in shapes(name):
        schedule = generate(name, *shape)
        arrange(schedule)  # raises where incomplete or deadlocked
        assert (schedule.num_ranks, schedule.num_stages) == (shape[0], shape[0] * shape[1])
        assert schedule.num_microbatches == shape[2]


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_table_tells_the_truth(name: str) -> None:
    entry = SCHEDULES[name]
    for shape in shapes(name):
        schedule = generate(name, *shape)
        works = {action.work for actions in schedule.ranks for action in actions}
        assert works <= ({Pass.F, Pass.B, Pass.I, Pass.W} if entry.splits_backward else {Pass.F, Pass.B})
        assert Pass.W not in works or entry.splits_backward
        assert stage_to_rank(name, shape[0], shape[1]) == schedule.stage_to_rank
        assert bool(schedule.mirrored) == (entry.copies == 2)
        homes = [rank for rank in range(shape[0]) for _ in schedule.stages_of(rank)]
        assert len(homes) == entry.copies * schedule.num_stages
    assert entry.description
    assert entry.source


def visits(schedule: Schedule, work: Pass) -> list[list[tuple[int, int]]]:
    return [[(a.stage, a.microbatch) for a in actions if a.work is work] for actions in schedule.ranks]


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 4), (4, 12), (8, 16)])
def test_zb_h1_is_pytorchs_zero_bubble_with_one_stage_per_rank(p: int, m: int) -> None:
    """The paper's ZB-H1 is derived from its handcrafted figure; PyTorch calls the same order ZB1P."""
    assert generate("zb-h1", p, 1, m) == generate("interleaved-zb", p, 1, m)


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 12), (8, 32)])
def test_splitting_the_backward_keeps_the_order_of_forwards_and_backwards(p: int, m: int) -> None:
    whole, split = generate("1f1b", p, 1, m), generate("zb-h1", p, 1, m)
    assert visits(whole, Pass.F) == visits(split, Pass.F)
    assert visits(whole, Pass.B) == visits(split, Pass.I)


def test_interleaved_is_megatrons_where_ranks_divide_microbatches() -> None:
    """Megatron-LM: warm-up 2(p-r-1) + (v-1)p, groups of p microbatches per chunk."""
    p, v, m = 4, 3, 8
    for rank, actions in enumerate(generate("interleaved", p, v, m).ranks):
        warmup = 2 * (p - rank - 1) + (v - 1) * p
        assert all(action.work is Pass.F for action in actions[: warmup + 1])
        assert actions[warmup + 1].work is Pass.B
        forwards = [action for action in actions if action.work is Pass.F]
        for step, action in enumerate(forwards):
            group, inside = divmod(step, p * v)
            assert action.stage == rank + p * (inside // p)
            assert action.microbatch == group * p + inside % p


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (("gpipe", 4, 2, 8), "schedule gpipe needs exactly 1 stages per rank, got 2"),
        (("interleaved", 4, 1, 8), "schedule interleaved needs at least 2 stages per rank, got 1"),
        (("zb-v", 4, 3, 8), "schedule zb-v needs exactly 2 stages per rank, got 3"),
        (("interleaved", 4, 2, 9), "microbatches in max(1, microbatches // ranks) equal rounds"),
        (
            ("dualpipev", 4, 2, 7),
            "at least twice as many microbatches as ranks; got 7 microbatches on 4 ranks",
        ),
        (("1f1b", 0, 1, 8), "at least one rank, stage per rank and microbatch; got 0, 1 and 8"),
    ],
)
def test_impossible_numbers_are_refused(shape: tuple[str, int, int, int], message: str) -> None:
    assert message in refusal(*shape)
    with pytest.raises(InputError) as error:
        generate(*shape)
    assert str(error.value) == refusal(*shape)


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(UnknownName, match="unknown pipeline schedule '1f1'; did you mean 1f1b"):
        generate("1f1", 4, 1, 8)


def test_what_others_call_a_schedule_leads_to_its_name() -> None:
    with pytest.raises(InputError, match=r"^unknown pipeline schedule 'DAPPLE'; here it is 1f1b$"):
        generate("DAPPLE", 4, 1, 8)
    with pytest.raises(InputError, match="here it is zb-h1"):
        generate("zb1p", 4, 1, 8)
    called = [name for entry in SCHEDULES.values() for name in entry.also]
    assert len({*called, *SCHEDULES}) == len(called) + len(SCHEDULES)
