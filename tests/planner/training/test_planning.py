"""`plan_for`: what it refuses, and a plan in force in JAX (in torch: examples/train_tiny_under_plan.py)."""

import functools
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_llama import cluster, installed, tiny_model, tiny_plan

from planner import plan_for
from planner.errors import InputError, Unsupported
from planner.exporters.fsdp import to_fsdp2
from planner.plans import Alternative, Plan
from planner.training.planning import _described, _first, optimizer_name, stack_of

IN_JAX = """
import jax, jax.numpy as jnp
from planner import plan_for
params = {"transformer": {"h": [], "wte": {"embedding": jnp.zeros((50257, 768))}}}
found = plan_for(params, describe="gpt2", global_batch=16, seq_len=256, precision="fp32", tensor=1, zero_stage=3)
assert found.plan.plan.num_devices == 4, found.plan.plan
table = jax.device_put(params, found.shardings.params)["transformer"]["wte"]["embedding"]
print(table.addressable_shards[0].data.shape, dict(found.mesh.shape)["fsdp"])
"""


class AdamW:
    """Stands for torch.optim.AdamW."""


def test_optimizers_are_known_by_name_class_or_partial() -> None:
    assert optimizer_name("sgd") == "sgd"
    assert optimizer_name(AdamW) == optimizer_name(functools.partial(AdamW, lr=1)) == "adamw"
    with pytest.raises(InputError, match="optimizer 'Lion' is unknown; known: adamw"):
        optimizer_name(type("Lion", (), {}))


def test_a_model_without_configuration_must_be_described() -> None:
    with pytest.raises(InputError, match="no Hugging Face config: say what it is with describe="):
        _described(object(), None)
    assert _described(object(), "gpt2").name == "gpt2"


def test_something_that_is_no_model_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "jax", raising=False)
    with pytest.raises(InputError, match="a torch module or a pytree of JAX arrays, not a str"):
        plan_for("gpt2", cluster=cluster(1), global_batch=1, seq_len=16)


def test_the_fastest_plan_that_can_be_applied_is_taken() -> None:
    other = tiny_plan(data=2, zero_stage=3, shard_degree=2)
    judged = Plan.model_validate(other.model_dump(by_alias=True))
    from planner.api import judged as estimated

    estimate = estimated(
        judged.model_copy(update={"job": judged.job.model_copy(update={"precision": "bf16"})})
    )
    assert estimate.estimate is not None
    spare = Alternative(plan=other.plan, estimate=estimate.estimate, loses_because="slower")
    best = tiny_plan(tiny_model(), data=2, zero_stage=1)
    assert _first(best.model_copy(update={"alternatives": (spare,)}), to_fsdp2).plan.zero_stage == 3
    with pytest.raises(Unsupported, match="plan again with --zero 2 or 3"):
        _first(best, to_fsdp2)


@pytest.mark.skipif(not installed("torch"), reason="torch is not installed")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, when torch.compile is first called
def test_a_module_is_compiled_only_if_somebody_compiled_it() -> None:
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    assert stack_of(model) == "torch-eager"
    assert stack_of(torch.compile(model)) == "torch-fsdp2"
    model[1].compile()
    assert stack_of(model) == "torch-fsdp2"


@pytest.mark.skipif(not installed("transformers"), reason="transformers is not installed")
def test_a_module_of_transformers_trains_as_these_do() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = dict.fromkeys(("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size"), 2)
    assert stack_of(LlamaForCausalLM(LlamaConfig(num_attention_heads=1, **sizes))) == "transformers-fsdp2"


@pytest.mark.jax
@pytest.mark.skipif(not installed("jax"), reason="jax is not installed")
def test_a_plan_in_force_in_jax() -> None:
    root = Path(__file__).parents[3]
    environment = {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(root),
        "PATH": "",
    }
    done = subprocess.run(
        [sys.executable, "-c", IN_JAX],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "(50257, 192) 4"
