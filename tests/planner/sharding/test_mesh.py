"""Which devices a set of mesh axes joins."""

import itertools

import pytest

from cluster_specs.catalog import load_cluster
from planner.sharding.mesh import AXES, Mesh

SIZES = {"tensor": 2, "context": 4, "expert": 4, "data": 2}
TWO_LEVELS = load_cluster("dgx-h100:8")


def test_expert_ranks_are_neighbours_where_context_ranks_may_be_expert_ranks() -> None:
    """Megatron's order of 64 ranks: tensor 2, context 4; of its expert layers tensor 2, expert 4."""
    apart, nearest = Mesh(TWO_LEVELS, SIZES), Mesh(TWO_LEVELS, SIZES, experts_nearest=True)
    inside = Mesh(TWO_LEVELS, {"tensor": 2, "expert": 4}).group(["expert"])
    assert nearest.group(["expert"]) == inside
    assert [level.kind for level in inside.levels] == ["nvlink"]
    assert [level.kind for level in apart.group(["expert"]).levels] == ["infiniband"]
    assert [level.kind for level in nearest.group(["context", "data"]).levels] == ["infiniband"]
    assert nearest.inner_outer(("context", "data"), 4) != apart.inner_outer(("context", "data"), 4)


@pytest.mark.parametrize("axes", [c for n in range(1, 5) for c in itertools.combinations(AXES, n)])
def test_only_groups_of_expert_layers_have_that_order(axes: tuple[str, ...]) -> None:
    apart, nearest = Mesh(TWO_LEVELS, SIZES).group(axes), Mesh(TWO_LEVELS, SIZES, True).group(axes)
    assert apart.size == nearest.size
    of_experts = ("expert" in axes) != ("context" in axes) or axes[-2:] == ("context", "data")
    if not of_experts or axes in (("data",), ("tensor", "data")):
        assert apart == nearest


def test_context_ranks_that_hold_experts_are_the_nearest() -> None:
    """Megatron's order of 32 ranks: tensor 2, context 8; of its expert layers tensor 2, expert 4, four of each."""
    mesh = Mesh(
        TWO_LEVELS,
        {"tensor": 2, "context_expert": 4, "context": 2, "expert": 1, "data": 2},
        experts_nearest=True,
    )
    plain = Mesh(TWO_LEVELS, {"tensor": 2, "context": 8, "data": 2})
    assert mesh.group(["context_expert"]) == Mesh(TWO_LEVELS, {"tensor": 2, "expert": 4}).group(["expert"])
    assert mesh.group(["context_expert", "context"]) == plain.group(["context"])
    copies = mesh.group(["context", "data"])
    assert (copies.size, [level.kind for level in copies.levels]) == (4, ["infiniband"])
