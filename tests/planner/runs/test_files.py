"""Files of rows as people and tables write them."""

import json
from pathlib import Path
from typing import Any

import pytest

from planner.errors import InputError
from planner.runs import load_run, plan_from_run
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
        ("[1]", "line 1: one object per line is needed, found list"),
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
