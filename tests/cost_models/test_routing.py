"""Tokens sent once to every node: laws, and the worked number of docs/formulas.md."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cluster_specs.catalog import load_cluster
from cluster_specs.topology import comm_group
from cost_models.collectives import all_to_all
from cost_models.routing import Groups, in_turn_share, once_per_node, once_per_node_share, reachable_nodes

NODES = comm_group(load_cluster("dgx-h100:8"), ((64, 1),))
NODE = comm_group(load_cluster("dgx-h100:8"), ((8, 1),))


def test_eight_copies_to_eight_nodes_reach_five_and_a_quarter_of_them() -> None:
    assert 8 * once_per_node_share(8, 8) == pytest.approx(5.251, abs=1e-3)


@given(st.integers(1, 64), st.integers(2, 64))
def test_no_more_tokens_than_copies_or_nodes(copies: int, nodes: int) -> None:
    assert 1 - 1e-9 <= copies * once_per_node_share(copies, nodes) <= min(copies, nodes) + 1e-9


def test_the_share_is_that_of_drawing_nodes_at_random() -> None:
    two = [{a, b} for a in range(5) for b in range(5)]
    assert 2 * once_per_node_share(2, 5) == pytest.approx(sum(map(len, two)) / len(two))


def test_one_copy_or_one_node_is_the_plain_exchange() -> None:
    assert once_per_node(1e9, NODES, 1) == all_to_all(1e9, NODES)
    assert once_per_node(1e9, NODE, 8) == all_to_all(1e9, NODE)


def test_the_network_carries_less_and_the_node_no_less() -> None:
    plain = all_to_all(1e9, NODES).transfer
    assert once_per_node(1e9, NODES, 8).transfer == pytest.approx(plain * once_per_node_share(8, 8), rel=1e-9)
    assert once_per_node(1e9, NODES, 1000).seconds >= all_to_all(1e9, NODE).seconds


DEEPSEEK = Groups(8, 4)


def test_a_token_of_deepseek_reaches_three_and_a_half_of_four_nodes() -> None:
    assert reachable_nodes(8, DEEPSEEK) == 4
    assert 8 * once_per_node_share(8, 8, DEEPSEEK) == pytest.approx(4 * (1 - 0.75**8))


@pytest.mark.parametrize(
    ("nodes", "reached"), [(1, 1), (2, 2 - 2 / 70), (4, 4 - 4 * 15 / 70), (8, 4), (16, 8)]
)
def test_nodes_that_hold_a_group(nodes: int, reached: float) -> None:
    """Of 8 groups 4 are chosen in 70 ways; a node of two is missed in 15 of them, a node of four in one."""
    assert reachable_nodes(nodes, DEEPSEEK) == pytest.approx(reached)


@given(st.integers(1, 64), st.integers(2, 64), st.integers(1, 16), st.data())
def test_groups_never_send_more(copies: int, nodes: int, number: int, data: st.DataObject) -> None:
    groups = Groups(number, data.draw(st.integers(1, number)))
    limited = once_per_node_share(copies, nodes, groups)
    assert 1 / copies - 1e-9 <= limited <= once_per_node_share(copies, nodes) + 1e-9
    assert once_per_node_share(copies, nodes, Groups(number, number)) == once_per_node_share(copies, nodes)


@given(st.integers(1, 12), st.integers(1, 12), st.integers(2, 8))
def test_experts_given_in_turn_lie_on_as_many_parts_as_counted(copies: int, each: int, parts: int) -> None:
    """Tokens i have experts ik to ik + k - 1, as torchtitan and NeMo AutoModel give them; counted one by one."""
    experts = each * parts
    assume(copies <= experts - each + 1)
    found = [{(i * copies + j) % experts // each for j in range(copies)} for i in range(experts)]
    assert in_turn_share(copies, parts, experts) == pytest.approx(sum(map(len, found)) / experts / copies)


def test_experts_in_turn_leave_one_or_two_copies_of_deepseek() -> None:
    """Eight of 256 experts on 64 ranks are those of two neighbours, in one node of eight."""
    assert 8 * in_turn_share(8, 64, 256) == 2
    assert 8 * in_turn_share(8, 8, 256) == 1
    both = all_to_all(1e9 / 4, NODE), all_to_all(1e9 / 8, NODES)
    assert once_per_node(1e9, NODES, 8, DEEPSEEK, 256).seconds == max(time.seconds for time in both)
    assert once_per_node(1e9, NODE, 8, in_turn=128) == all_to_all(1e9 / 8, NODE)
