"""Pools for the cost of a step and the number of devices: as good as every part of every pool."""

from itertools import product

import pytest

from cluster_specs.catalog import load_cluster, what_if
from cluster_specs.cluster import ClusterSpec, PriceSpec
from cluster_specs.pools import join
from planner.errors import Infeasible, InputError
from planner.evaluation.evaluator import Evaluator
from planner.models.catalog import load_model
from planner.plans import Job, Pins, Plan
from planner.search import plan
from planner.search.rescheduling import Answer
from planner.search.unequal import UnequalSearch
from tests.planner.search.small_cases import small_llama
from tests.planner.search.unlike_pools import every_cut, mixed, tight


def two_nodes_each(gib: float) -> ClusterSpec:
    """Four A100 and four H100 with so much memory, in nodes of two; an A100 costs a third."""
    priced = {"a100-sxm-80g": 1.0, "h100-sxm-80g": 3.0}
    pools = []
    for name in ("dgx-a100-80g:2", "dgx-h100:2"):
        pool = tight(what_if(load_cluster(name), {"devices_per_node": 2}), gib)
        price = PriceSpec(per_device_hour=priced[pool.device.name])
        pools.append(pool.model_copy(update={"price": price}))
    return join(pools, None, "x")


def money(answer: Plan | Answer) -> float:
    """Of a step, in prices of a device for a second."""
    used = {stage.devices for stage in answer.plan.stages}
    return answer.estimate.step_time_s * sum((end - start) * (1 if start < 4 else 3) for start, end in used)


@pytest.mark.parametrize(
    ("objective", "gib"), [("cost", 2.4), ("cost", 2.8), ("cost", 80.0), ("devices", 2.4), ("devices", 2.8)]
)
def test_other_objectives_equal_brute_force(objective: str, gib: float) -> None:
    """Where both pools are needed, one, or a part of one."""
    cluster, job = two_nodes_each(gib), Job(global_batch=4, seq_len=2048, stack="megatron")
    model = small_llama(num_hidden_layers=3)
    pins = Pins(context=1, zero_stage=1, schedule="1f1b")
    evaluator = Evaluator(model, cluster, job)
    answers: list[Answer] = []
    for part in product((0, 2, 4), repeat=2):
        if all(part):
            search = UnequalSearch(evaluator, pins, part)
            answers += [
                answer
                for combination in search.combinations()
                for stages in every_cut(search, combination)
                if (answer := search.priced(combination, search.submeshes(combination), stages)) is not None
            ]
    for k, pool in enumerate(cluster.pools):
        try:
            alone = plan(model, pool, job, pins, objective)
        except Infeasible:
            continue
        moved = tuple(
            stage.model_copy(update={"devices": tuple(end + 4 * k for end in stage.devices)})
            for stage in alone.plan.stages
        )
        answers.append(Answer(alone.plan.model_copy(update={"stages": moved}), alone.estimate))

    def value(answer: Plan | Answer) -> tuple[float, float]:
        seconds = answer.estimate.step_time_s
        return (money(answer) if objective == "cost" else answer.plan.num_devices, seconds)

    found = plan(model, cluster, job, pins, objective)
    assert value(found) == pytest.approx(min(value(answer) for answer in answers))
    assert found.optimality.gap >= 0


def test_the_cost_of_pools_needs_their_prices() -> None:
    free = mixed()
    unknown = free.model_copy(update={"others": (free.others[0].model_copy(update={"price": None}),)})
    with pytest.raises(InputError, match="no price of h100-sxm-80g"):
        plan(small_llama(), unknown, Job(global_batch=8, seq_len=1024), None, "cost")


def test_pools_on_which_nothing_fits_name_how_to_ask_of_one() -> None:
    cluster = join([load_cluster("dgx-a100-80g:1x1"), load_cluster("dgx-h100:1x1")], None, "two devices")
    with pytest.raises(Infeasible, match="alone or together") as refusal:
        plan(load_model("llama-2-13b"), cluster, Job(global_batch=2, seq_len=1024))
    assert "`meshwright fit` on one of the pools" in refusal.value.least_change
