"""`meshwright plan` on a cluster of pools, and `compare-methods`."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

Cli = Callable[..., Result]

MIXED = """
name = "old-and-new"
pools = [
    {device = "a100-sxm-80g", devices_per_node = 2, links = [{name = "x", fabric = "nvlink3", bandwidth = "300 GB/s"}]},
    {device = "h100-sxm-80g", devices_per_node = 2, links = [{name = "x", fabric = "nvlink4", bandwidth = "450 GB/s"}]},
]
between = {name = "spine", fabric = "infiniband", bandwidth = "100 Gbit/s"}
"""

JOB = ("--global-batch", "16", "--seq-len", "1024")


@pytest.fixture
def mixed(tmp_path: Path) -> str:
    path = tmp_path / "mixed.toml"
    path.write_text(MIXED)
    return str(path)


def test_a_plan_across_pools_is_evaluated_drawn_and_explained(cli: Cli, mixed: str, tmp_path: Path) -> None:
    path = str(tmp_path / "plan.json")
    options = ("--global-batch", "32", "--seq-len", "2048", "--no-context", "--tensor", "1")
    result = cli("plan", "llama-3.2-1b", mixed, *options, "--json", "-q", "-o", path)
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["cluster"]["name"] == "old-and-new"
    assert {stage["devices"][0] // 2 for stage in found["plan"]["stages"]} == {0, 1}
    assert found["optimality"]["gap"] > 0
    again = json.loads(cli("evaluate", path, "--json").stdout)
    assert again["estimate"] == found["estimate"]
    assert "2 x a100-sxm-80g + 2 x h100-sxm-80g" in " ".join(cli("explain", path).stdout.split())
    drawn = cli("timeline", path).stdout.splitlines()
    assert len(drawn) == found["plan"]["pipeline"]


def test_stages_may_differ_on_request(cli: Cli) -> None:
    options = ("gpt2", "a100-4x-50g:1", *JOB, "--zero", "0", "--no-context", "--json", "-q")
    equal, free = (json.loads(cli("plan", *options, *more).stdout) for more in ((), ("--unequal-stages",)))
    assert free["estimate"]["step_time_s"] <= equal["estimate"]["step_time_s"]


def test_methods_side_by_side(cli: Cli) -> None:
    result = cli("compare-methods", "gpt2", "a100-4x-50g:1", *JOB, "--budget", "30", "--json", "-q")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert [row["method"] for row in found["results"]] == [
        "exact",
        "exhaustive",
        "beam",
        "annealing",
        "learned",
    ]
    assert min(row["slower"] for row in found["results"]) == 0
    assert "proven best" in cli("compare-methods", "gpt2", "a100-4x-50g:1", *JOB, "--budget", "5").stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--method", "genetic"), "unknown method 'genetic'"),
        (("--budget", "0"), "--budget 0"),
        (("--recompute", "most"), "--recompute 'most'"),
    ],
)
def test_bad_questions_are_one_sentence(cli: Cli, options: tuple[str, ...], message: str) -> None:
    result = cli("compare-methods", "gpt2", "a100-4x-50g:1", *JOB, *options, "-q")
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
