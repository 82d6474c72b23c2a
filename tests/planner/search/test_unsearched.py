"""Pipelines that the rules of the space leave out: named where they are faster, by their own price."""

import pytest

from planner import explain, plan
from planner.plans import Pins
from planner.search import faster_pipeline


def test_a_pipeline_over_slow_links_is_named_with_the_time_that_asking_for_it_gives() -> None:
    answer = plan("llama-2-7b", "a100-4x-50g:2", global_batch=64, seq_len=4096)
    named = [warning for warning in answer.warnings if "--pipeline 2" in warning]
    asked = plan("llama-2-7b", "a100-4x-50g:2", global_batch=64, seq_len=4096, pipeline=2)
    assert answer.plan.pipeline == 1
    assert asked.estimate is not None
    assert answer.estimate is not None
    assert asked.estimate.step_time_s < answer.estimate.step_time_s
    assert len(named) == 1
    assert f"{asked.estimate.step_time_s:.2f} s a step" in named[0]
    assert "stages joined by slow links help (--pipeline 2)" in explain(answer)


@pytest.mark.parametrize(
    ("cluster", "pins"),
    [
        ("dgx-h100:1", Pins()),  # one domain
        ("a100-4x-50g:2", Pins(pipeline=1)),  # pipelines were forbidden
        ("dgx-h100:2", Pins()),  # links so fast that none is faster
    ],
)
def test_nothing_is_named_where_none_was_left_out_or_none_is_faster(cluster: str, pins: Pins) -> None:
    answer = plan("llama-2-7b", cluster, pins=pins, global_batch=64, seq_len=4096)
    assert faster_pipeline(answer, pins) is None
    assert not [warning for warning in answer.warnings if "--pipeline" in warning]


def test_pipelines_over_pools_or_unlike_stages_were_searched_and_are_not_named() -> None:
    pools = plan("llama-2-7b", "a100-4x-50g:2+a100-4x-50g:2", global_batch=64, seq_len=4096, pipeline=1)
    assert faster_pipeline(pools) is None
    unequal = Pins(unequal_stages=True)
    assert (
        faster_pipeline(plan("llama-2-7b", "a100-4x-50g:2", global_batch=64, seq_len=4096), unequal) is None
    )
