"""Rows that XLA adds to an array on a TPU so that its scatter can go in chunks of one size.

A rank's part is tiles of 8 rows and 128 columns. Over ``n`` ranks ``n + 4`` chunks in fp32, whatever the array's type,
fill a *buffer* that is nearly all memory that a kernel has on its chip. Chunks are whole rows of tiles, and an even
number of tiles; over four ranks that are a square each of its halves is. Parts are padded to as many rows as the chunks
have, and what is then beyond a rank's own rows is sent back to its neighbour.

Of what is scattered along its columns nothing is padded: chunks are an even share of the rows. Where none is small
enough, and at least an eighth of that, XLA sums the array whole, and in 16 bits wherever a part has an odd number of
tiles across.

Of several heads, a rank's rows of a column of tiles have to be one chunk; those of a lone head are rows.

Source: scatters compiled for slices of TPU v5e, v5p and v6e (jax 0.10.2, libtpu 0.0.52), in
``tests/planner/sharding/test_chunks.py``.
"""

import math

TILE_ROWS, TILE_COLUMNS = 8, 128
WHOLE_WIDTH = 4
"""Of an element that fills a place of a tile [bytes]."""
TILE_BYTES = WHOLE_WIDTH * TILE_ROWS * TILE_COLUMNS
FURTHER_CHUNKS = 4
"""That are there beside one for each rank."""
LEAST_CHUNK = 8
"""Largest chunk over the least in which an array is scattered along its columns."""


def padded_rows(rows: float, columns: float, ranks: int, buffer: float, square: bool = False) -> float:
    """Rows of a rank's part of an array that ``ranks`` scatter along its rows, of ``rows`` without padding.

    ``buffer`` is what all chunks take [bytes].
    """
    across = math.ceil(columns / TILE_COLUMNS)
    down = math.ceil(rows / TILE_ROWS)
    unit = (1 + across % 2) * (1 + square)
    most = math.floor(buffer / TILE_BYTES / (ranks + FURTHER_CHUNKS) / across)
    most -= most % unit
    if most < 1 or most >= down:
        return rows
    count = math.ceil(down / most)
    return TILE_ROWS * count * unit * math.ceil(down / count / unit)


def cuts_columns(rows: float, columns: float, ranks: int, buffer: float, width: float) -> bool:
    """Whether ``ranks`` can scatter an array along its columns, of which each keeps so many, in whole tiles.

    ``width`` is that of an element [bytes].
    """
    across, down = math.ceil(columns / TILE_COLUMNS), math.ceil(rows / TILE_ROWS)
    if columns % TILE_COLUMNS or (width < WHOLE_WIDTH and across % 2):
        return False
    most = math.floor(buffer / TILE_BYTES / (ranks + FURTHER_CHUNKS))
    if across * down <= most:
        return True
    least = max(1, math.ceil(most // LEAST_CHUNK / across))
    return any(down % chunk == 0 for chunk in range(least, most // across + 1))


def scatters_heads(tokens: float, heads: float, ranks: int, buffer: float) -> bool:
    """Whether ``ranks`` can scatter an array of ``heads`` along its tokens, of which each keeps so many."""
    return heads == 1 or math.ceil(tokens / TILE_ROWS) * TILE_BYTES <= buffer / (ranks + FURTHER_CHUNKS)
