"""Runs that people write by hand, as TOML, YAML or JSON, and what is said of those that are none."""

import json
from pathlib import Path
from typing import Any

import pytest

from planner.errors import InputError
from planner.runs import load_run, parse_run, plan_from_run
from planner.runs.files import load_rows

RUN = {"model": "llama-3.1-8b", "hardware": "dgx-h100:1", "parallel": {"dp": 8, "global_batch": 16}}

TOML = """
model = {name = "llama-3.1-8b", seq = 8192}
hardware = "dgx-h100:1"
[parallel]
dp = 8
global_batch = 16
"""

YAML = """
model: {name: llama-3.1-8b, seq: 8192}
hardware: dgx-h100:1
parallel: {dp: 8, global_batch: 16}
"""


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_toml_yaml_and_json_mean_the_same(tmp_path: Path) -> None:
    run = {**RUN, "model": {"name": "llama-3.1-8b", "seq": 8192}}
    files = {"run.toml": TOML, "run.yaml": YAML, "run.json": json.dumps(run)}
    plans = [plan_from_run(load_run(write(tmp_path, name, text))) for name, text in files.items()]
    assert plans[0] == plans[1] == plans[2]
    assert plans[0][0].plan.micro_batch == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"modle": {}}, "unknown field 'modle'; did you mean model"),
        (
            {"parallel": {"micro_batchs": 2}},
            "unknown field of parallel 'micro_batchs'; did you mean micro_batch",
        ),
        ({"parallel": {"dp": 0}}, "parallel.dp"),
        ({"parallel": {"tp": -2}}, "parallel.tp"),
        ({"parallel": {"micro_batch": "two"}}, "parallel.micro_batch"),
        ({"hardware": None}, "hardware"),
    ],
)
def test_bad_fields_are_refused_by_name(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    path = write(tmp_path, "run.json", json.dumps({**RUN, **change}))
    with pytest.raises(InputError, match=reason) as caught:
        load_run(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("run.json", "", "not valid JSON"),
        ("run.json", '{"model": ', "not valid JSON"),
        ("run.json", "[1, 2]", "must be a table"),
        ("run.json", "[" * 100_000, "not valid JSON|nested too deeply"),
        ("run.toml", "model = ", "not valid TOML"),
        ("run.yaml", "a: [1", "not valid YAML"),
        ("run.yaml", "just words", "must be a table"),
        ("run.yaml", "x" * (2 << 20), "at most"),
        ("run.txt", "{}", "unknown file type"),
    ],
)
def test_files_that_are_no_run(tmp_path: Path, name: str, text: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        load_run(write(tmp_path, name, text))


def test_files_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(bytes(range(256)) * 1000)
    with pytest.raises(InputError, match="is not text"):
        load_run(tmp_path / "run.json")
    with pytest.raises(InputError, match="no such file"):
        load_run(tmp_path / "none.json")
    with pytest.raises(InputError, match="is a folder"):
        load_run(tmp_path)


def test_rows_name_the_broken_line(tmp_path: Path) -> None:
    path = write(tmp_path, "runs.jsonl", '{"id": "a"}\n\n{"id": \n')
    with pytest.raises(InputError, match="line 3"):
        list(load_rows(path))


def test_words_that_are_not_understood_are_told_those_that_are() -> None:
    for field, known in (("precision", "bf16"), ("recompute", "selective"), ("schedule", "zb-h1")):
        parallel = {"pp": 2, "dp": 4, "global_batch": 16, field: "odd"}
        row = {**RUN, "model": {"name": "llama-3.1-8b", "seq": 8192}, "parallel": parallel}
        with pytest.raises(InputError, match=rf"{field} 'odd' is not understood; use .*\b{known}\b"):
            plan_from_run(row)


def test_a_config_is_found_beside_the_run_file(tmp_path: Path) -> None:
    write(tmp_path, "config.json", "{}")
    path = write(tmp_path, "run.json", json.dumps({**RUN, "model": {"config": "config.json", "seq": 128}}))
    assert load_run(path)["model"]["config"] == str(tmp_path / "config.json")


def test_missing_sections_are_named() -> None:
    with pytest.raises(InputError, match="model"):
        parse_run({"hardware": "dgx-h100:1"})
    with pytest.raises(InputError, match="hardware needs a cluster, or gpu and n_gpus"):
        plan_from_run({"model": {"name": "llama-3.1-8b", "seq": 8}, "hardware": {}})
    with pytest.raises(InputError, match=r"model\.seq is missing"):
        plan_from_run(RUN)
