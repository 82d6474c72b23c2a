"""Rows of scatters that XLA compiled: device, ranks in a line or a square, rows and columns of a part, rows it got.

Each is the sum of a product of which ranks keep rows, in 16 bits or fp32 (the first 16, as in 16 bits), on slices
of 2x4 to 8x8, or a gradient of a whole step; jax 0.10.2 with libtpu 0.0.52. Those of v5p's squares are as v5e's buffer.
"""

import pytest

from cluster_specs.software import load_software
from planner.sharding.chunks import padded_rows

COMPILED = """
v5e 4 line      128   2048    128
v5e 4 line      256   2048    256
v5e 4 line      512   2048    528
v5e 4 line     1024   2048   1040
v5e 4 line     2048   2048   2080
v5e 4 line      512   4096    520
v5e 4 line      512   1024    512
v5e 2 line      512   2048    512
v5e 2 line     1024   2048   1024
v5e 2 line     2048   2048   2072
v5e 2 line      512   4096    512
v5e 8 line      512   2048    512
v5e 8 line     1024   2048   1064
v5e 8 line     2048   2048   2128
v5e 8 line      512   4096    512
v5e 8 line      256   2048    256
v5e 4 line    24008    128  24080
v5e 4 line    40024    128  40128
v5e 4 line    64072    128  64224
v5e 4 line     1024   4096   1040
v5e 8 line    24008    128  24160
v5e 8 line    40024    128  40256
v5e 8 line    64072    128  64368
v5e 8 line     1024   4096   1080
v5e 2 line    24008    128  24080
v5e 2 line    40024    128  40032
v5e 2 line    64072    128  64288
v5e 2 line     1024   4096   1064
v5e 4 square  24008    128  24192
v5e 4 square  40024    128  40128
v5e 4 square  64072    128  64512
v5e 4 square   1024   2048   1040
v5e 4 square   2048   2048   2080
v5e 4 square   1024   4096   1120
v6e 4 line    24008    128  24064
v6e 4 line    40024    128  40032
v6e 4 line    64072    128  64080
v6e 4 line     1024   2048   1032
v6e 4 line     2048   2048   2080
v6e 4 line     1024   4096   1040
v6e 8 line    24008    128  24080
v6e 8 line    40024    128  40064
v6e 8 line    64072    128  64272
v6e 8 line     1024   2048   1024
v6e 8 line     2048   2048   2072
v6e 8 line     1024   4096   1064
v6e 8 line      512   5504    560
v6e 8 line      512  16000    512
v6e 2 line     1024   4096   1024
v5e 4 line      512  32064    512
v5e 16 line      688   4096    720
v5e 4 line      512   8192    560
v5e 4 line      512  10240    520
v5e 4 line      512  12288    512
v5e 4 line      512  12800    512
v5e 4 line      512  16384    528
v5e 4 line      512  20480    512
v5e 4 line      512  32000    512
v5e 8 line      512   4096    512
v5e 8 line      512   8192    512
v5e 8 line      512  11008    528
v5e 4 line     1024  16384   1032
"""
ROWS = [line.split() for line in COMPILED.strip().splitlines()]


@pytest.mark.parametrize(("device", "ranks", "shape", "rows", "columns", "padded"), ROWS)
def test_a_part_has_the_rows_that_xla_gave_it(
    device: str, ranks: str, shape: str, rows: str, columns: str, padded: str
) -> None:
    habits = load_software("jax-xla").partitioner
    assert habits is not None
    buffer = habits.scatter_buffer_of(f"tpu-{device}")
    found = padded_rows(float(rows), float(columns), int(ranks), buffer, shape == "square")
    assert found == int(padded)
