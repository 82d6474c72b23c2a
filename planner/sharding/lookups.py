"""How XLA's partitioner splits a look-up in a table of which data ranks have columns, and tensor ranks rows.

It can split the table's columns, its rows, or the tokens, and takes the way whose largest array is the least: operands
and results of the look-up or of a collective, while all that this way does not split is whole. Then it splits what is
left among the ranks of a group in the same manner. Sizes are in rows of the table, of which a token finds one.

Source: openxla/xla ``xla/service/spmd/gather_scatter_handler.cc`` (``GatherPartitionMethodsOrderedByCost``) and
``spmd_partitioner_util.h`` (``EvaluatePartitionCost``).
"""

from typing import NamedTuple


class LookUp(NamedTuple):
    """One look-up of a micro-batch, on all ranks."""

    rows: float
    tokens: float
    columns: int
    """Ranks that have some columns each."""
    tensor: int
    """Ranks that have some rows each."""
    copies: int = 1
    """Of all shards."""

    @property
    def ranks(self) -> int:
        """All of them."""
        return self.columns * self.tensor * self.copies


def first_split(lookup: LookUp) -> str:
    """``columns``, ``rows`` or ``tokens``; of ways that are alike the one whose collectives send the least.

    By columns first, copies gather what all of them find; without copies columns send no more than rows do.
    """
    rows, tokens, columns, tensor, copies = lookup
    gathered = rows / columns * (1 + 1 / tensor) if tensor > 1 else 0.0
    exchanged = 2 * tokens / lookup.ranks
    ways = {"columns": max((rows + tokens) / columns, gathered, exchanged)}
    if tensor > 1:
        ways["rows"] = max(rows / tensor + tokens, rows / tensor * (1 + 1 / columns))
    ways["tokens"] = max(rows * (1 + 1 / columns / tensor), rows + tokens / lookup.ranks)
    return min(ways, key=lambda way: (ways[way], way == "columns" and copies > 1))


def splits_tokens_of_rows(lookup: LookUp) -> bool:
    """Whether ranks that have columns of the same rows gather these, rather than exchange what they find."""
    rows = lookup.rows / lookup.tensor
    exchange = max(rows + lookup.tokens, 2 * lookup.tokens) / lookup.columns
    data = lookup.columns * lookup.copies
    return max(rows * (1 + 1 / lookup.columns), rows + lookup.tokens / data) < exchange


def splits_tokens_of_columns(lookup: LookUp, backward: bool) -> bool:
    """Whether ranks that have rows of the same columns gather these, and take some tokens each; else they sum.

    In the forward, what they find is then gathered.
    """
    group = lookup.tensor * lookup.copies
    of_some = max(lookup.rows * (1 + 1 / lookup.tensor), lookup.rows + lookup.tokens / group)
    found = 0.0 if backward else lookup.tokens * (1 + 1 / group)
    return max(of_some, found) < lookup.rows / lookup.tensor + lookup.tokens
