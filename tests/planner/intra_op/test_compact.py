"""Tables of classes of strategies say the same as tables of strategies, and lead to the same optimum."""

import itertools

import numpy as np
import pytest
from contest_problems import soon
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import Infeasible
from planner.intra_op import folding, unlimited
from planner.intra_op.compact import Between, Compact
from planner.intra_op.liveness import demand, one_hot, settle, violated
from planner.intra_op.messages import Relaxation
from planner.intra_op.narrowing import solve_narrowed
from planner.intra_op.network import Network, Piece


def compact_and_whole(seed: int, forbidden: float, capacity: float | None = None) -> tuple[Compact, Network]:
    """Five nodes of up to five strategies in up to three classes; nodes 1 and 2 are linked twice, node 3 to itself.

    Where there is a ``capacity``, each but the last takes memory in two of four rows.
    """
    rng = np.random.default_rng(seed)
    costs = {v: rng.integers(0, 50, rng.integers(1, 6)).astype(float) for v in range(5)}
    links = [(0, 1), (1, 2), (2, 1), (2, 3), (3, 3), (0, 4), (3, 4)]
    rows = np.zeros(0) if capacity is None else np.full(4, capacity)
    taken = {v: Piece((v % 3, v % 3 + 2), 20 - costs[v] // 3) for v in range(0 if capacity is None else 4)}
    tables, whole = [], Network(dict(costs), taken, rows)
    for u, v in links:
        mine, theirs = (np.unique(rng.integers(0, 3, costs[w].size), return_inverse=True)[1] for w in (u, v))
        table = rng.integers(0, 50, (1 + mine.max(), 1 + theirs.max())).astype(float)
        table[rng.random(table.shape) < forbidden] = np.inf
        tables.append(Between((u, v), table, (mine, theirs)))
        whole.add_table(u, v, table[np.ix_(mine, theirs)])
    pieces = {v: {piece.rows: piece.bytes_} for v, piece in taken.items()}
    return Compact(costs, tables, rng.permutation(5).tolist(), (pieces, rows)), whole


def brute_force(whole: Network) -> float:
    sizes = [range(whole.costs[v].size) for v in range(5)]
    choices = (dict(enumerate(choice)) for choice in itertools.product(*sizes))
    return min((whole.cost(c) for c in choices if fits(whole, c)), default=np.inf)


def fits(whole: Network, choice: dict[int, int]) -> bool:
    return not violated(whole, demand(whole, one_hot(whole, choice)))


@pytest.mark.parametrize("most_sums", [0, 20, folding.MOST_SUMS])
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.2, 0.5]), st.sampled_from([None, 30.0, 45.0, 60.0]))
def test_the_optimum_is_that_of_brute_force(
    most_sums: int, seed: int, forbidden: float, capacity: float | None
) -> None:
    """Whether messages go between all nodes, or some or most are taken out first."""
    compact, whole = compact_and_whole(seed, forbidden, capacity)
    least = brute_force(whole)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unlimited, "MOST_SUMS", most_sums)
        if np.isinf(least):
            with pytest.raises(Infeasible):
                solve_narrowed(compact, soon())
            return
        answer = solve_narrowed(compact, soon())
    assert answer.cost == answer.lower_bound == least == whole.cost(answer.choice)
    assert fits(whole, answer.choice)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_what_is_written_out_costs_the_same(seed: int) -> None:
    compact, whole = compact_and_whole(seed, 0.2)
    rng = np.random.default_rng(seed)
    kept = {v: np.flatnonzero(rng.random(c.size) < 0.7) for v, c in compact.costs.items()}
    kept = {v: positions if positions.size else np.array([0]) for v, positions in kept.items()}
    written = compact.narrowed(kept)
    for v, positions in kept.items():
        compact.keep(v, positions)
    choice = {v: int(rng.integers(positions.size)) for v, positions in kept.items()}
    assert compact.cost(choice) == written.cost(choice) == whole.cost(compact.expand(choice))


def test_a_fork_has_rows_and_memory_of_its_own() -> None:
    """What is settled in one part says nothing of another."""
    compact, _ = compact_and_whole(1, 0.0, 45.0)
    before = {v: dict(pieces) for v, pieces in compact.pieces.items()}
    fork = compact.fork()
    fork.keep(0, np.arange(1))
    settle(fork)
    fork.stand_ins |= {0: 1}
    assert not compact.stand_ins
    assert compact.pieces.keys() == before.keys()
    for v, pieces in compact.pieces.items():
        assert pieces.keys() == before[v].keys()
        assert all((bytes_ == before[v][rows]).all() for rows, bytes_ in pieces.items())


def test_what_has_been_decided_still_costs_something_once_written_out() -> None:
    """Of a node that is gone before classes are made."""
    whole = compact_and_whole(1, 0.0)[1]
    whole.constant = 7.0
    written = Compact.of(whole).narrowed({v: np.arange(c.size) for v, c in whole.costs.items()})
    choice = dict.fromkeys(range(5), 0)
    assert written.cost(choice) == whole.cost(choice)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([12, 30, folding.MOST_SUMS]))
def test_nodes_that_are_taken_out_take_what_is_cheapest_beside_the_others(seed: int, most_sums: int) -> None:
    compact, whole = compact_and_whole(seed, 0.2)
    folding.fold(compact, most_sums)
    for choice in itertools.product(*(range(compact.costs[v].size) for v in sorted(compact.nodes))):
        chosen = dict(zip(sorted(compact.nodes), choice, strict=True))
        full = compact.expand(chosen)
        left = {compact.names[v] for v in compact.nodes}
        others = [[full[v]] if v in left else range(whole.costs[v].size) for v in range(5)]
        least = min(whole.cost(dict(enumerate(c))) for c in itertools.product(*others))
        assert compact.cost(chosen) == whole.cost(full) == least


@pytest.mark.parametrize("capacity", [None, 45.0])
def test_nodes_that_take_memory_are_not_taken_out(capacity: float | None) -> None:
    compact, _ = compact_and_whole(1, 0.0, capacity)
    folding.fold(compact)
    assert len(compact.nodes) == (1 if capacity is None else 4)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_messages_prove_no_more_than_is_true(seed: int) -> None:
    """And no strategy is said to be dearer than the best choice with it."""
    compact, whole = compact_and_whole(seed, 0.0)
    relaxation = Relaxation(compact, {})
    for _ in range(4):
        relaxation.sweep()
    bound = relaxation.bound()
    best = {(v, s): np.inf for v, costs in whole.costs.items() for s in range(costs.size)}
    for choice in itertools.product(*(range(whole.costs[v].size) for v in range(5))):
        cost = whole.cost(dict(enumerate(choice)))
        for taken in enumerate(choice):
            best[taken] = min(best[taken], cost)
    for v, margins in bound.margins.items():
        for s, margin in enumerate(margins):
            assert bound.value + margin <= best[compact.names[v], s] + 1e-6


def test_messages_that_prove_a_choice_need_no_other_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a chain they always do."""
    rng = np.random.default_rng(1)
    costs = {v: rng.integers(0, 1000, 6).astype(float) for v in range(8)}
    tables = [
        Between(
            (v, v + 1), rng.integers(0, 1000, (3, 3)).astype(float), (np.arange(6) % 3, np.arange(6) // 2)
        )
        for v in range(7)
    ]
    monkeypatch.setattr(unlimited, "MOST_SUMS", 0)
    monkeypatch.setattr(unlimited, "cheapest", None)
    monkeypatch.setattr(unlimited, "solve_network", None)
    answer = solve_narrowed(Compact(costs, tables, range(8)), soon())
    assert answer.cost == answer.lower_bound


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_a_fork_with_other_numbers_and_absorbed_messages_costs_the_same(seed: int) -> None:
    """And its margins prove what the messages did."""
    compact, whole = compact_and_whole(seed, 0.0)
    folding.fold(compact, 30)
    relaxation = Relaxation(compact, {})
    relaxation.sweep()
    fork = compact.fork()
    fork.absorb(relaxation.exact_messages)
    least, margins = fork.margins()
    bound = relaxation.bound()
    assert least == pytest.approx(bound.value)
    assert all(margins[v] == pytest.approx(bound.margins[v], abs=1e-6) for v in compact.nodes)
    rng = np.random.default_rng(seed)
    order = rng.permutation(sorted(compact.nodes)).tolist()
    other = fork.renumbered(order)
    taken = {v: int(rng.integers(costs.size)) for v, costs in compact.costs.items()}
    found = other.expand({k: taken[v] for k, v in enumerate(order)})
    assert found == compact.expand(taken)
    cost = other.cost({k: taken[v] for k, v in enumerate(order)})
    assert cost == fork.cost(taken) == compact.cost(taken) == whole.cost(found)


@pytest.mark.parametrize("seed", range(4))
def test_of_a_network_every_strategy_is_a_class(seed: int) -> None:
    _, whole = compact_and_whole(seed, 0.2)
    compact = Compact.of(whole)
    for choice in itertools.product(*(range(whole.costs[v].size) for v in range(5))):
        taken = dict(enumerate(choice))
        assert compact.cost(taken) == whole.cost(taken)
        assert compact.expand(taken) == taken
