"""The shipped benchmark runs on a processor, alone and as a group, and its results can be fitted."""

import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from planner.calibration import microbenchmarks
from planner.calibration.fitting import calibrate
from planner.calibration.measurements import parse_measurements
from planner.errors import InputError

ROOT = Path(__file__).parents[3]
HAS_TORCH = importlib.util.find_spec("torch") is not None

GROUP = """
from planner.calibration import microbenchmarks as bench
from planner.calibration.measurements import to_json_lines
bench.SIZES = {"cpu": bench.SIZES["cpu"]._replace(matmuls=((64, 64, 64),), attentions=(), copies=(4096,),
                                                  messages=(1024, 8192, 65536))}
bench.ROUNDS, bench.LEAST_ROUND_SECONDS = 2, 1e-4
found = bench.measure("cpu", lambda text: None)
print("" if found is None else to_json_lines(found), end="")
"""


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Threads that wait for each other beside other tests make a launch take longer than a product."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.torch
@pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")
def test_measuring_this_processor(monkeypatch: pytest.MonkeyPatch, one_thread: None) -> None:
    monkeypatch.setattr(microbenchmarks, "LEAST_ROUND_SECONDS", 1e-3)
    said: list[str] = []
    found = microbenchmarks.measure("cpu", said.append)
    assert found is not None
    assert {one.kind for one in found} == {"launch", "copy", "matmul", "attention"}
    assert said[0] == "measuring launches"
    fitted = calibrate("dgx-h100", found)
    assert 0 < fitted.changes["device.efficiency.matmul"] < 0.2  # of 67 TFLOP/s in fp32


@pytest.mark.torch
@pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")
def test_measuring_collectives_of_two_processes() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    group = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", GROUP],
            env=os.environ | group | {"RANK": rank, "LOCAL_RANK": rank, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    first, second = (process.communicate(timeout=120)[0] for process in ranks)
    assert [process.returncode for process in ranks] == [0, 0]
    assert second == ""
    found = parse_measurements(first, "stdout")
    collectives = [one for one in found if one.kind == "collective"]
    assert {(one.op, one.ranks, one.nodes) for one in collectives} == {
        ("all_reduce", 2, 1),
        ("all_gather", 2, 1),
    }
    assert len(collectives) == 6  # how fast this machine is decides whether they suit any cluster


@pytest.mark.skipif(HAS_TORCH, reason="torch is installed")
def test_without_torch_it_says_what_to_install() -> None:
    with pytest.raises(InputError, match=r"pip install 'meshwright\[torch\]'"):
        microbenchmarks.measure("cpu", lambda text: None)
