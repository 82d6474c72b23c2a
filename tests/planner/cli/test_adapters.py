"""Adapters on the command line: asked for, said in every answer, refused in one sentence."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

Cli = Callable[..., Result]

QUESTION = ("llama-3.2-1b", "dgx-h100:1", "--global-batch", "16", "--seq-len", "512", "--stack", "hf-fsdp")
TRAINED = "LoRA r=16 on q_proj, v_proj: 1.7M of 1.24B parameters trained"
"""peft: 1,703,936 of 1,237,518,336."""


def words(result: Result) -> str:
    assert result.exit_code == 0, result.stderr
    return " ".join(result.stdout.split())


def test_plan_says_what_is_trained_and_splits_no_operators(cli: Cli) -> None:
    assert TRAINED in words(cli("plan", *QUESTION, "--lora", "16"))
    plan = json.loads(cli("plan", *QUESTION, "--lora", "16", "--json").stdout)
    assert plan["plan"]["data"] == 8
    assert plan["job"]["adapter"]["target_modules"] == ["q_proj", "v_proj"]
    assert plan["optimality"]["proven"]


def test_explain_and_export_take_the_plan(cli: Cli, tmp_path: Path) -> None:
    path = str(tmp_path / "plan.json")
    words(cli("plan", *QUESTION, "--lora", "16", "--zero", "3", "-o", path))
    assert TRAINED in words(cli("explain", path))
    words(cli("export", path, "--to", "hf-trainer", "-o", str(tmp_path)))
    assert json.loads((tmp_path / "adapter_config.json").read_text())["r"] == 16
    refused = cli("export", path, "--to", "torchtitan", "-o", str(tmp_path))
    assert refused.exit_code == 2
    assert "torchtitan cannot express adapters; export to hf-trainer" in refused.stderr


def test_axolotl_gets_the_plan_as_it_is(cli: Cli, tmp_path: Path) -> None:
    """Operators of adapters are no departure from the named layout, which it would have to leave out."""
    path = str(tmp_path / "plan.json")
    words(cli("plan", *QUESTION, "--lora", "16", "--zero", "3", "-o", path))
    result = cli("export", path, "--to", "axolotl", "-o", str(tmp_path))
    assert "changed" not in result.stderr
    assert "adapter: lora" in (tmp_path / "axolotl.yaml").read_text()


def test_verify_refuses_adapters(cli: Cli, tmp_path: Path) -> None:
    path = str(tmp_path / "plan.json")
    words(cli("plan", *QUESTION, "--lora", "16", "-o", path))
    result = cli("verify", path, "--with", "torch")
    assert result.exit_code == 2
    assert "verify trains whole models" in result.stderr


def test_the_answer_is_that_of_an_exhaustive_search(cli: Cli) -> None:
    """Every plan priced in turn."""
    found = {
        (zero, micro, policy): json.loads(
            cli("plan", *QUESTION, "--lora", "16", "--json", *pins(zero, micro, policy)).stdout
        )["estimate"]["step_time_s"]
        for zero in (0, 2, 3)
        for micro in (1, 2)
        for policy in ("none", "selective", "full")
    }
    best = json.loads(cli("plan", *QUESTION, "--lora", "16", "--json").stdout)["estimate"]["step_time_s"]
    assert best == min(found.values())


def pins(zero: int, micro: int, policy: str) -> tuple[str, ...]:
    return ("--zero", str(zero), "--micro-batch", str(micro), "--recompute", policy)


def test_four_bits_make_a_model_fit(cli: Cli) -> None:
    question = ("llama-3.1-70b", "dgx-h100:1", *QUESTION[2:], "--lora", "16", "--zero", "0")
    assert cli("fit", *question, "--quiet").exit_code == 3
    assert "It fits" in words(cli("fit", *question, "--base", "nf4"))


def test_what_cannot_be_swept_or_joined_by_pipelines_is_refused(cli: Cli) -> None:
    swept = cli("what-if", *QUESTION, "--set", "lora=8,16")
    assert (swept.exit_code, swept.stdout) == (2, "")
    assert "--set lora: all points train the same adapter; give --lora by itself" in swept.stderr
    pools = cli("plan", QUESTION[0], "dgx-a100-80g:1+dgx-h100:1", *QUESTION[2:], "--lora", "16")
    assert (pools.exit_code, pools.stdout) == (2, "")
    assert "unlike devices are joined by a pipeline" in pools.stderr


def test_a_run_file_has_adapters_in_the_words_of_peft(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("""
model = {name = "llama-3.2-1b", seq = 512}
hardware = "dgx-h100:1"
adapter = {r = 16, target_modules = ["q_proj", "v_proj"]}
[parallel]
dp = 8
sharding = "FULL_SHARD"
micro_batch = 2
global_batch = 16
stack = "hf-fsdp"
""")
    assert TRAINED in words(cli("evaluate", str(path)))


def test_sweeps_plan_adapters(cli: Cli) -> None:
    arguments = ("llama-3.2-1b", "dgx-h100", "--devices", "1,8", "--batch", "16", "--seq-len", "512")
    found = cli("what-if", *arguments, "--lora", "8", "--stack", "hf-fsdp", "--json")
    points = json.loads(found.stdout)["points"]
    assert [point["inputs"]["job"]["adapter"] for point in points] == ["LoRA r=8 on q_proj, v_proj"] * 2
    assert all(point["estimate"]["memory"]["frozen_weights"] for point in points)


def test_the_search_stays_data_parallel_on_stacks_that_split_adapters(cli: Cli) -> None:
    """And says so; `evaluate` takes other plans."""
    asked = (*QUESTION, "--lora", "16", "--lora-targets", "linear_qkv", "--stack", "megatron")
    found = cli("plan", *asked)
    assert "Not in it: model parallelism, which adapters are not planned with" in words(found)
    sized = cli("what-if", QUESTION[0], "dgx-h100", "--devices", "8", *QUESTION[2:], *asked[len(QUESTION) :])
    assert sized.exit_code == 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--base", "nf4"), "--base is about adapters: give their rank too, --lora 16"),
        (("--lora-targets", "q_proj"), "--lora-targets is about adapters: give their rank too, --lora 16"),
        (("--lora", "0"), "--lora: must be greater than 0, found 0"),
        (("--lora", "8", "--base", "nf8"), "--base: must be 'nf4', 'int8', 'fp8' or 'bf16', found 'nf8'"),
        (("--lora", "8", "--lora-dropout", "1"), "--lora-dropout: must be less than 1, found 1.0"),
        (
            ("--lora", "8", "--lora-targets", "q"),
            "no linear module of the layers of llama-3.2-1b is called 'q'",
        ),
        (("--lora", "8", "--tensor", "2"), "--tensor 2: adapters are planned data-parallel only"),
        (("--lora", "8", "--stack", "nanotron"), "not for stack nanotron: use --stack hf-fsdp"),
        (("--lora", "8", "--stack", "megatron", "--tensor", "2"), "adapters are planned data-parallel only"),
    ],
)
def test_what_has_no_meaning_is_refused(cli: Cli, options: tuple[str, ...], sentence: str) -> None:
    result = cli("plan", *QUESTION, *options)
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert sentence in line
