"""What XLA split first of look-ups in steps that it compiled: rows of a table, tokens of all ranks, ranks.

Those with columns, with rows, and copies; what was first split, and whether the rest was tokens, there and back; jax
0.10.2 with libtpu 0.0.52 (``tests/published/xla_*.jsonl``).
"""

import pytest

from planner.sharding.lookups import (
    LookUp,
    first_split,
    splits_tokens_of_columns,
    splits_tokens_of_rows,
)

COMPILED = """
 32000  16384  4  8 1 columns no  no
 32000   8192  2  8 1 rows    yes yes
 32000   8192  2  4 2 rows    no  no
 32000  16384  4  2 2 columns no  no
 32000  32768  4  4 1 columns no  yes
 32000  32768  8  2 1 columns no  yes
 32000  32768  8  2 2 columns yes yes
128256   8192  2  8 1 rows    no  no
128256   8192  2 16 1 rows    no  no
128256   8192  4  4 1 columns no  no
128256  16384  4  8 1 rows    no  no
128256  16384  4  4 1 columns no  no
128256  65536  8  4 2 columns no  no
128256   8192  2  2 2 rows    no  no
 50432   4096  2  8 1 rows    no  no
 32000 131072 16  1 1 columns no  no
"""
ROWS = [line.split() for line in COMPILED.strip().splitlines()]


@pytest.mark.parametrize(
    ("rows", "tokens", "columns", "tensor", "copies", "first", "there", "back"), ROWS, ids=map(" ".join, ROWS)
)
def test_the_smallest_largest_array_decides(
    rows: str, tokens: str, columns: str, tensor: str, copies: str, first: str, there: str, back: str
) -> None:
    lookup = LookUp(float(rows), float(tokens), int(columns), int(tensor), int(copies))
    assert first_split(lookup) == first
    if lookup.tensor > 1:
        found = {
            "rows": lambda backward: splits_tokens_of_rows(lookup),
            "columns": lambda backward: splits_tokens_of_columns(lookup, backward),
        }[first]
        assert [found(backward) for backward in (False, True)] == [there == "yes", back == "yes"]
