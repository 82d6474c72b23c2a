"""What PyTorch's allocator reserves: the replayed one by its rules, and what is predicted of its replays."""

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from replayed_allocator import MIB, Allocator

from cluster_specs.software import load_software
from planner.evaluation import evaluate, memory
from planner.evaluation.pools import held_by_pools
from planner.runs.mapping import plan_from_run
from planner.runs.record import parse_run

LINES = (Path(__file__).parent / "torch_replayed.jsonl").read_text().splitlines()
REPLAYED: dict[str, dict[str, Any]] = {row["id"]: row for row in map(json.loads, LINES)}


@pytest.mark.parametrize(
    ("size", "segment"),
    [
        (1, 2),
        (MIB, 2),
        (MIB + 1, 20),
        (10 * MIB - 512, 20),
        (10 * MIB, 10),
        (11 * MIB, 12),
        (100 * MIB + 1, 102),
    ],
)
def test_segments_have_the_documented_sizes(size: int, segment: int) -> None:
    """CUDACachingAllocator.cpp: kSmallBuffer 2 MiB, kLargeBuffer 20 MiB, kMinLargeAlloc 10 MiB, kRoundLarge 2 MiB."""
    allocator = Allocator(expandable=False)
    allocator.take(size, stream=0)
    assert allocator.reserved == segment * MIB


def test_what_one_stream_freed_is_not_given_to_another() -> None:
    allocator = Allocator(expandable=False)
    allocator.give(allocator.take(64 * MIB, stream=0))
    allocator.take(64 * MIB, stream=0)
    assert allocator.reserved == 64 * MIB
    allocator.take(64 * MIB, stream=1)
    assert allocator.reserved == allocator.peak_live == 128 * MIB


@pytest.mark.parametrize(("expandable", "reserved"), [(False, 128 + 88), (True, 140)])
def test_only_expandable_segments_grow_what_is_too_small(expandable: bool, reserved: int) -> None:
    """128 MiB of which 48 are taken have no place for 88 more; an arena that grows by 20 MiB at a time has."""
    allocator = Allocator(expandable)
    allocator.give(allocator.take(128 * MIB, stream=0))
    small = [allocator.take(16 * MIB, stream=0) for _ in range(3)]
    allocator.take(88 * MIB, stream=0)
    assert allocator.reserved == reserved * MIB
    for block in small:
        allocator.give(block)
    assert allocator.live == 88 * MIB


def test_freed_neighbours_merge() -> None:
    allocator = Allocator(expandable=False)
    allocator.give(allocator.take(90 * MIB, stream=0))
    parts = [allocator.take(30 * MIB, stream=0) for _ in range(3)]
    for part in (parts[0], parts[2], parts[1]):
        allocator.give(part)
    allocator.take(90 * MIB, stream=0)
    assert allocator.reserved == 90 * MIB


@pytest.mark.parametrize("run", sorted(REPLAYED))
def test_what_streams_hold_is_predicted(run: str) -> None:
    """Of whole models, with expandable segments: within 3 %, where live tensors alone are 8 to 27 % less."""
    measured = REPLAYED[run]["measured"]
    found = evaluate(plan_from_run(parse_run(REPLAYED[run]))[0])
    assert found.tensor_bytes / 2**30 == pytest.approx(measured["tensor_gib_per_gpu"], rel=0.01)
    assert found.reserved_bytes / 2**30 == pytest.approx(
        measured["reserved_expandable_gib_per_gpu"], rel=0.03
    )


@pytest.mark.parametrize(
    ("stack", "kind"),
    [("torch-fsdp2", "reserved_expandable_gib_per_gpu"), ("hf-fsdp", "reserved_gib_per_gpu")],
)
def test_arrays_without_a_place_are_the_median_of_replays(
    stack: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reserved beyond what pools hold of their own, in arrays as large as the largest; on devices with room for them,
    as near the limit the allocator gives some back.
    """
    roomy = [row | {"hardware": row["hardware"] | {"gpu": "H200-SXM-141GB"}} for row in REPLAYED.values()]
    arrays = {}
    for count in (0.0, 1.0):
        monkeypatch.setattr(
            memory, "held_by_pools", lambda rank, moments, _, n=count: held_by_pools(rank, moments, n)
        )
        arrays[count] = [evaluate(plan_from_run(parse_run(row))[0]).reserved_bytes for row in roomy]
    replayed = [row["measured"][kind] * 2**30 for row in REPLAYED.values()]
    found = [(r - none) / (one - none) for r, none, one in zip(replayed, *arrays.values(), strict=True)]
    assert load_software(stack).unplaced_arrays == pytest.approx(statistics.median(found), abs=0.05)
