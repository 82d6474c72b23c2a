"""Around a plan: every figure against a search of its own."""

import pytest

from cluster_specs.catalog import load_cluster
from cluster_specs.sizing import neighbours
from planner import load_model, plan
from planner.analysis.questions import Question
from planner.plans import Job, Pins
from planner.report.sweeps import outlook_text
from planner.sweep.outlook import Outlook, outlook

JOB = {"global_batch": 32, "seq_len": 1024}
PINS = {"pipeline": 1, "tensor": 1}


@pytest.fixture(scope="module")
def around() -> Outlook:
    question = Question(load_model("gpt2"), load_cluster("dgx-h100:1"), Job(**JOB), Pins(**PINS))  # type: ignore[arg-type]
    return outlook(question, threshold=0.9)


def test_sizes_are_plans(around: Outlook) -> None:
    by_size = {size.devices: size for size in around.sizes}
    assert list(by_size) == [1, 2, 4, 8, 16, 32, 64, 128]
    own = plan("gpt2", "dgx-h100:2", top=1, **JOB, **PINS)
    assert by_size[16].tokens_per_s == own.estimate.tokens_per_s
    assert by_size[64].tokens_per_s is None  # a batch of 32 cannot be dealt out to 64
    assert [size.devices for size in around.sizes if not size.divides] == [64, 128]
    assert "64: the batch does not divide, 128: the batch does not divide" in " ".join(
        outlook_text(around).split()
    )
    assert around.smallest_devices == 1


def test_the_threshold_is_crossed_where_it_says(around: Outlook) -> None:
    shares = {size.devices: size.efficiency for size in around.sizes if size.efficiency is not None}
    below = [n for n, share in shares.items() if share < 0.9]
    assert around.devices_below_threshold == min(below)


def test_replanning_saves_no_less_than_nothing(around: Outlook) -> None:
    saved = [each.time_saved_fraction for each in around.replanned]
    assert saved == sorted(saved, reverse=True)
    assert min(saved) >= -1e-9
    assert {each.number for each in around.replanned} >= {"compute", "memory", "memory-bandwidth"}


def test_the_longest_sequence_is_the_models(around: Outlook) -> None:
    assert around.longest_seq_len == 1024


@pytest.mark.parametrize("source", ["dgx-h100:3", "dgx-h100:1", "tpu-v5p:4x4x4"])
def test_neighbours_contain_the_cluster(source: str) -> None:
    cluster = load_cluster(source)
    counts = [other.num_devices for other in neighbours(cluster)]
    assert counts == sorted(counts)
    assert cluster.num_devices in counts
    assert counts[0] < cluster.num_devices < counts[-1]
