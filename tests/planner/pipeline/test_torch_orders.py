"""Our orders against those that the installed PyTorch makes, at sizes that no recorded file has."""

from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from planner.pipeline.generators import SCHEDULES, generate, refusal
from planner.pipeline.schedule import from_csv, to_csv

schedules = pytest.importorskip("torch.distributed.pipelining.schedules")

LOOPED = [name for name, entry in SCHEDULES.items() if entry.torch_name not in (None, "GPipe", "1F1B")]
SIZES = list(product((1, 2, 3, 5, 8), (1, 2, 3), (1, 2, 3, 5, 7, 8, 9, 12, 25)))


def rank_order(name: str, p: int, v: int, m: int, rank: int) -> list[Any]:
    """What PyTorch's class makes for a rank, without stages that hold a model."""
    made = object.__new__(getattr(schedules, f"Schedule{SCHEDULES[name].torch_name}"))
    rounds = max(1, m // p)
    facts = {
        "pp_group_size": p,
        "rank": rank,
        "n_local_stages": v,
        "_num_stages": p * v,
        "num_stages": p * v,
        "_n_microbatches": m,
        "number_of_rounds": rounds,
        "microbatches_per_round": m // rounds,
        "_stages": [SimpleNamespace(stage_index=s, num_stages=p * v) for s in range(rank, p * v, p)],
    }
    for attribute, value in facts.items():
        setattr(made, attribute, value)
    return [action for action in made._calculate_single_rank_operations(rank) if action is not None]


@pytest.mark.parametrize("name", LOOPED)
def test_orders_are_pytorchs_at_odd_sizes(name: str) -> None:
    shapes = [shape for shape in SIZES if not refusal(name, *shape)]
    assert len(shapes) > 10
    for p, v, m in shapes:
        theirs = "".join(",".join(map(str, rank_order(name, p, v, m, rank))) + "\n" for rank in range(p))
        assert to_csv(generate(name, p, v, m)) == theirs


@pytest.mark.parametrize("name", SCHEDULES)
def test_pytorch_reads_what_we_write(name: str) -> None:
    """Its reader gives back every cell, and its own check of sends and receives finds that the order can run."""
    entry = SCHEDULES[name]
    shape = next(shape for shape in [(4, 1, 8), (4, 2, 8)] if not refusal(name, *shape))
    ours = generate(name, *shape)
    text = to_csv(ours)
    read = {
        rank: [schedules._Action.from_str(cell) for cell in line.split(",")]
        for rank, line in enumerate(text.splitlines())
    }
    assert "".join(",".join(map(str, actions)) + "\n" for actions in read.values()) == text
    assert from_csv(text) == ours
    if entry.copies == 1 and not ours.overlapped:  # what its check knows
        home = ours.stage_to_rank.__getitem__
        complete = schedules._add_send_recv(read, home, ours.num_stages)
        schedules._simulate_comms_compute(complete, home, ours.num_stages)
