"""Economics and scaling laws: worked numbers, published figures, laws."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_specs.errors import InputError, UnknownName
from cost_models import economics
from cost_models.scaling_laws import allocate, scaling_law, scaling_laws, tokens_for


def test_worked_numbers() -> None:
    assert economics.device_hours(16, 7200) == 32
    assert economics.cost(32, 2.5) == 80
    assert economics.tokens_per_money(1e12, 4e6) == 250_000
    assert economics.energy(1000, 3600, 1.1) == pytest.approx(1.1 * economics.JOULES_PER_KWH)
    assert economics.carbon(economics.JOULES_PER_KWH, 0.4) == pytest.approx(0.4)


def test_a_busy_h100_node_draws_what_was_measured() -> None:
    """arXiv:2412.08602: 8.4 kW; idle, 37 % of it."""
    assert 8 * economics.device_power(700, 1) == pytest.approx(8400)
    assert 8 * economics.device_power(700, 0) == pytest.approx(0.37 * 8400)


def test_a100_nodes_of_bloom() -> None:
    """arXiv:2211.02001, table 4: 48 nodes of 8 A100 (400 W), idle and dynamic 173 kW; not used for the constant
    of a node over its boards. Training kept the devices computing most of the time."""
    assert 384 * economics.device_power(400, 0.7) / 173e3 == pytest.approx(1, abs=0.15)


@given(limit=st.floats(1, 2000), busy=st.floats(0, 1))
def test_power_lies_between_idle_and_full(limit: float, busy: float) -> None:
    idle, full = economics.device_power(limit, 0), economics.device_power(limit, 1)
    assert idle <= economics.device_power(limit, busy) <= full * (1 + 1e-12)


def test_nonsense_is_refused() -> None:
    with pytest.raises(InputError, match="busy"):
        economics.device_power(700, 1.1)
    with pytest.raises(InputError, match="price"):
        economics.tokens_per_money(1e12, 0)
    with pytest.raises(InputError, match="budget"):
        allocate(0, scaling_law("chinchilla"))
    with pytest.raises(UnknownName, match="chinchilla"):
        scaling_law("chinchila")


@pytest.mark.parametrize("law", scaling_laws().values(), ids=lambda law: law.name)
@pytest.mark.parametrize("flops", [1e19, 5.76e23, 1e26])
def test_no_other_split_has_less_loss(law, flops: float) -> None:  # type: ignore[no-untyped-def]
    best = allocate(flops, law)
    least = law.loss(*best)
    for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2.0):
        other = best.parameters * factor
        assert law.loss(other, tokens_for(flops, other)) >= least


def test_chinchilla_itself() -> None:
    """70B parameters and 1.4e12 tokens for 5.76e23 FLOPs (arXiv:2203.15556); the fit is another paper's."""
    best = allocate(5.76e23, scaling_law("chinchilla"))
    assert best.parameters == pytest.approx(70e9, rel=0.1)
    assert best.tokens == pytest.approx(1.4e12, rel=0.1)
