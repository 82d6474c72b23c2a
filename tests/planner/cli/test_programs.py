"""``shard``: layouts of a traced program from the shell."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

Cli = Callable[..., Result]

PROGRAM = str(Path(__file__).parents[2] / "data" / "program_mlp.json")
CASES = Path(__file__).parents[1] / "tracing" / "cases.py"
ON_TWO_NODES = (PROGRAM, "dgx-h100:2", "--mesh", "data=4,model=4")


def test_people_see_time_proof_and_layouts(cli: Cli) -> None:
    result = cli("shard", *ON_TWO_NODES)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "mlp on dgx-h100:2, mesh data 4, model 4" in result.stdout
    assert "proven best" in result.stdout
    assert "params.layers.0.up    -, data+model" in result.stdout


def test_the_file_holds_what_json_prints(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "sharded.json"
    answer = json.loads(cli("shard", *ON_TWO_NODES, "--json", "-o", str(out)).stdout)
    assert answer == json.loads(out.read_text())
    assert answer["schema"] == "meshwright/sharding/1"
    assert answer["seconds"] == pytest.approx(answer["compute_seconds"] + answer["communication_seconds"])
    assert answer["baselines"].keys() == {"data parallel", "ZeRO-3"}
    assert min(answer["baselines"].values()) >= answer["seconds"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((PROGRAM, "dgx-h100:2", "--mesh", "data4"), 2, "'data4' is no axis"),
        ((PROGRAM, "dgx-h100:1", "--mesh", "data=64"), 2, "needs 64 devices"),
        ((PROGRAM, "dgx-h100:2", "--memory-limit", "1 MiB"), 3, "1 MiB on each device and need at least"),
        ((PROGRAM, "dgx-h100:2", "--memory-limit", "3"), 2, "has no unit"),
        (("missing.json", "dgx-h100:2"), 2, "no such file"),
        ((*ON_TWO_NODES, "--fail-if", "seconds > 0"), 4, "seconds"),
    ],
)
def test_how_it_ends(cli: Cli, arguments: tuple[str, ...], code: int, message: str) -> None:
    result = cli("shard", *arguments)
    assert (result.exit_code, message in result.stderr) == (code, True)


def test_a_program_that_is_none_is_refused(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "program.json"
    file.write_text('{"name": "x", "values": [], "operations": [], "inputs": ["lost"], "outputs": []}')
    result = cli("shard", str(file), "dgx-h100:1")
    assert result.exit_code == 2
    assert "['lost'] are not made by any operator" in result.stderr


@pytest.mark.jax
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
def test_a_function_is_traced_sharded_and_verified(cli: Cli, tmp_path: Path) -> None:
    out = str(tmp_path / "sharded.json")
    assert cli("shard", f"{CASES}:mlp", "dgx-h100:1", "--mesh", "data=8", "-o", out).exit_code == 0
    answer = json.loads(cli("verify", out, "--with", "jax", "--json").stdout)
    assert answer["passed"] is True
    assert answer["what"].endswith("compiled for 8 CPU devices (data 8) and run")
    differing = [o for o in answer["operators"] if not o["width_alone"]]
    assert answer["comparisons"]["operators_that_differ"]["found"] == len(differing)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "does not say which function it was traced from"),
        (("--function", "lost.py:step"), "lost.py:step: no such file"),
    ],
)
def test_a_program_without_its_function_is_not_verified(
    cli: Cli, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    out = str(tmp_path / "sharded.json")
    cli("shard", *ON_TWO_NODES, "-o", out)
    result = cli("verify", out, "--with", "jax", *options)
    assert (result.exit_code, message in result.stderr) == (2, True)
    assert "is verified --with jax or torch, not xla-tpu" in cli("verify", out, "--with", "xla-tpu").stderr


def test_a_plan_has_no_function(cli: Cli, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text('{"schema": "meshwright/plan/1"}')
    result = cli("verify", str(plan), "--with", "jax", "--devices", "8")
    assert (result.exit_code, "are for sharded programs" in result.stderr) == (2, True)


LLAMA = str(Path(__file__).parents[2] / "data" / "program_llama.json")


def test_a_program_is_a_model(cli: Cli, tmp_path: Path) -> None:
    out = str(tmp_path / "plan.json")
    job = ("--global-batch", "64", "--seq-len", "4096", "--data", "8", "--top", "1")
    assert cli("plan", LLAMA, "dgx-h100:1", *job, "-o", out).exit_code == 0
    ours = json.loads(cli("evaluate", out, "--json").stdout)["estimate"]
    theirs = json.loads(cli("plan", "llama-3-8b", "dgx-h100:1", *job, "--json").stdout)["estimate"]
    assert ours["step_time_s"] == pytest.approx(theirs["step_time_s"], rel=0.02)
    shown = json.loads(cli("models", LLAMA, "--json").stdout)
    assert shown["parameters"] == 8_030_261_248


@pytest.mark.jax
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
def test_a_function_is_a_model_that_exports_and_verifies(cli: Cli, tmp_path: Path) -> None:
    out, job = str(tmp_path / "plan.json"), ("--global-batch", "64", "--seq-len", "16", "--tensor", "2")
    assert cli("plan", f"{CASES}:gpt_loss", "dgx-h100:1", *job, "-o", out).exit_code == 0
    answer = json.loads(cli("verify", out, "--with", "jax", "--json").stdout)
    assert answer["passed"] is True


def test_a_program_that_is_no_model_is_refused(cli: Cli) -> None:
    result = cli("plan", PROGRAM, "dgx-h100:1", "--global-batch", "64", "--seq-len", "4096")
    assert result.exit_code == 2
    assert "holds its backward pass" in result.stderr


MODULE = """
import torch


class Loss(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(512, 2048, bias=False)

    def forward(self, x):
        return self.up(x).square().mean()


def example():
    with torch.device("meta"):
        return Loss(), torch.zeros(1024, 512)
"""


@pytest.mark.torch
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_a_module_is_sharded_with_its_backward_pass_on_request(cli: Cli, tmp_path: Path) -> None:
    """Whoever asks how to train a module must not be told of its forward pass without a word."""
    path = tmp_path / "module.py"
    path.write_text(MODULE)
    ask = ("shard", f"{path}:example", "dgx-h100:1")
    assert "forward      alone" in cli(*ask).stdout
    whole = json.loads(cli(*ask, "--gradient", "--json").stdout)
    assert sum("mm" in operator["name"] for operator in whole["operators"]) == 2


def test_a_gradient_is_added_where_a_module_is_traced(cli: Cli) -> None:
    result = cli("shard", *ON_TWO_NODES, "--gradient")
    assert (result.exit_code, "is traced already" in result.stderr) == (2, True)
