"""What the host issues of mixtures of experts, and what captured graphs spare it."""

from pathlib import Path

import pytest

from cluster_specs.catalog import cluster_for, load_cluster
from cluster_specs.software import load_software
from planner import evaluate
from planner.evaluation import Evaluator
from planner.evaluation.issuing import Issuing, captured
from planner.evaluation.setting import graph_of
from planner.models.catalog import load_model
from planner.plans import GraphPart, Job, Parallelism
from planner.runs import plan_from_run
from planner.runs.files import load_rows

PUBLISHED = Path(__file__).parents[2] / "published" / "runs_gpu.jsonl"

DENSE = {"mlp_norm", "gate_up", "activation", "down", "mlp_residual"}
SHARED = {"shared_gate_up", "shared_activation", "shared_down"}
EXPERTS = {
    "dispatch",
    "expert_gate_up",
    "expert_activation",
    "expert_down",
    "combine",
    "combine_add",
    "mlp_residual",
}


@pytest.mark.parametrize(
    ("part", "dense", "mixture"),
    [
        ("mlp", DENSE, set()),
        ("moe_router", set(), {"mlp_norm", "router", *SHARED}),
        ("moe", set(), {"mlp_norm", "router", *SHARED, *EXPERTS}),
    ],
)
def test_graphs_hold_what_megatron_core_says(part: GraphPart, dense: set[str], mixture: set[str]) -> None:
    """NVIDIA/Megatron-LM megatron/training/arguments.py, ``--cuda-graph-scope``; attention and ``moe`` are all."""
    graph = graph_of(load_model("deepseek-v3"), Job(global_batch=1, seq_len=4096))
    layers = graph.block["dense_layer"], graph.block["moe_layer"]
    assert [captured(layer, (part,)) for layer in layers] == [dense, mixture]
    attention = captured(layers[0], ("attn",))
    assert {"attn_norm", "attention", "attn_out", "attn_residual"} <= attention
    assert attention.isdisjoint(DENSE)
    assert captured(layers[1], ("attn", "moe")) == {op.name for op in layers[1].ops}
    assert not captured(graph.block["head"], ("attn", part))


def host_seconds(
    expert: int, precision: str = "bf16", parts: tuple[GraphPart, ...] = ()
) -> tuple[float, float]:
    """Host time of a layer of Qwen3-30B-A3B in NeMo, forward and backward [s]."""
    job = Job.model_validate(
        {
            "global_batch": 16,
            "seq_len": 4096,
            "precision": precision,
            "stack": "nemo",
            "token_exchange": "hybridep",
            "graph_parts": parts,
        }
    )
    evaluator = Evaluator(load_model("qwen3-30b-a3b"), load_cluster("dgx-h100:2"), job)
    plan = Parallelism(data=16, expert=expert, zero_stage=1, shard_degree=16)
    cost = evaluator.block(plan, evaluator.main_layer, "none", {})
    return cost.host_forward, cost.host_backward


@pytest.mark.parametrize(("precision", "kernels"), [("bf16", 1), ("fp8", 4)])
def test_experts_are_launched_one_by_one(precision: str, kernels: int) -> None:
    """Half as many on each of twice as many ranks: of 128 experts 8 less; two products, each with two gradients."""
    each = load_software("nemo").host_launch
    assert each is not None
    (few, few_back), (many, many_back) = host_seconds(16, precision), host_seconds(8, precision)
    assert many - few == pytest.approx(2 * 8 * kernels * each)
    assert many_back - few_back == pytest.approx(2 * (many - few))


def test_a_graph_is_issued_as_one_operator() -> None:
    """Norm and router leave, with the choice of experts; HybridEP prepares nothing that a graph could hold."""
    software = load_software("nemo")
    spared = software.routing_operators["once_per_node"].choice + 2 - 1
    eager, replayed = host_seconds(16), host_seconds(16, parts=("moe_router", "moe_preprocess"))
    assert eager[0] - replayed[0] == pytest.approx(spared * software.host_operator)
    assert replayed[1] < eager[1]


def test_adapters_are_issued_as_one_operator_and_frozen_weights_have_no_gradient() -> None:
    """Norms and products of a layer are frozen; the two adapters of queries and values have four steps each."""
    adapter = {"r": 8, "target_modules": ["q_proj", "v_proj"], "lora_dropout": 0.1}
    job = Job.model_validate({"global_batch": 1, "seq_len": 256, "stack": "hf-fsdp", "adapter": adapter})
    evaluator = Evaluator(load_model("llama-2-7b"), cluster_for("A100-SXM4-80GB", 1)[0], job)
    whole = job.model_copy(update={"adapter": None})
    plain = Evaluator(load_model("llama-2-7b"), cluster_for("A100-SXM4-80GB", 1)[0], whole)
    costs = [e.block(Parallelism(), e.main_layer, "none", {}) for e in (evaluator, plain)]
    each = load_software("hf-fsdp").host_operator
    layer = plain.graph.block[plain.main_layer]
    weighty = [op for op in layer.ops if op.weights and op.kind != "view"]
    assert costs[0].host_forward - costs[1].host_forward == pytest.approx(2 * each)
    assert costs[0].host_backward - costs[1].host_backward == pytest.approx((2 * 2 - len(weighty)) * each)


def layer_of_gpt(stack: str, precision: str = "bf16") -> dict[str, float]:
    """Operator of a layer of GPT-3 -> host time of its forward in a stack [s]."""
    job = Job.model_validate({"global_batch": 1, "seq_len": 256, "stack": stack, "precision": precision})
    evaluator = Evaluator(load_model("gpt3-175b"), cluster_for("H100-SXM-80GB", 1)[0], job)
    pricer = evaluator.pricer(Parallelism())
    block = evaluator.graph.block[evaluator.main_layer]
    issuing = Issuing.of(pricer, block, 0.0)
    return {op.name: issuing.operator(op) for op in block.ops}


def test_modules_of_transformer_engine_are_issued_as_it_prints() -> None:
    """NVIDIA/TransformerEngine pull request 3523 (September 2026), GB200, bf16: 59.19, 83.48 and 210.44 us forward."""
    each = layer_of_gpt("nemo")
    linear, normed = each["attn_out"], each["attn_norm"] + each["qkv"]
    layers = each["mlp_norm"] + each["gate_up"] + each["activation"] + each["down"]
    assert linear + normed + layers == pytest.approx(59.19e-6 + 83.48e-6 + 210.44e-6, rel=0.02)


def test_products_of_transformer_engine_took_longer_until_1_11() -> None:
    """Its pull request 1191: 140 us for one in bf16; issue 761: more than twice that in FP8; no other operator."""
    now, then = layer_of_gpt("megatron"), layer_of_gpt("transformer-engine-1.11")
    assert {name for name in now if then[name] > now[name]} == {"qkv", "attn_out", "gate_up", "down"}
    assert then["qkv"] == pytest.approx(140e-6)
    assert layer_of_gpt("transformer-engine-1.11", "fp8")["qkv"] >= 2 * then["qkv"]


def test_a_head_is_none_of_transformer_engine() -> None:
    job = Job.model_validate({"global_batch": 1, "seq_len": 256, "stack": "transformer-engine-1.11"})
    evaluator = Evaluator(load_model("gpt3-175b"), cluster_for("H100-SXM-80GB", 1)[0], job)
    head = evaluator.graph.block[evaluator.graph.last]
    issuing = Issuing.of(evaluator.pricer(Parallelism()), head, 0.0)
    assert [issuing.operator(op) for op in head.ops] == [load_software("megatron").host_operator] * len(
        head.ops
    )


def test_short_steps_of_transformer_engine_wait_for_the_host() -> None:
    """ROCm/TransformerEngine issue 72, GPT-2 XL in FP8 on one H100: 1.95 s of 64 sequences, of which 1.36 s compute."""
    found = next(row for row in load_rows(PUBLISHED) if row["id"] == "rocm-te/gpt2xl-h100-fp8-bs8")
    plan, _ = plan_from_run(found)
    assert evaluate(plan).step_time_s == pytest.approx(found["measured"]["step_time_s"], rel=0.12)


@pytest.mark.parametrize(("run", "seconds"), [("1.8b-full-1-s256", 2.1), ("1.8b-full-1-s1024", 2.2)])
def test_hooks_of_zero_3_hold_short_steps_up(run: str, seconds: float) -> None:
    """QwenLM/Qwen@2df8e8a README.md, profiling: four times the tokens take hardly longer."""
    found = next(row for row in load_rows(PUBLISHED) if row["id"] == f"qwen-profile/{run}")
    plan, _ = plan_from_run(found)
    assert evaluate(plan).step_time_s == pytest.approx(seconds, rel=0.1)


def test_hooks_are_run_forward_again_and_backward() -> None:
    """Beside ZeRO-1 a layer has six operators with weights, whose three runs wait for the host."""
    job = Job(global_batch=1, seq_len=64, stack="deepspeed", precision="bf16")
    evaluator = Evaluator(load_model("llama-2-7b"), load_cluster("dgx-a100-80g:1x1"), job)
    plans = (Parallelism(zero_stage=stage, recompute="full") for stage in (3, 1))
    sharded, whole = (evaluator.estimate(plan).time["launch"] for plan in plans)
    each = load_software("deepspeed").host_hook
    assert each is not None
    assert sharded - whole == pytest.approx(32 * 3 * 6 * each, rel=0.05)


@pytest.mark.parametrize(("stack", "share"), [("torch-eager", 1 / 4), ("torch-fsdp2", 0.0)])
def test_dropout_is_one_kernel_each_way_and_none_where_they_are_fused(stack: str, share: float) -> None:
    """Of GPT-2: what each half of a layer adds. Attention drops in its own kernel."""
    model, job = load_model("gpt2"), Job(global_batch=8, seq_len=1024, stack=stack)
    evaluator = Evaluator(model, load_cluster("dgx-h100:1"), job)
    plan = Parallelism(data=8, num_microbatches=1)
    block = next(b for b in evaluator.graph.blocks if any(op.kind == "attention" for op in b.ops))
    issuing = Issuing.of(evaluator.pricer(plan), block, 0.0)
    dropout = [op for op in block.ops if op.name.endswith("_dropout")]
    each = share * load_software(stack).host_operator
    assert len(dropout) == 2
    assert [issuing.operator(op) for op in dropout] == [each] * 2
    assert [issuing.gradient(op) for op in dropout] == [each] * 2
