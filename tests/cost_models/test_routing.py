"""Tokens sent once to every node: laws, and the worked number of docs/formulas.md."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cluster_specs.catalog import load_cluster
from cluster_specs.topology import comm_group
from cost_models.collectives import all_to_all
from cost_models.routing import (
    Groups,
    Library,
    in_turn_share,
    once_per_node,
    once_per_node_share,
    reachable_nodes,
)

NODES = comm_group(load_cluster("dgx-h100:8"), ((64, 1),))
NODE = comm_group(load_cluster("dgx-h100:8"), ((8, 1),))
ALONE = comm_group(load_cluster("dgx-h100:8"), ((1, 1),))


def test_eight_copies_to_eight_nodes_reach_five_and_a_quarter_of_them() -> None:
    assert 8 * once_per_node_share(8, 8) == pytest.approx(5.251, abs=1e-3)


@given(st.integers(1, 64), st.integers(2, 64))
def test_no_more_tokens_than_copies_or_nodes(copies: int, nodes: int) -> None:
    assert 1 - 1e-9 <= copies * once_per_node_share(copies, nodes) <= min(copies, nodes) + 1e-9


def test_the_share_is_that_of_drawing_nodes_at_random() -> None:
    two = [{a, b} for a in range(5) for b in range(5)]
    assert 2 * once_per_node_share(2, 5) == pytest.approx(sum(map(len, two)) / len(two))


def test_one_copy_is_the_plain_exchange_where_the_network_takes_longer() -> None:
    assert once_per_node(1e9, NODES, 1) == all_to_all(1e9, NODES)


def test_inside_a_node_ranks_receive_a_token_once_at_the_rate_of_the_kernels() -> None:
    (link,) = NODE.active_levels
    plain, once = all_to_all(1e9, NODE).transfer, once_per_node(1e9, NODE, 8).transfer
    assert link.dispatching.hybridep < 1
    assert once == pytest.approx(plain * once_per_node_share(8, 8) / link.dispatching.hybridep, rel=0.01)
    assert once_per_node(1e9, ALONE, 8).seconds == 0


def test_the_network_carries_less_and_the_node_takes_no_less_than_it_forwards() -> None:
    plain = all_to_all(1e9, NODES).transfer
    assert once_per_node(1e9, NODES, 8).transfer == pytest.approx(plain * once_per_node_share(8, 8), rel=1e-9)
    forwarded = once_per_node(1e9 * once_per_node_share(16, 64), NODE, 1)
    assert once_per_node(1e9, NODES, 16).seconds >= forwarded.seconds


@pytest.mark.parametrize(
    ("ranks", "dispatched", "combined"),
    [(8, 153e9, 158e9), (16, 43e9, 43e9), (32, 58e9, 57e9), (64, 51e9, 50e9)],
)
def test_an_exchange_of_deepseek_takes_as_long_as_measured(
    ranks: int, dispatched: float, combined: float
) -> None:
    """4096 tokens of 7168 to 8 of 256 experts in 4 of 8 groups on H800; rates of what nodes, or ranks of one node, get.

    Their own tokens count. Source: deepseek-ai/DeepEP@0297fc8 docs/legacy.md, normal kernels.
    """
    nodes, token = max(1, ranks // 8), 7168.0
    groups = Groups(nodes, min(nodes, 4))
    received = 8 * once_per_node_share(8, ranks if nodes == 1 else nodes, groups) * 4096
    group = comm_group(load_cluster("h800-8x:8"), ((ranks, 1),))
    for rate, width in ((dispatched, 1), (combined, 2)):
        measured = received * token * width / rate
        assert once_per_node(8 * 4096 * token * width, group, 8, groups).seconds == pytest.approx(
            measured, rel=0.15
        )


@pytest.mark.parametrize(
    ("cluster", "nodes", "rates"),
    [
        ("p6-b300.48xlarge", 2, (126.6e9, 106.4e9)),
        ("p6-b300.48xlarge", 4, (97.2e9, 95.6e9, 101.3e9, 94.4e9)),
        ("p6-b300.48xlarge", 8, (83.7e9, 72.7e9, 93.4e9, 90.7e9)),
        ("p5.48xlarge", 4, (43.7e9, 46.1e9, 38.2e9, 30.2e9)),
        ("p5.48xlarge", 8, (39.6e9, 39.2e9, 29.9e9, 26.7e9)),
    ],
)
def test_an_exchange_over_efa_takes_as_long_as_measured(
    cluster: str, nodes: int, rates: tuple[float, ...]
) -> None:
    """4096 tokens of 7168 in 16 bits to 8 of 256 experts; rates of what nodes get, own tokens too, in the mean.

    DeepEP over NVSHMEM, dispatch and combine, then the same of UCCL. The two nodes were in no fit; UCCL's combine is
    half as fast there. Source: awslabs/awsome-distributed-ai@95b939c
    micro-benchmarks/expert-parallelism/ep-backend-comparison/RESULTS.md, RESULTS-p5.md.
    """
    groups, sent = Groups(nodes, min(nodes, 4)), 4096 * 7168 * 2.0
    received = 8 * once_per_node_share(8, nodes, groups) * sent
    group = comm_group(load_cluster(f"{cluster}:{nodes}"), ((8 * nodes, 1),))
    measured = received * sum(1 / rate for rate in rates) / len(rates)
    assert once_per_node(8 * sent, group, 8, groups, library="deepep").seconds == pytest.approx(
        measured, rel=0.1
    )


@pytest.mark.parametrize(
    ("ranks", "dispatched", "combined"),
    [(8, 750e9, 684e9), (16, 662e9, 601e9), (24, 638e9, 566e9), (32, 630e9, 547e9), (36, 613e9, 543e9)],
)
def test_an_exchange_in_a_rack_takes_as_long_as_measured(
    ranks: int, dispatched: float, combined: float
) -> None:
    """4096 tokens of 7168 in 16 bits to 8 experts on GB200; rates of what ranks get, own tokens too.

    Source: deepseek-ai/DeepEP@41cad94 docs/README_Hybrid-EP.md, kernels of HybridEP on 16 multiprocessors.
    """
    predicted, measured = in_a_rack(ranks, dispatched, combined, "hybridep")
    assert predicted == pytest.approx(measured, rel=0.15)


def in_a_rack(ranks: int, dispatched: float, combined: float, library: Library) -> tuple[float, float]:
    """Mean time of an exchange on GB200, predicted, and at the rates of what ranks get [s]."""
    sent = 4096 * 7168 * 2.0
    measured = ranks * (1 - (1 - 1 / ranks) ** 8) * sent * (1 / dispatched + 1 / combined) / 2
    group = comm_group(load_cluster("gb200-nvl72:1"), ((ranks, 1),))
    return once_per_node(8 * sent, group, 8, library=library).seconds, measured


@pytest.mark.parametrize(
    ("ranks", "fewer", "more"), [(8, (362e9, 310e9), (513e9, 426e9)), (16, (329e9, 278e9), (442e9, 378e9))]
)
def test_deepep_in_a_rack_takes_between_what_fewer_and_more_multiprocessors_do(
    ranks: int, fewer: tuple[float, float], more: tuple[float, float]
) -> None:
    """It takes 20 by itself; measured with 16 and 24, as HybridEP in the same source."""
    predicted, slower = in_a_rack(ranks, *fewer, "deepep")
    assert in_a_rack(ranks, *more, "deepep")[1] < predicted < slower


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
    both = once_per_node(1e9 / 4, NODE, 1), all_to_all(1e9 / 8, NODES)
    assert once_per_node(1e9, NODES, 8, DEEPSEEK, 256).seconds == max(time.seconds for time in both)
    assert once_per_node(1e9, NODE, 8, in_turn=128) == once_per_node(1e9 / 8, NODE, 1)
