"""How a network's numbers are laid out changes no message."""

import numpy as np
import pytest

from planner.intra_op import levels
from planner.intra_op.compact import Between, Compact
from planner.intra_op.messages import Relaxation


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
