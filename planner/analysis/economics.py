"""What training with a plan takes: time with failures, device-hours, money, energy, carbon."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from cluster_specs.record import Record
from cluster_specs.units import Seconds

PriceKind = Literal["on-demand", "reserved", "spot"]


class Terms(Record):
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
    """Until a failed node is back [s]."""
    spares: int = Field(default=0, ge=0)
    """Idle nodes that are paid for and take over at once."""
    straggler_fraction: float = Field(default=0.0, ge=0, lt=1)
    """Time lost to slow devices beyond what the step time holds already."""
    failures: bool = True
    """False: nothing ever fails, and no checkpoint is written."""


class Economics(Record):
    """A training run from first to last token. None: not known, and ``unknown`` says why."""

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
