"""What a run costs: device-hours, money, energy, carbon.

Power is that of whole nodes, linear in the share of the time in which accelerators compute; constants in
``data/power.toml``.
"""

from cluster_specs.errors import InputError
from cost_models.constants import constants

HOUR = 3600.0
"""Seconds."""
JOULES_PER_KWH = 3.6e6


def default(name: str) -> float:
    """A constant of ``data/power.toml``: a share."""
    return float(constants("power")[name])


def source(name: str) -> str:
    """Where a constant of ``data/power.toml`` comes from."""
    return str(constants("power")["sources"][name])


def device_hours(devices: int, seconds: float) -> float:
    """Hours of devices that are paid for during ``seconds``."""
    return devices * seconds / HOUR


def cost(hours: float, price_per_device_hour: float) -> float:
    """Money for ``hours`` of devices, in the currency of the price."""
    return hours * price_per_device_hour


def tokens_per_money(tokens: float, money: float) -> float:
    """Tokens for one unit of money; raises ``InputError`` where nothing was paid."""
    if money <= 0:
        raise InputError("tokens per unit of money need a price above zero")
    return tokens / money


def device_power(board_limit: float, busy: float) -> float:
    """Drawn by one device with its share of the node [W]: ``P (i + (1 - i) u)``, ``P = limit x node share``.

    ``board_limit`` is the power limit of the accelerator's board [W], ``busy`` the share of the time in which
    it computes. Raises ``InputError`` for a share outside 0 to 1. Source: Fan, Weber and Barroso, "Power
    provisioning for a warehouse-sized computer", ISCA 2007 (linear in utilisation); constants:
    ``data/power.toml``. Left out: clocks, temperature, and how hard the kernels that run work.
    """
    if not 0 <= busy <= 1:
        raise InputError(f"a busy share lies between 0 and 1, found {busy:g}")
    idle = default("idle_share")
    return board_limit * default("node_over_board") * (idle + (1 - idle) * busy)


def energy(power: float, seconds: float, facility_overhead: float) -> float:
    """Drawn from the grid [J] by computers of ``power`` [W] in a facility of that overhead (PUE)."""
    return power * seconds * facility_overhead


def carbon(joules: float, kg_per_kwh: float) -> float:
    """CO2e [kg] of electricity of that intensity [kg CO2e/kWh]."""
    return joules / JOULES_PER_KWH * kg_per_kwh


def least_device_hours(flops: float, peak_flops_per_second: float) -> float:
    """Hours of devices that no run of ``flops`` can be below: every device at its peak all the time."""
    return flops / peak_flops_per_second / HOUR
