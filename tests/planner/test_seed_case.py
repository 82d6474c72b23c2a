"""The case that Meshwright was first asked about: published throughputs, their order, and the plan that follows."""

import importlib.util
from itertools import pairwise
from pathlib import Path

import pytest

from planner import plan

PATH = Path(__file__).parents[2] / "examples" / "llama2_7b_two_nodes.py"
SPEC = importlib.util.spec_from_file_location("llama2_7b_two_nodes", PATH)
assert SPEC is not None
assert SPEC.loader is not None
case = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(case)

WITHIN = 1.5
"""Factor, either way; the source printed round numbers and not the micro-batch."""


@pytest.mark.parametrize("name", case.STEPS)
def test_published_throughputs_are_met(name: str) -> None:
    *how, measured = case.STEPS[name]
    assert measured / WITHIN <= case.estimate(*how).tokens_per_s <= measured * WITHIN


def test_every_fix_helps_as_it_did() -> None:
    predicted = [case.estimate(*how).tokens_per_s for *how, _ in case.STEPS.values()]
    assert all(before < after for before, after in pairwise(predicted))


def test_the_slow_network_is_why() -> None:
    """Fully sharded, nearly all of the step waits for weights that cross 50 Gbit/s."""
    *how, _ = case.STEPS["fully sharded over both nodes"]
    found = case.estimate(*how)
    assert found.time["data"] > 0.8 * found.step_time_s


@pytest.mark.usefixtures("unnamed")
@pytest.mark.parametrize("global_batch", [64, 128, 256, 512])
def test_hybrid_sharding_is_recommended(global_batch: int) -> None:
    found = plan("llama-2-7b", "a100-4x-50g:2", global_batch=global_batch, seq_len=1024)
    choice = found.plan
    assert (choice.sharding, choice.shard_degree, choice.replicate_degree) == ("HYBRID_SHARD", 4, 2)
