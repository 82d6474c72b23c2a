"""Which number of the hardware matters: against the evaluator with that number changed by hand."""

import pytest

from planner import Plan, evaluate, plan, what_if
from planner.analysis.sensitivity import better, next_bottleneck, sensitivity


@pytest.fixture(scope="module")
def found() -> Plan:
    return plan("llama-3.2-1b", "dgx-h100:2", global_batch=64, seq_len=4096, pipeline=1, top=1)


def test_against_the_evaluator(found: Plan) -> None:
    by_number = {each.number: each.time_saved_fraction for each in sensitivity(found)}
    fast = what_if(found.cluster, {"device.memory_bandwidth": 1.1 * found.cluster.device.memory_bandwidth})
    then = evaluate(found.model_copy(update={"cluster": fast})).step_time_s
    assert by_number["memory-bandwidth"] == pytest.approx(1 - then / evaluate(found).step_time_s)


def test_a_tenth_better_saves_at_most_a_tenth(found: Plan) -> None:
    each = sensitivity(found)
    assert [s.time_saved_fraction for s in each] == sorted(
        (s.time_saved_fraction for s in each), reverse=True
    )
    assert each[0].number == "compute"
    assert all(-1e-12 <= s.time_saved_fraction <= 1 - 1 / 1.1 + 1e-12 for s in each)
    assert sum(s.time_saved_fraction for s in each) <= 1 - 1 / 1.1 + 0.02


def test_more_memory_alone_changes_nothing(found: Plan) -> None:
    assert {s.number: s for s in sensitivity(found)}["memory"].time_saved_fraction == 0


def test_the_next_bottleneck_is_one_at_its_factor(found: Plan) -> None:
    bottleneck = next_bottleneck(found)
    assert bottleneck is not None
    assert bottleneck.now == "compute"
    assert bottleneck.next != "compute"
    # with the first twice as good as that, it is certainly not the first that matters most
    peaks = found.cluster.device.peak_flops_per_second
    factor = 2 * bottleneck.at_factor
    faster = what_if(
        found.cluster, {f"device.peak_flops_per_second.{d}": factor * rate for d, rate in peaks.items()}
    )
    moved = found.model_copy(update={"cluster": faster})
    then = moved.model_copy(update={"estimate": evaluate(moved)})
    assert sensitivity(then)[0].number != "compute"


def test_latencies_shrink() -> None:
    assert better("latency", 2.0) == "0.5x"
    assert better("compute", 2.0) == "2.0x"
