"""Programs unlike transformers: planned, run on 8 devices as one computes them, exchanging what was priced."""

from pathlib import Path

import pytest

pytest.importorskip("jax")

import plain_programs  # noqa: E402
from test_proof import slow_cluster  # noqa: E402

from planner import from_jax, shard  # noqa: E402
from planner.tracing.applying.views import View  # noqa: E402
from planner.tracing.factors import reshaped, transposed  # noqa: E402
from planner.verification import with_program  # noqa: E402
from planner.verification.with_program import verify_program  # noqa: E402

FILE = Path(__file__).parent / "plain_programs.py"


NAMES = [
    "graph_attention", "state_space", "group_norms", "second_order", "actor_critic", "gated_recurrence",
    "accumulated", "scanned_residuals", "turning_states", "laplacian", "video",
]  # fmt: skip


@pytest.mark.jax
@pytest.mark.parametrize("name", NAMES)
def test_a_program_exchanges_what_is_priced(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = (*with_program.FLAGS, "--xla_cpu_use_fusion_emitters=false")
    monkeypatch.setattr(with_program, "FLAGS", flags)
    plan = shard(
        from_jax(*getattr(plain_programs, name)()), slow_cluster(1), {"data": 2, "model": 4}, seconds=20
    )
    assert plan.collectives
    answer = verify_program(plan, f"{FILE}:{name}")
    assert answer.passed, answer.failures()
    assert not answer.operators


def test_a_view_says_where_what_it_shows_must_lie() -> None:
    """Rows of 16 seen as 4 groups of 4: groups are the major part of them, what is in a group is not."""
    view, sizes = View(None, None, None, reshaped((8, 16), (8, 4, 4))), {"a": 2, "b": 4}
    assert view.behind((("a",), ("b",), ()), sizes) == (("a",), ("b",))
    assert view.behind(((), (), ()), sizes) == ((), ())
    assert view.behind(((), (), ("a",)), sizes) is None
    assert view.behind(((), ("a", "b"), ()), sizes) is None  # 8 devices, 4 groups
    turned = View(None, None, None, transposed((8, 16), (1, 0)))
    assert turned.behind((("a",), ("b",)), sizes) == (("b",), ("a",))
