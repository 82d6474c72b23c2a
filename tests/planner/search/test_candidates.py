"""Families, whose candidates are made when they are asked for."""

import pytest
from small_cases import CASES, search_of

from planner.evaluation import Evaluator
from planner.evaluation.checks import waits
from planner.plans import Offload
from planner.search.candidates import parallelism
from planner.search.space import candidates, families, offloaded


@pytest.mark.parametrize("name", CASES)
def test_families_part_the_space(name: str) -> None:
    search = search_of(name, "devices")
    found = list(families(search.evaluator, search.pins, search.objective))
    assert len({c for family in found for c in family}) == sum(map(len, found))
    for family in found:
        assert [family[n] for n in range(len(family))] == list(family)
        assert family.policies == {c.recompute for c in family}
        for policy in family.policies:
            assert family.under(policy) == [c for c in family if c.recompute == policy]


def test_weights_stepped_within_the_backward_leave_plans_in_which_no_gradient_waits() -> None:
    """Of the same space those that evaluation does not refuse, whatever model, cluster and pipelines."""
    seen = set[bool]()
    for search in (search_of(name, "time") for name in CASES):
        late = search.evaluator
        if late.software.gradient_life != "late":
            continue
        early = Evaluator(late.model, late.cluster, late.job.model_copy(update={"step_in_backward": True}))
        every, kept = (set(candidates(each, search.pins, "time", True)) for each in (late, early))
        assert kept == {c for c in every if not waits(parallelism(c), late.software)}
        assert all((c.num_microbatches, c.pipeline, c.expert) == (1, 1, 1) for c in kept)
        seen.add(kept != every)
    assert seen == {True}


@pytest.mark.parametrize("offload", [("activations",), ("optimizer", "weights")])
def test_offload_changes_nothing_else_of_a_family(offload: tuple[Offload, ...]) -> None:
    """Weights leave only where they are brought for each layer."""
    seen = set[bool]()
    for search in (search_of(name, "devices") for name in CASES):
        for family in families(search.evaluator, search.pins, search.objective):
            hosted = list(offloaded(family, offload))
            alike = [c for c in family if c._replace(offload=offload) in hosted]
            assert hosted == [c._replace(offload=offload) for c in alike]
            seen.add(len(hosted) < len(family))
    assert seen == ({False, True} if "weights" in offload else {False})
