"""The exported JAX module trains in JAX, on eight CPU devices, with the numbers of one device."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from tiny_llama import JAX, installed, run_check, stage, tiny_model, tiny_plan
from warm import QUICKER

from planner.errors import Unsupported
from planner.exporters.jax import to_jax
from planner.models.catalog import build_graph
from planner.plans import Parallelism, Plan
from planner.verification.process import QUICKLY_COMPILED

needs_jax = [pytest.mark.jax, pytest.mark.skipif(not installed("jax"), reason="jax is not installed")]

Q, NORM = "model.layers.0.self_attn.q_proj.weight", "model.norm.weight"
K, DOWN = "model.layers.1.self_attn.k_proj.weight", "model.layers.1.mlp.down_proj.weight"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def moe_plan(**degrees: Any) -> Plan:
    model = tiny_model(
        model_type="mixtral",
        num_local_experts=4,
        num_experts_per_tok=2,
        intermediate_size=96,
        sliding_window=None,
    )
    return tiny_plan(model, **degrees)


def explicit_plan() -> Plan:
    """Choices that no named layout has: the MLP split along what it sums over, the table along hidden."""
    degrees = {"data": 2, "tensor": 4, "zero_stage": 3, "sharding": "FULL_SHARD", "shard_degree": 2}
    batch = {"data": "batch"}
    chosen = {
        "embedding": {"embedding": batch | {"tensor": "hidden"}},
        "layer": {
            "attn_norm": batch,
            "qkv": batch | {"tensor": "heads"},
            "rotary": batch | {"tensor": "heads"},
            "attention": batch | {"tensor": "heads"},
            "attn_out": batch | {"tensor": "heads"},
            "attn_residual": batch,
            "mlp_norm": batch,
            "gate_up": batch | {"tensor": "hidden"},
            "activation": batch | {"tensor": "seq"},
            "down": batch | {"tensor": "hidden"},
            "mlp_residual": batch,
        },
    }
    parallelism = Parallelism(**degrees)
    return tiny_plan(stages=(stage(parallelism, chosen),), **degrees)


TWICE_SPLIT = "context, states sharded over it, full recompute, torch's layout"

CASES: dict[str, tuple[Plan, dict[str, Any], dict[str, list[int]], dict[str, list[int]]]] = {
    "hybrid sharding, tensor, selective": (
        tiny_plan(
            data=4,
            tensor=2,
            zero_stage=3,
            sharding="HYBRID_SHARD",
            shard_degree=2,
            replicate_degree=2,
            recompute="selective",
        ),
        {},
        {Q: [32, 32], K: [32, 16], DOWN: [48, 32], NORM: [32], EMBEDDING: [64, 32], HEAD: [32, 64]},
        {Q: [32, 32]},
    ),
    TWICE_SPLIT: (
        tiny_plan(
            data=2, tensor=2, context=2, zero_stage=3, sharding="FULL_SHARD", shard_degree=4, recompute="full"
        ),
        {"layout": "out_in"},
        {Q: [32, 16], DOWN: [16, 48], NORM: [16], EMBEDDING: [64, 16], HEAD: [64, 16]},
        {Q: [32, 16]},
    ),
    "ZeRO 2": (
        tiny_plan(data=8, zero_stage=2, sharding="SHARD_GRAD_OP", shard_degree=8, recompute="attention"),
        {},
        {Q: [64, 64], NORM: [64]},
        {Q: [8, 64], NORM: [8], DOWN: [12, 64], EMBEDDING: [128, 8]},
    ),
    "ZeRO 1, fewer key heads than tensor ranks": (
        tiny_plan(tensor=8, zero_stage=1),
        {},
        {Q: [64, 8], K: [64, 8], DOWN: [12, 64], EMBEDDING: [16, 64]},
        {Q: [64, 8], K: [64, 8]},
    ),
    "replicas without sequence parallelism": (
        tiny_plan(data=4, tensor=2, replicate_degree=4, sequence_parallel=False),
        {},
        {Q: [64, 32], DOWN: [48, 64], NORM: [64]},
        {Q: [64, 32], DOWN: [48, 64]},
    ),
    "by operator": (
        explicit_plan(),
        {},
        {Q: [32, 16], DOWN: [48, 16], EMBEDDING: [128, 8], "model.layers.0.mlp.up_proj.weight": [16, 48]},
        {DOWN: [48, 16]},
    ),
    "experts": (
        moe_plan(data=4, expert=2, tensor=2, zero_stage=3, sharding="FULL_SHARD", shard_degree=4),
        {"experts": 4},
        {
            Q: [16, 32],
            "model.layers.0.mlp.experts.gate_up_proj": [2, 32, 96],
            "model.layers.0.mlp.experts.down_proj": [2, 48, 32],
            "model.layers.0.mlp.gate.weight": [16, 4],
        },
        {Q: [16, 32]},
    ),
}


def dict_keys(text: str, name: str) -> list[str]:
    """Keys of a dict literal assigned to ``name`` in Python source."""
    values = [n.value for n in ast.parse(text).body if isinstance(n, ast.Assign) and n.targets[0].id == name]
    return [key.value for key in values[0].keys]


@pytest.mark.parametrize("case", CASES)
def test_every_parameter_of_the_model_has_one_spec(case: str) -> None:
    plan = CASES[case][0]
    graph = build_graph(plan.model, plan.job.seq_len)
    paths = [t.path for block, _ in graph.instances() for t in block.tensors if t.role == "weight"]
    text = to_jax(plan)["jax_shardings.py"]
    assert sorted(dict_keys(text, "PARAM_SPECS")) == sorted(set(paths))
    assert dict_keys(text, "PARAM_DIMS") == dict_keys(text, "PARAM_SPECS")


@pytest.mark.parametrize("case", CASES)
def test_what_products_leave_and_read_is_pinned_where_sequences_are_split_twice(case: str) -> None:
    """XLA's gradients of weights: `docs/communication.md`, context, tensor and data axes."""
    text = to_jax(CASES[case][0])["jax_shardings.py"]
    found = dict_keys(text, "SUMMED_SPECS"), dict_keys(text, "GATHERED_SPECS")
    left, read = ["layer.attn_projected", "layer.mlp_out"], ["layer.attn_normed", "layer.mlp_normed"]
    assert found == ((left, [*read, "head.final_normed"]) if case == TWICE_SPLIT else ([], []))


@pytest.mark.parametrize(
    ("heads", "data", "pinned"), [(2, 2, True), (4, 2, False), (1, 2, False), (2, 1, False)]
)
def test_what_several_ranks_make_the_same_keys_of_is_pinned_beside_data_ranks(
    heads: int, data: int, pinned: bool
) -> None:
    """Of four tensor ranks: XLA exchanges gradients between data ranks else, `docs/communication.md`."""
    sharding = {"zero_stage": 3, "sharding": "FULL_SHARD", "shard_degree": data} if data > 1 else {}
    plan = tiny_plan(tiny_model(num_key_value_heads=heads), data=data, tensor=4, **sharding)
    text = to_jax(plan)["jax_shardings.py"]
    assert dict_keys(text, "GATHERED_SPECS") == (["layer.attn_normed"] if pinned else [])
    assert dict_keys(text, "SUMMED_SPECS") == []


def run(plan: Plan, settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    exported = folder / "jax_shardings.py"
    exported.write_text(to_jax(plan)["jax_shardings.py"])
    flags = " ".join(("--xla_force_host_platform_device_count=8", *QUICKLY_COMPILED, QUICKER))
    environment = {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    return json.loads(run_check("check_jax.py", exported, json.dumps(settings), modules=JAX, **environment))


@pytest.mark.parametrize("case", [pytest.param(case, marks=needs_jax) for case in CASES])
def test_exported_step_equals_one_device(case: str, tmp_path: Path) -> None:
    plan, settings, params, momentum = CASES[case]
    found = run(plan, settings, tmp_path)
    assert found["loss_error"] < 1e-5 * found["loss"]
    assert found["param_error"] < 1e-4 * found["moved"]
    assert {name: found["params"][name] for name in params} == params
    assert {name: found["momentum"][name] for name in momentum} == momentum


@pytest.mark.jax
@pytest.mark.skipif(not installed("jax"), reason="jax is not installed")
def test_offloaded_states_stay_in_host_memory(tmp_path: Path) -> None:
    sharded = {"data": 4, "tensor": 2, "zero_stage": 3, "sharding": "FULL_SHARD", "shard_degree": 4}
    found = run(tiny_plan(offload=("optimizer",), **sharded), {}, tmp_path)
    assert found["state_memory"] == ["pinned_host"]
    assert found["param_error"] < 1e-4 * found["moved"]


def test_a_pipeline_is_refused_with_the_pin_that_helps() -> None:
    with pytest.raises(
        Unsupported, match=r"no pipeline, the plan has 2 stages; plan again with --pipeline 1"
    ):
        to_jax(tiny_plan(pipeline=2))


def test_an_uneven_vocabulary_is_refused_with_the_padded_size() -> None:
    with pytest.raises(Unsupported, match=r"vocab = 127 of model\.embed_tokens\.weight .* pad it to 128"):
        to_jax(tiny_plan(tiny_model(vocab_size=127), tensor=2))


def test_offload_of_weights_is_refused() -> None:
    with pytest.raises(Unsupported, match="does not offload weights, only the optimizer"):
        to_jax(tiny_plan(offload=("optimizer", "weights")))


def test_an_unknown_recompute_policy_is_refused() -> None:
    with pytest.raises(Unsupported, match="no remat policy for 'every-other'"):
        to_jax(tiny_plan(recompute="every-other"))


class Chip:
    """One of a torus of 4 x 4 chips, of one or several slices, as `jax.experimental.mesh_utils` looks at it."""

    platform, device_kind, process_index, core_on_chip = "tpu", "TPU v6 lite", 0, 0

    def __init__(self, index: int) -> None:
        self.id, self.slice_index = index, index // 16
        self.coords = (index % 4, index % 16 // 4, 0)


@pytest.mark.jax
@pytest.mark.skipif(not installed("jax"), reason="jax is not installed")
@pytest.mark.parametrize("slices", [1, 2])
def test_axes_may_be_parts_of_a_torus_axis(slices: int) -> None:
    data = 8 * slices
    plan = tiny_plan(
        data=data, tensor=2, zero_stage=3, sharding="HYBRID_SHARD", shard_degree=8, replicate_degree=slices
    )
    module: dict[str, Any] = {}
    exec(next(iter(to_jax(plan).values())), module)  # noqa: S102
    mesh = module["make_mesh"]([Chip(i) for i in range(16 * slices)])
    grid = mesh.devices.reshape(slices, 8, 2)
    assert all(len({chip.slice_index for chip in part.flat}) == 1 for part in grid)
    for first, second in grid.reshape(-1, 2):
        assert sum(abs(a - b) for a, b in zip(first.coords, second.coords, strict=True)) == 1
