"""How long layouts for programs traced from JAX take: import, clean-up, tables, solver, and the gap that is left.

    python benchmarks/programs.py [--seconds 60]

CPU seconds of one core. ``nodes`` are inputs, operators and copies after clean-up; ``decide`` is how many of them
are left to decide once repeated blocks share their choice.
"""

import argparse
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from planner.intra_op.narrowing import solve_narrowed
from planner.tracing.reading.from_jax import from_jax
from planner.tracing.solving.shard import set_up

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "planner" / "tracing"))

BLOCK_MESHES = (
    ("dgx-h100:1", {"model": 8}),
    ("dgx-h100:8", {"data": 8, "model": 8}),
    ("dgx-h100:128", {"data": 128, "model": 8}),
    ("dgx-h100:128", {"pod": 16, "data": 8, "model": 8}),
)


class Row(NamedTuple):
    name: str
    case: Any
    cluster: str
    mesh: dict[str, int]
    fold: bool | None = None


def cases() -> Iterator[Row]:
    import jax
    import jax_layers
    from jax_models import MODELS

    size = jax_layers.Sizes(1, 4096, 32, 8, 14336, 128256, 256, 4096, "bfloat16")

    def block(parameters: Any, x: Any) -> Any:
        y = jax_layers.attention(parameters["attention"], x, size, rotary=True)
        return (jax_layers.mlp_block(parameters["mlp"], y) ** 2).sum()

    weights = {
        "attention": jax_layers.attention_weights(size),
        "mlp": jax_layers.mlp_weights(size, gated=True),
    }
    data = (jax.ShapeDtypeStruct((size.batch, size.length, size.width), size.dtype),)
    one = jax_layers.Case(block, weights, data, {})
    for cluster, mesh in BLOCK_MESHES:
        yield Row("one block, forward and backward", one, cluster, mesh)
    large = jax_layers.Sizes(126, 16384, 128, 8, 53248, 128256, 512, 8192, "bfloat16")
    yield Row("405B, layers in a scan", MODELS["llama"](large), "dgx-h100:128", {"data": 128, "model": 8})
    deep = jax_layers.Sizes(9, 4096, 32, 32, 16384, 32768, 256, 1024, "bfloat16")
    for fold in (True, False):
        yield Row(
            "2,000 operators",
            MODELS["t5"](deep._replace(layers=4)),
            "dgx-h100:8",
            {"data": 8, "model": 8},
            fold,
        )


def measure(row: Row, seconds: float) -> list[str]:
    start = time.process_time()
    program = from_jax(row.case.step, *row.case.arguments)
    traced = time.process_time()
    setting = set_up(program, row.cluster, row.mesh, fold=row.fold)
    tabulated = time.process_time()
    answer = solve_narrowed(setting.problem.network(math.inf), time.monotonic() + seconds)
    solved = time.process_time()
    gap = 0.0 if answer.lower_bound > answer.cost - 1 else 1 - answer.lower_bound / answer.cost
    counts = (len(program.operations), len(setting.problem.options), len(set(setting.problem.group)))
    spans = (traced - start, tabulated - traced, solved - tabulated)
    mesh = " x ".join(map(str, row.mesh.values()))
    return [row.name, mesh, *map(str, counts), *(f"{span:.2f}" for span in spans), f"{gap:.2%}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="wall time for each solution")
    options = parser.parse_args()
    table = Table("program", "mesh", "operators", "nodes", "decide", "trace s", "tables s", "solve s", "gap")
    for row in cases():
        table.add_row(*measure(row, options.seconds))
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
