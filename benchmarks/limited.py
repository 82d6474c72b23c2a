"""How long layouts take where memory is short, and what little memory costs.

    python benchmarks/limited.py [--seconds 120] [--only block]

``memory`` is the limit as a share of what the fastest layouts take, or that of the devices. CPU seconds of one core for
everything that `planner.shard` does after the import: tables and solution without the limit, within it, and with second
runs. Beside them what the solver's clock counts (`planner.intra_op.clock`).
"""

import argparse
import itertools
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from programs import ONE_BLOCK, cases
from rich.console import Console
from rich.table import Table

from planner import shard
from planner.errors import Infeasible
from planner.intra_op import clock
from planner.tracing.reading.from_jax import from_jax

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "planner" / "tracing"))

NODE, MANY = "dgx-h100:1", "dgx-h100:128"
TWO, THREE = {"data": 2, "model": 4}, {"pod": 2, "data": 2, "model": 2}
OF_MANY = {"data": 128, "model": 8}, {"pod": 4, "data": 32, "model": 8}


class Row(NamedTuple):
    name: str
    case: Any
    mesh: dict[str, int]
    shares: tuple[float | None, ...]
    cluster: str = NODE


def rows() -> Iterator[Row]:
    import jax_layers
    from jax_models import MODELS

    one = jax_layers.block(jax_layers.Sizes(1, 2048, 16, 8, 5632, 32000, 32, 2048, "bfloat16"))
    for mesh in (TWO, THREE):
        yield Row("block", one, mesh, (0.95, 0.9, 0.85, 0.83))
    for wide in itertools.takewhile(lambda row: row.name == ONE_BLOCK, cases()):
        yield Row("wide block", wide.case, wide.mesh, (0.9, 0.7), wide.cluster)
    models = {
        "mlp": (jax_layers.Sizes(2, 4096, ffn=16384, vocab=1024, batch=64, length=1024, dtype="bfloat16"), True),
        "gpt": (jax_layers.Sizes(4, 2048, 16, 16, 8192, 32000, 32, 2048, "bfloat16"), False),
        "llama": (jax_layers.Sizes(16, 2048, 16, 8, 5632, 32000, 32, 2048, "bfloat16"), False),
        "t5": (jax_layers.Sizes(1, 1024, 16, 16, 4096, 32000, 64, 1024, "bfloat16"), False),
        "mixtral": (jax_layers.Sizes(1, 1024, 16, 16, 4096, 32000, 64, 1024, "bfloat16"), False),
        "unet": (jax_layers.Sizes(1, 512, batch=256, dtype="bfloat16"), False),
    }  # fmt: skip
    for name, (sizes, trains) in models.items():
        case = MODELS[name](sizes)._replace(trains=trains)
        yield Row(name, case, TWO, (0.9, 0.7, 0.5))
    for batch, mesh in itertools.product((512, 128), OF_MANY):
        large = jax_layers.Sizes(126, 16384, 128, 8, 53248, 128256, batch, 8192, "bfloat16")
        yield Row(f"405B, {batch}", MODELS["llama"](large), mesh, (None,), MANY)


def measure(row: Row, seconds: float) -> Iterator[list[str]]:
    program = from_jax(row.case.step, *row.case.arguments)
    mesh = " x ".join(map(str, row.mesh.values()))
    roomy = shard(program, row.cluster, row.mesh, memory_limit=math.inf)
    for share in row.shares:
        start, limit = time.process_time(), share and share * roomy.memory_bytes
        try:
            with clock.counted(math.inf):
                tight = shard(program, row.cluster, row.mesh, memory_limit=limit, seconds=seconds)
                counted = clock.now()
        except Infeasible:
            found = ["", "", "nothing fits", ""]
        else:
            gap = 0.0 if tight.proven else 1 - tight.lower_bound_seconds / tight.seconds
            found = [
                f"{counted:.2f}",
                f"{tight.seconds / roomy.seconds - 1:.2%}",
                str(len(tight.recomputed)),
                f"{gap:.2%}",
            ]
        memory = f"{share:.0%}" if share else "its own"
        yield [row.name, mesh, memory, f"{time.process_time() - start:.2f}", *found]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120.0, help="wall time for each")
    parser.add_argument("--only", nargs="*", default=[], help="names of programs")
    options = parser.parse_args()
    table = Table("program", "mesh", "memory", "CPU s", "counted s", "slower by", "run twice", "gap")
    for row in rows():
        if not options.only or row.name in options.only:
            for line in measure(row, options.seconds):
                table.add_row(*line)
                print(*line, flush=True, file=sys.stderr)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
