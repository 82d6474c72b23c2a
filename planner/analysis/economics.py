"""What training with a plan takes: time with failures, device-hours, money, energy, carbon."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from pydantic import Field

from cluster_specs.catalog import what_if
from cluster_specs.cluster import ClusterSpec, PriceKind
from cluster_specs.errors import InputError
from cluster_specs.record import Given, Record
from cluster_specs.software import load_software
from cluster_specs.units import Seconds
from cost_models import economics as physics
from cost_models import goodput
from planner.analysis.questions import known
from planner.evaluation.setting import trained_parameters
from planner.evaluation.states import saved_bytes
from planner.plans import Estimate, Job, Parallelism, Plan


class Terms(Given):
    """What economics need to know beside the plan; None is the sourced default, listed in ``assumed``."""

    tokens: float = Field(default=1e12, gt=0)
    """To train on."""
    price_kind: PriceKind = "on-demand"
    price_per_device_hour: float | None = Field(default=None, ge=0)
    """Instead of the cluster's list price."""
    grid_kg_per_kwh: float | None = Field(default=None, ge=0)
    """Carbon intensity of the electricity [kg CO2e/kWh]; without it there is no carbon figure."""
    facility_overhead: float | None = Field(default=None, ge=1)
    """Energy of the whole facility over that of its computers (PUE)."""
    device_mtbf_s: Seconds | None = Field(default=None, gt=0)
    """Mean time between failures of one device and its share of the network [s]."""
    node_mtbf_s: Seconds | None = Field(default=None, gt=0)
    """Mean time between failures of one node's other parts: host, power, software [s]."""
    checkpoint_s: Seconds | None = Field(default=None, ge=0)
    """Training stands still this long for each checkpoint [s]."""
    checkpoint_interval_s: Seconds | None = Field(default=None, gt=0)
    """Between checkpoints [s]; None is the optimum."""
    restart_s: Seconds | None = Field(default=None, ge=0)
    """From a failure to training again: detection, rescheduling, warm-up [s]; the read of the checkpoint is added."""
    repair_s: Seconds | None = Field(default=None, ge=0)
    """Until a failed node is back [s]; None: the provider replaces it within the restart."""
    spares: int = Field(default=0, ge=0)
    """Idle nodes that are paid for and take over at once."""
    straggler_fraction: float = Field(default=0.0, ge=0, lt=1)
    """Time lost to slow devices beyond what the step time holds already."""
    failures: bool = True
    """False: nothing ever fails, and no checkpoint is written."""


class Economics(Record):
    """Time, energy and money of a training run from first to last token; of what is None, ``unknown`` says why."""

    tokens: float
    time_to_train_s: float
    """Wall-clock, with failures [s]."""
    time_to_train_interval_s: tuple[float, float]
    """80 % interval, from that of the step time."""
    goodput: float
    """Share of the wall-clock in which training goes forward."""
    lost: Mapping[str, float]
    """Reason -> share of the wall-clock: checkpoints, rework, restarts, repairs, stragglers; 1 - goodput in all."""
    expected_failures: float
    checkpoint_interval_s: float | None
    """None where nothing fails."""
    devices: int
    """Paid for, spares included."""
    device_hours: float
    """Paid for."""
    currency: str
    price_per_device_hour: float | None
    cost: float | None
    """In ``currency``."""
    tokens_per_dollar: float | None
    """Per unit of ``currency``."""
    power_w: float | None
    """Average of the whole cluster, facility included [W]."""
    energy_j: float | None
    """Of the whole run, facility included [J]."""
    carbon_kg: float | None
    """CO2e of that energy [kg]."""
    assumed: Mapping[str, str]
    """Default that was used -> its value and source."""
    unknown: tuple[str, ...] = ()
    """Why figures are missing, a sentence each."""


Parts = tuple[ClusterSpec, ...]
"""What is rented, by kind of node."""

BUSY = frozenset({"compute", "recompute", "optimizer", "overlap_slowdown"})
"""Parts of a step in which the device computes; in the others it waits."""


def economics(plan: Plan, terms: Terms | None = None) -> Economics:
    """What training on ``terms.tokens`` takes.

    Raises ``InputError`` for a plan without an estimate, and where failures leave no time to train.
    """
    terms = terms or Terms()
    estimate, parts = known(plan), _rented(plan.cluster, plan.plan)
    notes = _Notes({}, [])
    trained = trained_parameters(plan.model, plan.job)
    rates, recovery, repair = _failures(estimate, trained, parts, plan.job, terms, notes)
    shares = goodput.goodput(rates, recovery, repair, terms.spares, terms.straggler_fraction)
    if shares.useful <= 0:
        raise InputError(
            "with these failures and repairs training never ends: check their times, or add spares"
        )
    stretch = terms.tokens / estimate.tokens_per_s / shares.useful / estimate.step_time_s
    low, high = (seconds * stretch for seconds in estimate.step_time_interval_s)
    seconds = estimate.step_time_s * stretch
    devices = _count(parts) + terms.spares * parts[0].devices_per_node
    hours = physics.device_hours(devices, seconds)
    price = _price(parts, terms, notes)
    money = None if price is None else physics.cost(hours, price)
    power = _power(estimate, parts, shares.useful, terms, notes)
    joules = None if power is None else power * seconds
    return Economics(
        tokens=terms.tokens,
        time_to_train_s=seconds,
        time_to_train_interval_s=(low, high),
        goodput=shares.useful,
        lost=shares.lost,
        expected_failures=rates.interruptions * seconds,
        checkpoint_interval_s=recovery.interval if math.isfinite(recovery.interval) else None,
        devices=devices,
        device_hours=hours,
        currency=_currency(parts),
        price_per_device_hour=price,
        cost=money,
        tokens_per_dollar=physics.tokens_per_money(terms.tokens, money) if money else None,
        power_w=power,
        energy_j=joules,
        carbon_kg=_carbon(joules, terms, notes),
        assumed=notes.assumed,
        unknown=tuple(notes.unknown),
    )


def price_of(cluster: ClusterSpec, terms: Terms) -> float | None:
    """Of one device of a cluster of equal nodes for an hour, as the terms say; None where it is not known."""
    if terms.price_per_device_hour is not None:
        return terms.price_per_device_hour
    return None if cluster.price is None else cluster.price.of(terms.price_kind)


def _rented(cluster: ClusterSpec, choice: Parallelism) -> Parts:
    """The part of the cluster that the plan uses, since nobody pays for the rest, by kind of node."""
    if choice.num_devices == cluster.num_devices or cluster.torus is not None:
        return cluster.pools
    per_node = min(cluster.devices_per_node, choice.num_devices)
    part = what_if(cluster, {"nodes": math.ceil(choice.num_devices / per_node), "devices_per_node": per_node})
    return (part.model_copy(update={"sources": cluster.sources}),)


def _count(parts: Parts) -> int:
    return sum(part.num_devices for part in parts)


def _currency(parts: Parts) -> str:
    return next((part.price.currency for part in parts if part.price is not None), "USD")


class _Notes(NamedTuple):
    """What was taken for granted on the way, and what could not be known."""

    assumed: dict[str, str]
    unknown: list[str]

    def or_default(self, given: float | None, name: str, value: float, unit: str, source: str) -> float:
        """``given``, or the default, noted with its source."""
        if given is not None:
            return given
        self.assumed[name] = f"{value:,.4g} {unit}".strip() + f": {source}"
        return value


def _failures(
    estimate: Estimate,
    parameters: float,
    parts: Parts,
    job: Job,
    terms: Terms,
    notes: _Notes,
) -> tuple[goodput.FailureRates, goodput.Recovery, float]:
    """How often these parts fail, what is done about it, and how long a node stays away [s]."""
    if not terms.failures:
        return goodput.FailureRates(0, 0), goodput.Recovery(0, math.inf, 0), 0.0

    def constant(given: float | None, field: str, name: str, unit: str = "s") -> float:
        return notes.or_default(given, field, goodput.default(name), unit, goodput.source(name))

    rates = goodput.failure_rates(
        _count(parts),
        sum(part.nodes for part in parts),
        constant(terms.device_mtbf_s, "device_mtbf_s", "device_mtbf"),
        constant(terms.node_mtbf_s, "node_mtbf_s", "node_mtbf"),
        constant(None, "hardware_share", "hardware_share", ""),
    )
    checkpoint = terms.checkpoint_s
    if checkpoint is None:
        bandwidth = goodput.default("storage_bandwidth") * _count(parts)
        checkpoint = parameters * saved_bytes(job, load_software(job.stack)) / bandwidth
        notes.assumed["checkpoint_s"] = (
            f"{checkpoint:,.3g} s: all states written at once, {bandwidth / 1e9:,.3g} GB/s in all; "
            f"{goodput.source('storage_bandwidth')}"
        )
    if terms.price_kind == "spot":
        notes.assumed["spot_interruptions"] = (
            "none beyond failures: a lower node_mtbf_s stands for capacity taken back"
        )
    best = goodput.optimal_interval(checkpoint, rates.interruptions)
    interval = terms.checkpoint_interval_s or max(best, estimate.step_time_s)
    restart = constant(terms.restart_s, "restart_s", "restart") + checkpoint
    if terms.repair_s is None:
        notes.assumed["repair_s"] = "0 s: the provider replaces a failed node within the restart"
    return rates, goodput.Recovery(checkpoint, interval, restart), terms.repair_s or 0.0


_PRICE_FIELDS: Mapping[str, str] = {
    "on-demand": "per_device_hour",
    "reserved": "reserved_per_device_hour",
    "spot": "spot_per_device_hour",
}
"""Way of buying -> field of `PriceSpec`, which has the source."""


def _price(parts: Parts, terms: Terms, notes: _Notes) -> float | None:
    """Of an average device for an hour; None where one is not known, or currencies are mixed."""
    prices = [price_of(part, terms) for part in parts]
    for part, price in zip(parts, prices, strict=True):
        if price is None:
            notes.unknown.append(
                f"no {terms.price_kind} price of {part.device.name} in {part.name} is known: give one with --price"
            )
        elif terms.price_per_device_hour is None:
            source = part.sources.get(f"price.{_PRICE_FIELDS[terms.price_kind]}", "the cluster's own file")
            name = (
                "price_per_device_hour" if len(parts) == 1 else f"price_per_device_hour of {part.device.name}"
            )
            notes.assumed[name] = f"{price:,.4g}: {source}"
    if len({part.price.currency for part in parts if part.price is not None}) > 1:
        notes.unknown.append("prices are in different currencies: give one for all with --price")
        return terms.price_per_device_hour
    known_prices = [price for price in prices if price is not None]
    if len(known_prices) < len(parts):
        return None
    hourly = sum(price * part.num_devices for price, part in zip(known_prices, parts, strict=True))
    return hourly / _count(parts)


def _power(estimate: Estimate, parts: Parts, useful: float, terms: Terms, notes: _Notes) -> float | None:
    """Average of the whole facility's share [W]; spares idle, as does everything while a failure is dealt with."""
    limits = [part.device.power for part in parts]
    for part, limit in zip(parts, limits, strict=True):
        if limit is None:
            notes.unknown.append(
                f"the power of {part.device.name} is not known, so there is no energy figure"
            )
            return None
    for name in ("node_over_board", "idle_share"):
        notes.assumed[name] = f"{physics.default(name):.3g}: {physics.source(name)}"
    overhead = notes.or_default(
        terms.facility_overhead,
        "facility_overhead",
        physics.default("facility_overhead"),
        "",
        physics.source("facility_overhead"),
    )
    busy = sum(s for name, s in estimate.time.items() if name in BUSY) / estimate.step_time_s
    share = min(1.0, busy * useful)
    watts = [limit or 0.0 for limit in limits]
    working = sum(
        physics.device_power(w, share) * part.num_devices for w, part in zip(watts, parts, strict=True)
    )
    idle = physics.device_power(watts[0], 0.0) * terms.spares * parts[0].devices_per_node
    return physics.energy(working + idle, 1.0, overhead)


def _carbon(joules: float | None, terms: Terms, notes: _Notes) -> float | None:
    if joules is None:
        return None
    if terms.grid_kg_per_kwh is None:
        notes.unknown.append("the carbon of the electricity is not known: give its intensity with --grid")
        return None
    return physics.carbon(joules, terms.grid_kg_per_kwh)
