"""Sweeps as files: what is read back is what was written."""

import csv
import io
import json
from pathlib import Path

import pytest
from small import AXES, PINS

from planner.errors import InputError
from planner.sweep import tables
from planner.sweep.records import Sweep
from planner.sweep.running import sweep
from planner.sweep.tables import content, rows


@pytest.fixture(scope="module")
def answer() -> Sweep:
    return sweep({**AXES, "devices": (8, 12), "network": ("1x", "2x", "800 Gbit/s")}, fixed=PINS)


def test_json_is_the_record(answer: Sweep) -> None:
    text = content(answer, Path("a.json"))
    assert Sweep.model_validate(json.loads(text)) == answer
    assert json.loads(text)["schema"] == "meshwright/sweep/1"


def test_csv_has_every_point(answer: Sweep) -> None:
    read = list(csv.DictReader(io.StringIO(str(content(answer, Path("a.csv"))))))
    assert len(read) == len(answer.points) == 12
    for row, point in zip(read, answer.points, strict=True):
        assert (int(row["devices"]), row["status"]) == (point.inputs.devices, point.status)
        assert row["asked.network"] == point.inputs.changes["network"]
        assert row["step_time_s"] == ("" if point.estimate is None else str(point.estimate.step_time_s))


def test_parquet_is_the_same_table(answer: Sweep) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the parquet extra")
    table = parquet.read_table(io.BytesIO(bytes(content(answer, Path("a.parquet"))))).to_pylist()  # type: ignore[arg-type]
    assert table == rows(answer)


def test_unknown_formats_are_refused(answer: Sweep) -> None:
    with pytest.raises(InputError, match=r"one of \.json, \.csv, \.parquet"):
        content(answer, Path("a.xlsx"))


def test_a_missing_package_is_said_before_anything_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="Parquet needs pyarrow"):
        tables.check_format(Path("a.parquet"))
    tables.check_format(Path("a.csv"))
