"""The ILP finds the layouts that people found by hand, and its objective is the evaluator's own sum."""

import math
from dataclasses import replace
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategy_problems import every_choice, least_cost

from cluster_specs.catalog import load_cluster
from planner.evaluation.blocks import BlockCost
from planner.evaluation.edges import edges_of
from planner.evaluation.evaluator import Evaluator
from planner.evaluation.terms import block_terms, exit_of
from planner.graph import Block
from planner.intra_op.ilp import solve
from planner.intra_op.pricing import Ends, PricedBlock, Situation, StateCost, price_block
from planner.intra_op.problem import Choice
from planner.models.catalog import list_models, load_model, sequence_length
from planner.models.dropout import with_dropout
from planner.operators import RECOMPUTE_POLICIES
from planner.plans import Job, Parallelism
from planner.sharding.layouts import named_layout
from planner.sharding.pricing import Pricer
from planner.sharding.strategies import Space

ADAMW = StateCost(
    bytes_per_element=18, gather_bytes_per_element=2, reduce_bytes_per_element=4, microbatches=64
)
"""bf16 weights and fp32 gradients, master weights and two moments; 64 micro-batches to a step."""


def evaluator_of(
    name: str, cluster: str = "dgx-h100:1", seq_len: int = 4096, stack: str = "torch-fsdp2"
) -> Evaluator:
    model = with_dropout(load_model(name), 0.0)
    job = Job(global_batch=64, seq_len=sequence_length(model) or seq_len, stack=stack)
    return Evaluator(model, load_cluster(cluster), job)


class Layer(NamedTuple):
    """A model's commonest block on a mesh."""

    evaluator: Evaluator
    plan: Parallelism
    block: Block
    pricer: Pricer

    @property
    def state_bytes(self) -> float:
        """Of one whole copy of the layer."""
        weights = (t for t in self.block.tensors if t.role == "weight")
        return ADAMW.bytes_per_element * sum(map(self.evaluator.graph.elements, weights))


def layer_of(evaluator: Evaluator, plan: Parallelism) -> Layer:
    block = evaluator.graph.block[evaluator.main_layer]
    return Layer(evaluator, plan, block, evaluator.pricer(plan))


def best(layer: Layer, space: Space, memory_limit: float) -> tuple[PricedBlock, Choice]:
    priced = price_block(layer.pricer, layer.block, Situation(states=ADAMW), space, memory_limit)
    return priced, solve(priced.problem).choice


@pytest.mark.parametrize(
    ("model", "cluster", "seq_len"),
    [
        ("llama-3.1-70b", "dgx-h100:1", 8192),
        ("llama-3.1-405b", "dgx-h100:1", 8192),
        ("gpt-3-175b", "dgx-a100-80g:1", 2048),
    ],
)
@pytest.mark.parametrize("space", ["free", "roles"])
def test_megatron_is_found_on_one_nvlink_node(
    model: str, cluster: str, seq_len: int, space: Space, megatron: dict[str, str]
) -> None:
    """One sequence cannot be split by batch; a node with a fifth more memory than one copy holds no second one."""
    layer = layer_of(evaluator_of(model, cluster, seq_len), Parallelism(tensor=8))
    priced, choice = best(layer, space, memory_limit=1.2 * layer.state_bytes / 8)
    found = {op: dict(strategy) for op, strategy in priced.assignment(layer.block, choice).items()}
    assert found == {op.name: {"tensor": megatron[op.name]} for op in layer.block.ops}
    assert not priced.sharded(layer.block, choice)


def test_data_parallelism_is_found_where_memory_is_plentiful() -> None:
    layer = layer_of(evaluator_of("llama-3.1-8b", seq_len=8192), Parallelism(data=8))
    priced, choice = best(layer, "free", memory_limit=float("inf"))
    assert set(priced.assignment(layer.block, choice).values()) == {(("data", "batch"),)}
    assert not priced.sharded(layer.block, choice)


def test_fully_sharded_weights_are_found_where_they_do_not_fit_whole() -> None:
    """Then all large weights are stored in shards and the batch is split as before: ZeRO-3."""
    layer = layer_of(evaluator_of("llama-3.1-8b", seq_len=8192), Parallelism(data=8))
    activations = price_block(layer.pricer, layer.block).problem
    activation_bytes = sum(float(held.max()) for held in activations.bytes_)
    priced, choice = best(layer, "free", memory_limit=activation_bytes + 1.05 * layer.state_bytes / 8)
    assert set(priced.assignment(layer.block, choice).values()) == {(("data", "batch"),)}
    assert {"qkv", "attn_out", "gate_up", "down"} <= priced.sharded(layer.block, choice)


@pytest.mark.parametrize("space", ["free", "roles"])
def test_expert_parallelism_is_found_where_experts_do_not_fit_whole(space: Space) -> None:
    layer = layer_of(evaluator_of("mixtral-8x7b"), Parallelism(data=8, expert=8))
    priced, choice = best(layer, space, memory_limit=layer.state_bytes / 3)
    found = {op: dict(strategy)["expert"] for op, strategy in priced.assignment(layer.block, choice).items()}
    spread = {"expert_gate_up", "expert_activation", "expert_down"}
    assert found == {op.name: "experts" if op.name in spread else "batch" for op in layer.block.ops}


# --- the objective is the evaluator's ------------------------------------------------------------------

CASES = [
    ("gpt2", "dgx-h100:1", Parallelism(tensor=4, data=2)),
    ("llama-3.1-8b", "dgx-h100:2", Parallelism(tensor=4, context=2, data=2, micro_batch=2)),
    ("qwen3-8b", "dgx-a100-80g:2", Parallelism(tensor=2, context=4, data=2)),
    ("mixtral-8x7b", "dgx-h100:2", Parallelism(tensor=2, data=8, expert=4)),
    ("deepseek-v2-lite-16b", "tpu-v5p:2x2x4", Parallelism(tensor=4, data=4, expert=4)),
    ("t5-small", "dgx-h100:1", Parallelism(tensor=8, micro_batch=4)),
]


def seconds_of(cost: BlockCost) -> float:
    """All that the evaluator counts for one micro-batch through a block."""
    compute = cost.forward + cost.backward_input + cost.backward_weight + cost.recompute
    return compute + sum(cost.comm_forward.values()) + sum(cost.comm_backward.values())


def ends_of(evaluator: Evaluator, plan: Parallelism, block: Block) -> Ends:
    """The main layer follows itself; the others lie between such layers, in their named layout."""
    graph, main = evaluator.graph, evaluator.main_layer
    if block.name == main:
        return Ends()
    common = exit_of(evaluator.pricer(plan), graph.block[main], evaluator.assignment(plan, main, {}))
    return Ends(None if block.name == graph.first else common, None if block.name == graph.last else common)


@pytest.mark.parametrize("policy", RECOMPUTE_POLICIES)
@pytest.mark.parametrize(("model", "cluster", "plan"), CASES, ids=[case[0] for case in CASES])
@settings(max_examples=5)
@given(seed=st.integers(0, 2**32))
def test_objective_is_what_the_evaluator_adds_up(
    model: str, cluster: str, plan: Parallelism, policy: str, seed: int
) -> None:
    """For any choice, of the free space too: every kind of layer, and the ends, which no policy repeats.

    Whether gathered inputs are always kept, never, or where forward and backward meet.
    """
    random = Random(seed)
    stack = random.choice(["torch-fsdp2", "megatron", "jax-xla"])
    evaluator = evaluator_of(model, cluster, seq_len=512, stack=stack)
    graph, pricer = evaluator.graph, evaluator.pricer(plan)
    space: Space = random.choice(["roles", "free"]) if len(pricer.mesh.axes) < 3 else "roles"
    for block in graph.blocks:
        repeated = "none" if block.name in (graph.first, graph.last) else policy
        priced = price_block(pricer, block, Situation(repeated, ends_of(evaluator, plan, block)), space)
        choice = tuple(random.randrange(n) for n in priced.problem.sizes)
        assignment = priced.assignment(block, choice)
        cost = evaluator.block(plan, block.name, repeated, {block.name: assignment})
        assert priced.problem.cost(choice) == pytest.approx(seconds_of(cost), rel=1e-12)


@pytest.mark.parametrize(("model", "cluster", "plan"), CASES, ids=[case[0] for case in CASES])
def test_objective_is_the_evaluators_term_by_term(model: str, cluster: str, plan: Parallelism) -> None:
    """Each node is an operator's price, each edge a resharding's."""
    evaluator = evaluator_of(model, cluster, seq_len=512)
    layer = layer_of(evaluator, plan)
    priced = price_block(layer.pricer, layer.block)
    problem = priced.problem
    for seed in range(20):
        choice = tuple((seed * (v + 3) + v) % n for v, n in enumerate(problem.sizes))
        terms = block_terms(layer.pricer, layer.block, priced.assignment(layer.block, choice))
        for v, op in enumerate(layer.block.ops):
            assert problem.seconds[v][choice[v]] == pytest.approx(terms.ops[op.name].seconds, rel=1e-12)
        for k, ((u, v), edge) in enumerate(zip(problem.edges, edges_of(layer.block), strict=True)):
            resharding = terms.edges[edge].seconds
            assert problem.edge_seconds[k][choice[u], choice[v]] == pytest.approx(resharding, rel=1e-12)


@pytest.mark.parametrize("name", list_models())
def test_never_worse_than_the_named_layout(name: str) -> None:
    """Megatron's layout, priced in the same problem, on meshes that split heads and feed-forward evenly."""
    evaluator = evaluator_of(name, "dgx-h100:2", seq_len=448)
    meshes = [
        (Parallelism(tensor=8), "free"),
        (Parallelism(tensor=4, data=4), "roles"),
        (Parallelism(tensor=2, context=2, data=4, expert=2), "roles"),
        (Parallelism(data=8, expert=8), "roles"),
    ]
    for plan, space in meshes:
        pricer = evaluator.pricer(plan)
        for block in evaluator.graph.blocks:
            priced = price_block(pricer, block, space=space)
            named = priced.problem.cost(priced.choice(block, named_layout(block, pricer.sizes)))
            assert solve(priced.problem).cost <= named * (1 + 1e-12)


@pytest.mark.parametrize("space", ["free", "roles"])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0], ids=lambda share: f"memory {share}")
def test_the_choice_for_a_recurrence_is_that_of_trying_everything(space: Space, share: float) -> None:
    """A layer of Mamba-2 over two ranks, with memory from the least that any choice needs to the most."""
    evaluator = evaluator_of("nemotron-h-8b")
    pricer, block = evaluator.pricer(Parallelism(tensor=2)), evaluator.graph.block["ssd_layer"]
    problem = price_block(pricer, block, Situation(states=ADAMW), space).problem
    needed = [problem.memory(c) for c in every_choice(problem) if math.isfinite(problem.cost(c))]
    limited = replace(problem, memory_limit=min(needed) + share * (max(needed) - min(needed)))
    assert solve(limited).cost == pytest.approx(least_cost(limited))


def test_a_recurrence_is_split_in_groups_of_heads_from_its_projection_to_its_norm() -> None:
    """As Megatron-LM's mixer splits it (megatron/core/ssm/mamba_mixer.py), without a collective in between."""
    evaluator = evaluator_of("nemotron-h-8b")
    pricer, block = evaluator.pricer(Parallelism(tensor=2)), evaluator.graph.block["ssd_layer"]
    priced = price_block(pricer, block, Situation(states=ADAMW), "roles")
    found = priced.assignment(block, solve(priced.problem).choice)
    heads = (("tensor", "state_groups"),)
    assert [found[name] for name in ("scan_in", "conv", "scan", "scan_norm", "scan_out")] == [heads] * 5
