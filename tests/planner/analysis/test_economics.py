"""What training with a plan takes: worked from its parts, and held to published runs."""

import math

import pytest

from cluster_specs.catalog import load_cluster
from planner import Plan, Terms, economics, what_if
from planner import plan as find
from planner.analysis.budget import scaled
from planner.errors import InputError, UnknownName
from planner.models.catalog import load_model
from planner.plans import Job

DAY = 86400.0


@pytest.fixture
def sold(plan: Plan) -> Plan:
    """The made-up plan, at 2 USD an hour and 700 W."""
    return plan.model_copy(
        update={"cluster": what_if(plan.cluster, {"price.per_device_hour": 2.0, "device.power": 700.0})}
    )


def test_without_failures_it_is_tokens_over_rate(sold: Plan) -> None:
    assert sold.estimate is not None
    spent = economics(sold, Terms(tokens=1e10, failures=False))
    seconds = 1e10 / sold.estimate.tokens_per_s
    assert spent.time_to_train_s == pytest.approx(seconds)
    assert (spent.goodput, spent.lost, spent.checkpoint_interval_s) == (1, {}, None)
    assert spent.device_hours == pytest.approx(16 * seconds / 3600)
    assert spent.cost == pytest.approx(2 * spent.device_hours)
    assert spent.tokens_per_dollar == pytest.approx(1e10 / (2 * spent.device_hours))


def test_failures_take_what_goodput_says(sold: Plan) -> None:
    spent = economics(sold, Terms(tokens=1e10))
    ideal = economics(sold, Terms(tokens=1e10, failures=False))
    assert spent.time_to_train_s == pytest.approx(ideal.time_to_train_s / spent.goodput)
    assert sum(spent.lost.values()) == pytest.approx(1 - spent.goodput)
    low, high = spent.time_to_train_interval_s
    assert low < spent.time_to_train_s < high


def test_spares_are_paid_for_and_keep_it_running(sold: Plan) -> None:
    hard = {"tokens": 1e12, "device_mtbf_s": 400 * 3600.0, "repair_s": 10 * DAY}
    alone, spared = economics(sold, Terms(**hard)), economics(sold, Terms(**hard, spares=2))
    assert spared.devices == alone.devices + 16
    assert spared.time_to_train_s < alone.time_to_train_s
    assert spared.lost["repairs"] < alone.lost["repairs"]


def test_energy_is_between_idle_and_full(sold: Plan) -> None:
    """Of this step, 8.25 of 12.5 s compute."""
    spent = economics(sold, Terms(failures=False, facility_overhead=1.2, grid_kg_per_kwh=0.5))
    watts = 16 * 1050 * (0.37 + 0.63 * 8.25 / 12.5)
    assert spent.power_w == pytest.approx(1.2 * watts)
    assert spent.energy_j == pytest.approx(1.2 * watts * spent.time_to_train_s)
    assert spent.carbon_kg == pytest.approx(0.5 * (spent.energy_j or 0) / 3.6e6)


def test_what_is_not_known_is_said(plan: Plan) -> None:
    spent = economics(plan)
    assert (spent.cost, spent.tokens_per_dollar, spent.energy_j, spent.carbon_kg) == (None, None, None, None)
    assert any("no on-demand price" in why for why in spent.unknown)
    assert any("power of test-gpu is not known" in why for why in spent.unknown)


@pytest.mark.parametrize(("kind", "price"), [("on-demand", 6.88), ("reserved", 4.9162), ("spot", 1.8193)])
def test_ways_of_buying(plan: Plan, kind: str, price: float | None) -> None:
    rented = plan.model_copy(update={"cluster": load_cluster("dgx-h100:2")})
    assert economics(rented, Terms(price_kind=kind)).price_per_device_hour == price  # type: ignore[arg-type]
    assert economics(rented, Terms(price_kind=kind, price_per_device_hour=1.5)).price_per_device_hour == 1.5  # type: ignore[arg-type]


def test_every_default_is_listed_and_every_choice_is_not(sold: Plan) -> None:
    given = Terms(
        device_mtbf_s=1e9, node_mtbf_s=1e8, checkpoint_s=10, restart_s=60, repair_s=0, facility_overhead=1.1
    )
    defaults = {"device_mtbf_s", "node_mtbf_s", "checkpoint_s", "restart_s", "repair_s", "facility_overhead"}
    assert defaults <= set(economics(sold).assumed)
    assert not defaults & set(economics(sold, given).assumed)


def test_the_cost_objective_is_the_cheapest_by_the_same_numbers() -> None:
    """On one node, for a small model: any even part of it may be used."""
    fields = {"global_batch": 32, "seq_len": 1024, "pipeline": 1, "top": 1}
    cheap = find("gpt2", "dgx-h100:1", objective="cost", **fields)  # type: ignore[arg-type]
    terms = Terms(failures=False)
    least = economics(cheap, terms).cost
    assert least is not None
    for devices in (1, 2, 4, 8):
        part = what_if(load_cluster("dgx-h100:1"), {"devices_per_node": devices})
        other = economics(find("gpt2", part, **fields), terms).cost  # type: ignore[arg-type]
        assert other is not None
        assert least <= other * (1 + 1e-9)


def test_llama_3_1_405b_took_30_84_million_hours(plan: Plan) -> None:
    """Model card: 30.84e6 hours of H100 at 700 W. At the 400 TFLOP/s that its report measures on 16384 of them
    (arXiv:2407.21783, table 4), 15.6e12 tokens and default failures come to within a tenth."""
    assert plan.estimate is not None
    model = load_model("llama-3.1-405b")
    rate = 16384 * 400e12 / (6 * model.parameters)
    estimate = plan.estimate.model_copy(update={"tokens_per_s": rate})
    cluster = load_cluster("dgx-h100:2048")
    degrees = {"data": 128, "tensor": 8, "pipeline": 16, "context": 1, "expert": 1}
    big = plan.plan.model_copy(update={**degrees, "stages": ()})
    job = Job(global_batch=2048, seq_len=8192)
    run = plan.model_copy(
        update={"model": model, "cluster": cluster, "job": job, "plan": big, "estimate": estimate}
    )
    spent = economics(run, Terms(tokens=15.6e12))
    assert 0.9 < spent.goodput < 0.97
    assert spent.device_hours == pytest.approx(30.84e6, rel=0.1)


# --- from compute to tokens -------------------------------------------------------------------------------


def test_a_law_chooses_model_and_tokens() -> None:
    free = scaled(5.76e23, "chinchilla")
    count = load_model(free.model).parameters
    assert abs(math.log(count / 72e9)) < math.log(1.2)
    assert free.tokens == pytest.approx(5.76e23 / 6 / count)
    kept = scaled(5.76e23, "chinchilla", "llama-3.1-8b")
    assert kept.tokens == pytest.approx(5.76e23 / 6 / load_model("llama-3.1-8b").parameters)


def test_laws_that_do_not_exist_are_refused() -> None:
    with pytest.raises(UnknownName):
        scaled(1e24, "chinchillla")
    with pytest.raises(InputError):
        scaled(-1, "chinchilla")
