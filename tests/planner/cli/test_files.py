"""What commands leave on disk."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

import planner.cli.files
from planner.cli.files import write_files
from planner.errors import InputError

Cli = Callable[..., Result]


def test_files_are_written_whole(tmp_path: Path) -> None:
    write_files({tmp_path / "new" / "a.txt": "one", tmp_path / "b.txt": "two"})
    assert (tmp_path / "new" / "a.txt").read_text() == "one"
    assert sorted(p.name for p in tmp_path.rglob("*") if p.is_file()) == ["a.txt", "b.txt"]


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE, text=True)
    write_files({pipe: "through"})
    assert reader.communicate(timeout=10)[0] == "through"
    assert pipe.is_fifo()


def test_an_error_names_the_file_that_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file is a file, not a folder to write into"):
        write_files({tmp_path / "file" / "plan.json": "text"})
    with pytest.raises(InputError, match="is a folder"):
        write_files({tmp_path: "text"})
    with pytest.raises(OSError, match="File name too long") as caught:
        write_files({tmp_path / ("x" * 300): "text"})
    assert caught.value.filename == str(tmp_path / ("x" * 300))


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of two files fails: neither appears, the old one stays, no temporary file remains."""
    (tmp_path / "a.txt").write_text("old")
    synced: list[int] = []

    def full(descriptor: int) -> None:
        synced.append(descriptor)
        if len(synced) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(planner.cli.files.os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        write_files({tmp_path / "a.txt": "new", tmp_path / "b.txt": "new"})
    assert caught.value.filename == str(tmp_path / "b.txt")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("a.txt", "old")]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_stdout_is_one_sentence(run_file: str) -> None:
    command = [sys.executable, "-m", "planner.cli", "evaluate", run_file, "--json"]
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert result.returncode == 1
    assert "no space left on device" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_file_is_no_folder_to_write_into(cli: Cli, tmp_path: Path, run_file: str) -> None:
    (tmp_path / "taken").write_text("mine")
    for out in ("taken", "taken/inside"):
        result = cli("export", run_file, "--to", "jax", "-o", str(tmp_path / out))
        assert (result.exit_code, result.stdout) == (2, "")
        assert "taken is a file, not a folder to write into" in result.stderr.replace("/inside", "")
    assert (tmp_path / "taken").read_text() == "mine"


def test_export_writes_the_files_of_the_target(
    cli: Cli, tmp_path: Path, run_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {"one.py": "1", "two.yaml": "2"}
    monkeypatch.setattr("planner.exporters.registry.export", lambda plan, target: texts)
    result = cli("export", run_file, "--to", "any", "-o", str(tmp_path / "out"), "--json")
    assert result.exit_code == 0, result.stderr
    written = json.loads(result.stdout)["files"]
    assert {Path(name).name: Path(name).read_text() for name in written} == texts
