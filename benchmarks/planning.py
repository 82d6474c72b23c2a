"""Planning time and peak memory, one process and one thread per case.

    python benchmarks/planning.py [CASE ...]

Targets on one core: under 2 s for the first case, under 10 s and 1 GiB for every one of them.
"""

import json
import os
import platform
import subprocess
import sys
import time
from typing import Any, NamedTuple


class Case(NamedTuple):
    """One question to the planner."""

    model: str
    cluster: str
    global_batch: int
    seq_len: int
    stack: str = "torch-fsdp2"


CASES = {
    "8b": Case("llama-3.1-8b", "dgx-h100:1", 128, 8192),
    "70b": Case("llama-3.1-70b", "dgx-h100:16", 1024, 8192),
    "405b": Case("llama-3.1-405b", "dgx-h100:2048", 4096, 8192),
    "deepseek-v3": Case("deepseek-v3", "h800-8x:256", 15360, 4096),
    "llama-4-scout": Case("llama-4-scout", "dgx-h100:64", 1024, 8192),
    "mixtral-tpu": Case("mixtral-8x7b", "tpu-v5p:4x4x8", 1024, 4096, "jax-xla"),
}

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def measure(case: Case) -> dict[str, Any]:
    """Run in a process of its own: seconds from the start of the interpreter's imports, and the peak."""
    import resource

    started = time.perf_counter()
    from planner import plan

    model, cluster, global_batch, seq_len, stack = case
    found = plan(model, cluster, global_batch=global_batch, seq_len=seq_len, stack=stack)
    assert found.optimality is not None
    assert found.estimate is not None
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "wall_s": time.perf_counter() - started,
        "cpu_s": used.ru_utime + used.ru_stime,
        "peak_mib": used.ru_maxrss / 1024,
        "evaluated": found.optimality.evaluated,
        "pruned": found.optimality.pruned,
        "proven": found.optimality.proven,
        "step_time_s": found.estimate.step_time_s,
    }


def main(names: list[str]) -> None:
    if names[:1] == ["--measure"]:
        print(json.dumps(measure(CASES[names[1]])))
        return
    print(f"Python {platform.python_version()} on {platform.machine()}, one thread")
    print(f"{'case':<14}{'wall':>8}{'CPU':>8}{'peak':>10}{'priced':>9}{'excluded':>11}  proven   step")
    for name in names or CASES:
        command = [sys.executable, __file__, "--measure", name]
        result = subprocess.run(
            command, capture_output=True, text=True, check=True, env={**os.environ, **ONE_THREAD}
        )
        row = json.loads(result.stdout)
        print(
            f"{name:<14}{row['wall_s']:>6.1f} s{row['cpu_s']:>6.1f} s{row['peak_mib']:>6.0f} MiB"
            f"{row['evaluated']:>9,}{row['pruned']:>11,}  {'yes' if row['proven'] else 'no':<6}"
            f"{row['step_time_s']:>7.2f} s"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
