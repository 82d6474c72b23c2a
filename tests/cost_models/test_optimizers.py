"""What optimizers keep and move."""

import pytest

from cluster_specs.cluster import DeviceSpec
from cluster_specs.errors import InputError, UnknownName
from cost_models.compute import optimizer_seconds
from cost_models.optimizers import OPTIMIZERS, newton_schulz_flops, optimizer_rule, update_bytes

STATE_BYTES = {
    "adamw": 8.0,
    "adamw8bit": 2 + 8 / 256,
    "adamw_bnb_8bit": 2 + 8 / 256,
    "sgd": 4.0,
    "plain-sgd": 0.0,
    "adafactor": 0.0,
    "muon": 4.0,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_bytes_per_parameter(name: str) -> None:
    assert optimizer_rule(name).state_bytes() == STATE_BYTES[name]


@pytest.mark.parametrize("name", [name for name, rule in OPTIMIZERS.items() if rule.fusable])
def test_fused_traffic_reads_gradients_and_steps_states_and_weights(name: str) -> None:
    # gradient 4 read; state and fp32 master read and written; bf16 copy written
    assert update_bytes(name, 2, 4, True, True) == 4 + 2 * (STATE_BYTES[name] + 4) + 2


@pytest.mark.parametrize(
    ("name", "accesses"), [("adamw", 21), ("sgd", 8), ("plain-sgd", 3), ("adafactor", 19), ("muon", 14.5)]
)
def test_traffic_kernel_by_kernel(name: str, accesses: float) -> None:
    assert update_bytes(name, 4, 4, False, False) == 4 * accesses
    assert update_bytes(name, 2, 4, True, False) == 4 * accesses + 2


def test_some_optimizers_exist_in_one_version_only() -> None:
    assert update_bytes("adamw8bit", 2, 4, True, False) == update_bytes("adamw8bit", 2, 4, True, True)
    assert update_bytes("muon", 2, 4, True, False) == update_bytes("muon", 2, 4, True, True)


def test_adamw_without_masters_steps_bf16_throughout() -> None:
    assert update_bytes("adamw", 2, 2, False, True) == 2 + 2 * (2 * 2 + 2)


def test_fp32_weights_are_their_own_masters() -> None:
    assert update_bytes("adamw", 4, 4, True, True) == update_bytes("adamw", 4, 4, False, True) == 28


def test_unknown_is_an_error() -> None:
    with pytest.raises(UnknownName, match="did you mean adamw"):
        optimizer_rule("adam")


def test_newton_schulz_by_hand() -> None:
    # five steps of 2 (2 m^2 n) + 2 m^3 with m = 2, n = 3
    assert newton_schulz_flops(2, 3) == newton_schulz_flops(3, 2) == 5 * (4 * 4 * 3 + 2 * 8)


def test_seconds_are_traffic_over_bandwidth(device: DeviceSpec) -> None:
    assert optimizer_seconds(1e9, "adamw", device).seconds == pytest.approx(30e9 / 3.6e12)
    assert optimizer_seconds(1e9, "adamw", device, weight_bytes=4, fused=False).seconds == pytest.approx(
        84e9 / 3.6e12
    )
    assert optimizer_seconds(1e9, "adamw", device, weight_bytes=2, grad_bytes=2).seconds == pytest.approx(
        28e9 / 3.6e12
    )


def test_muon_adds_its_products(device: DeviceSpec) -> None:
    moved = optimizer_seconds(1e9, "muon", device, matrix_flops=0.0).seconds
    both = optimizer_seconds(1e9, "muon", device, matrix_flops=8e12).seconds
    assert both - moved == pytest.approx(8e12 / 0.8e15)
    with pytest.raises(InputError, match="needs matrix_flops"):
        optimizer_seconds(1e9, "muon", device)
