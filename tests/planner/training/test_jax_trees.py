"""Shardings find the parameters of other libraries, by name or by shape, and never guess."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny_llama import installed, run_check, tiny_plan

from planner.errors import InputError
from planner.training.jax_trees import _name_of, logical_axis_rules

needs_jax = [pytest.mark.jax, pytest.mark.skipif(not installed("jax"), reason="jax is not installed")]

PLAN = {"data": 4, "tensor": 2, "zero_stage": 3, "sharding": "FULL_SHARD", "shard_degree": 4}

Q, OUT = "('fsdp', 'tensor', None)", "('tensor', None, 'fsdp')"
UP, DOWN = "('fsdp', 'tensor')", "('tensor', 'fsdp')"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    path.write_text(tiny_plan(**PLAN).to_json())
    environment = {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(Path(__file__).parents[3]),
    }
    script = str(Path(__file__).with_name("check_jax_trees.py"))
    return json.loads(run_check(script, path, **environment))


@pytest.mark.parametrize("_", [pytest.param(None, marks=needs_jax)])
def test_parameters_of_other_names_are_found(_: None, found: dict[str, Any]) -> None:
    specs = found["linen_like"]
    attention = "params.layers_1.attention"
    assert specs[f"{attention}.query.kernel"] == specs[f"{attention}.key.kernel"] == Q
    assert specs[f"{attention}.out.kernel"] == OUT
    assert (specs["params.layers_0.mlp.wi_1"], specs["params.layers_0.mlp.wo"]) == (UP, DOWN)
    assert specs["params.embed.embedding"] == DOWN
    assert specs["params.head.kernel"] == UP
    assert specs["params.layers_0.norm1.scale"] == "('fsdp',)"
    assert (found["shard"], found["devices"]) == ([4, 8, 16], 8)
    assert found["batch"] == "('fsdp', None)"


@pytest.mark.parametrize("_", [pytest.param(None, marks=needs_jax)])
def test_layers_in_one_array_and_optimizer_states_follow(_: None, found: dict[str, Any]) -> None:
    assert found["stacked"]["layers.attention.query.kernel"] == Q.replace("('", "(None, '", 1)
    assert found["states"]["mu.params.layers_1.attention.out.kernel"] == OUT
    assert found["states"]["count"] == "()"


@pytest.mark.jax
@pytest.mark.skipif(not installed("flax"), reason="flax is not installed")
def test_modules_of_flax_are_found(found: dict[str, Any]) -> None:
    assert found["real"]["linen"] == {"params.down.kernel": DOWN, "params.up.kernel": UP}
    assert sorted(found["real"]["nnx"].values()) == sorted([DOWN, UP])


def test_rules_of_logical_axes() -> None:
    rules = dict(logical_axis_rules(tiny_plan(**PLAN)))
    assert rules["batch"] == ("fsdp",)
    assert rules["embed"] == ("fsdp",)
    assert rules["mlp"] == rules["heads"] == rules["kv_heads"] == rules["vocab"] == ("tensor",)
    assert rules["length"] is rules["head_dim"] is None


def module(**specs: str) -> SimpleNamespace:
    """As an exported module whose parameters all have the shape (64, 64)."""

    def fit(path: str, shape: tuple[int, ...], key: str, spec: str, layout: str) -> str:
        if shape != (64, 64):
            raise ValueError
        return spec

    import re

    paths = {key.replace("_dot_", "."): spec for key, spec in specs.items()}
    return SimpleNamespace(
        PARAM_SPECS=paths,
        STATE_SPECS=paths,
        PARAM_DIMS=dict.fromkeys(paths, (("in",), ("out",))),
        fit=fit,
        pattern=lambda key: re.compile(re.escape(key) + "$"),
    )


def test_roles_decide_among_shapes_and_nothing_is_guessed() -> None:
    square = module(q_proj_dot_weight="P('tensor')", o_proj_dot_weight="P('fsdp')")
    assert _name_of(square, "block.3.query.w", (64, 64), "in_out") == "q_proj.weight"
    with pytest.raises(InputError, match=r"could be q_proj\.weight or o_proj\.weight, which the plan splits"):
        _name_of(square, "block.3.first.w", (64, 64), "in_out")
    with pytest.raises(InputError, match="no parameter that block.w of shape"):
        _name_of(square, "block.w", (64, 65), "in_out")
    alike = module(q_proj_dot_weight="P()", o_proj_dot_weight="P()")
    assert _name_of(alike, "block.3.first.w", (64, 64), "in_out") == "q_proj.weight"
