"""How stacks save and load: data that names stacks that there are, each once."""

from cluster_specs.checkpoints import checkpoint_families, checkpoint_family
from cluster_specs.software import list_software


def test_every_stack_that_is_named_exists_and_has_one_family() -> None:
    named = [stack for family in checkpoint_families() for stack in family.stacks]
    assert len(named) == len(set(named))
    assert set(named) <= {stack.name for stack in list_software()}


def test_every_family_saves_and_loads_by_ways_with_sources() -> None:
    for family in checkpoint_families():
        assert {way.does for way in family.ways} == {"save", "load"}
        assert len({way.call for way in family.ways if way.does == "save"}) == sum(
            way.does == "save" for way in family.ways
        )
        assert all(way.source and (way.device or way.host or way.first) for way in family.ways)


def test_a_stack_that_nobody_looked_into_has_none() -> None:
    assert checkpoint_family("hf-fsdp") is None
    found = checkpoint_family("nemo")
    assert found is not None
    assert found.name.startswith("Megatron")
