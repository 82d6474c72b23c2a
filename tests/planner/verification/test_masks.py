"""Which keys the programs that stand for a plan let a query see, against masks of transformers."""

import numpy as np
import pytest

pytest.importorskip("jax")
utilities = pytest.importorskip("transformers.masking_utils")

from planner.verification.programs.jax_graph import mask_of  # noqa: E402

LENGTH, HALF = 13, 3


@pytest.mark.parametrize("causal", [True, False])
def test_windows_are_those_of_transformers(causal: bool) -> None:
    """A causal one counts the query's own key; of ModernBERT's both sides count, and the query's own."""
    if causal:
        theirs, window = utilities.sliding_window_overlay(HALF), HALF
    else:
        theirs, window = utilities.sliding_window_bidirectional_overlay(HALF), 2 * HALF + 1
    ours = np.array(mask_of(LENGTH, LENGTH, {"causal": causal, "window": window}))
    expected = [
        [bool(theirs(0, 0, q, k)) and (k <= q or not causal) for k in range(LENGTH)] for q in range(LENGTH)
    ]
    assert (ours == np.array(expected)).all()
