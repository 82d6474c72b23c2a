"""Files of runs and rows as people and tables write them, and what is said of those that are none."""

import json
from pathlib import Path
from typing import Any

import pytest

from planner.errors import InputError
from planner.runs import load_run, parse_run, plan_from_run
from planner.runs.files import load_rows

RUN: dict[str, Any] = {"model": "llama-3.1-8b", "hardware": "dgx-h100:1", "parallel": {"dp": 8}}


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty: one JSON object per line is needed"),
        ("\n \n", "is empty: one JSON object per line is needed"),
        ('[\n{"id": "a"}]', "line 1: not valid JSON by itself"),
        ("id,step_time_s\na,3", "line 1: not valid JSON by itself"),
        ('{"id": ' + "9" * 5000 + "}", "line 1: not valid JSON by itself"),
        ("[1]", "line 1: one object per line is needed, found a list"),
    ],
)
def test_what_are_no_rows_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        list(load_rows(write(tmp_path, "runs.jsonl", text)))


def test_rows_are_read_as_editors_and_tables_write_them(tmp_path: Path) -> None:
    """A mark of byte order, two characters at ends of lines, and in texts what others take for one."""
    rows = [{**RUN, "id": "a\u2028b\x85"}, {**RUN, "id": "c"}]
    text = "\ufeff" + "\r\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    path = tmp_path / "runs.jsonl"
    path.write_bytes(text.encode())
    assert [row["id"] for row in load_rows(path)] == [row["id"] for row in rows]


def test_rows_find_their_files_beside_them(tmp_path: Path) -> None:
    write(tmp_path, "config.json", "{}")
    write(tmp_path, "mine.toml", "")
    rows = [
        {**RUN, "model": {"config": "config.json", "seq": 128}, "hardware": "mine.toml:2"},
        {**RUN, "model": "config.json", "hardware": ["odd"]},
    ]
    path = write(tmp_path, "runs.jsonl", "\n".join(map(json.dumps, rows)))
    first, second = load_rows(path)
    assert first["model"]["config"] == str(tmp_path / "config.json")
    assert first["hardware"] == {"cluster": str(tmp_path / "mine.toml:2")}
    assert second == rows[1]


def test_a_size_that_is_mistyped_is_refused_or_listed(tmp_path: Path) -> None:
    sizes = {"layers": 4, "hidden": 512, "heads": 8, "ffn_hidden": 2048, "vocab": 32000, "seq": 1024}
    run = {**RUN, "model": {**sizes, "kv_headz": 2}}
    with pytest.raises(InputError, match="unknown field of model 'kv_headz'; did you mean kv_heads"):
        load_run(write(tmp_path, "run.json", json.dumps(run)))
    assert "ignored model.kv_headz" in plan_from_run(run)[1]


def test_a_size_beside_a_name_is_refused_or_listed(tmp_path: Path) -> None:
    run = {**RUN, "model": {"name": "llama-3.1-8b", "seq": 1024, "vocab": 64000}}
    with pytest.raises(
        InputError, match=r"model.vocab is read beside layers and hidden only: llama-3.1-8b has"
    ):
        load_run(write(tmp_path, "run.json", json.dumps(run)))
    assert "ignored model.vocab" in plan_from_run(run)[1]


WRITTEN = {"model": "llama-3.1-8b", "hardware": "dgx-h100:1", "parallel": {"dp": 8, "global_batch": 16}}

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


def test_toml_yaml_and_json_mean_the_same(tmp_path: Path) -> None:
    run = {**WRITTEN, "model": {"name": "llama-3.1-8b", "seq": 8192}}
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
    path = write(tmp_path, "run.json", json.dumps({**WRITTEN, **change}))
    with pytest.raises(InputError, match=reason) as caught:
        load_run(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("run.json", "", "is empty; a table of keys was expected"),
        ("run.toml", "\n", "is empty; a table of keys was expected"),
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
        row = {**WRITTEN, "model": {"name": "llama-3.1-8b", "seq": 8192}, "parallel": parallel}
        with pytest.raises(InputError, match=rf"{field} 'odd' is not understood; use .*\b{known}\b"):
            plan_from_run(row)


def test_a_config_is_found_beside_the_run_file(tmp_path: Path) -> None:
    write(tmp_path, "config.json", "{}")
    path = write(
        tmp_path, "run.json", json.dumps({**WRITTEN, "model": {"config": "config.json", "seq": 128}})
    )
    assert load_run(path)["model"]["config"] == str(tmp_path / "config.json")


def test_missing_sections_are_named() -> None:
    with pytest.raises(InputError, match="model"):
        parse_run({"hardware": "dgx-h100:1"})
    with pytest.raises(InputError, match="hardware needs a cluster, or gpu and n_gpus"):
        plan_from_run({"model": {"name": "llama-3.1-8b", "seq": 8}, "hardware": {}})
    with pytest.raises(InputError, match=r"model\.seq is missing"):
        plan_from_run(WRITTEN)
