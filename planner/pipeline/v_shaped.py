"""ZB-V: stages run down the ranks and back up, so that rank r holds stages r and 2p-1-r."""

from collections.abc import Sequence

from planner.pipeline.patterns import Phase, v_shaped
from planner.pipeline.schedule import Schedule


def zb_v(p: int, v: int, m: int) -> Schedule:
    """ZB-V: no bubble where F = I = W and m >= 2p - 1, with the activation memory of 1F1B.

    Fewer microbatches run the order for 2p - 1 with the surplus left out.
    """
    full = max(m, 2 * p - 1)

    def phases(r: int) -> Sequence[Phase]:
        return (
            (2 * (p - r) - 1, "Fa"),
            (r, "Fb Fa"),
            (p - r, "Fb Ib Wb"),
            (full - 2 * p + r + 1, "Fa Ia Wa Fb Ib Wb"),
            (p - r - 1, "Ia Wa Fb Ib Wb"),
            (r, "Ia Ib"),
            (p - r, "Ia Wa"),
            (r, "Wb"),
            (r, "Wa"),
        )

    return v_shaped(p, m, phases)
