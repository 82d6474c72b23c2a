"""How a network's numbers are laid out changes no message."""

import itertools

import numpy as np
import pytest

from planner.intra_op import levels, tables
from planner.intra_op.compact import Between, Compact
from planner.intra_op.levels import Layout
from planner.intra_op.messages import Relaxation
from planner.intra_op.network import Network


def sharing(seed: int) -> Compact:
    """A fan and a chain of eight nodes, whose edges have one table or its transpose, by classes of strategies."""
    rng = np.random.default_rng(seed)
    table = rng.integers(0, 50, (3, 4)).astype(float)
    costs = {v: rng.integers(0, 50, 6).astype(float) for v in range(8)}
    rows, columns = (np.concatenate([np.arange(n), rng.integers(0, n, 6 - n)]) for n in (3, 4))
    fan = [((0, v), table, (rows, columns)) for v in range(1, 8)]
    chain = [((v + 1, v), table.T, (columns, rows)) for v in range(1, 7)]
    return Compact(costs, [Between(*edge) for edge in fan + chain], range(8))


@pytest.mark.parametrize("seed", range(5))
def test_tables_may_be_read_where_they_are(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for large in (1, 10**9):
        monkeypatch.setattr(levels, "LARGE", large)
        relaxation = Relaxation(sharing(seed), {})
        groups = sum(1 for _ in relaxation._layout.edges())
        relaxation.sweep()
        relaxation.sweep()
        bound = relaxation.bound()
        margins = [m.tolist() for _, m in sorted(bound.margins.items())]
        found.append(
            (bound.value, margins, relaxation.decode(), relaxation.improve(dict.fromkeys(range(8), 0)))
        )
    assert groups > 1
    assert found[0] == found[1]


def unlike(seed: int) -> Network:
    """Twelve nodes of two to seven strategies, most of which are neighbours; some pairs are forbidden."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 8, 12)
    network = Network({v: rng.integers(0, 50, n).astype(float) for v, n in enumerate(sizes)}, {}, np.zeros(0))
    for u, v in itertools.combinations(range(12), 2):
        if rng.random() < 0.7:
            table = rng.integers(0, 50, (sizes[u], sizes[v])).astype(float)
            table[1:, 1:][rng.random((sizes[u] - 1, sizes[v] - 1)) < 0.2] = np.inf
            network.add_table(u, v, table)
    return network


@pytest.mark.parametrize("few", [(0, 0), (30, 10), (10**9, 10**9)])
@pytest.mark.parametrize("network", [*map(unlike, range(5)), *map(sharing, range(5))])
def test_tables_may_be_worked_on_together(
    network: Network, few: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, calls = [], []
    for limits in ((-1, -1), few):
        monkeypatch.setattr(tables, "FEW", limits[0])
        monkeypatch.setattr(tables, "IN_VAIN", limits[1])
        relaxation = Relaxation(network, {})
        for _ in range(3):
            relaxation.sweep()
        calls.append(sum(len(level.behind) for level in relaxation._layout.levels))
        value, margins = relaxation.bound()
        assert relaxation.proven() == value
        found.append((value, [margins[v].tolist() for v in sorted(margins)], relaxation.decode()))
    assert calls[1] <= calls[0]
    assert found[0] == found[1]


def test_few_calls_do_for_small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    alone, together = [], []
    for limit, calls in ((-1, alone), (tables.FEW, together)):
        monkeypatch.setattr(tables, "FEW", limit)
        calls += [tables for level in Layout(unlike(0)).levels for tables in level.behind]
    assert len(together) < 0.5 * len(alone)
