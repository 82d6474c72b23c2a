"""A question as a browser sends it; a server in a process of its own; the browser of the other pages."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "pages"))

from browser import tab as tab


@pytest.fixture
def question() -> dict[str, Any]:
    return {
        "model": "llama-3.2-1b",
        "cluster": "dgx-h100",
        "devices": 8,
        "job": {"global_batch": 64, "seq_len": 2048},
    }


@contextmanager
def serving(**options: Any) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`meshwright serve`, and its ``http://127.0.0.1:port``; ``options`` of the process."""
    command = [
        sys.executable,
        "-m",
        "planner.cli",
        "serve",
        "--port",
        "0",
        "--json",
        "--no-cache",
        "--no-ahead",
    ]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes, **options) as server:
        assert server.stdout
        told = ""
        while not told.endswith("}\n"):
            told += server.stdout.readline()
        yield server, json.loads(told)["url"].rstrip("/")
        server.terminate()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving() as (_, url):
        yield url


@pytest.fixture
def own_server(hears_interrupts: dict[str, Any]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """One that a test may stop."""
    with serving(**hears_interrupts) as started:
        yield started
