"""Records refuse clusters that cannot exist, and keep their documented units."""

from typing import Any

import pytest
from pydantic import ValidationError

from cluster_specs.catalog import load_cluster
from cluster_specs.cluster import ClusterSpec, DeviceSpec, LinkSpec
from cluster_specs.errors import InputError
from cluster_specs.record import validated

DGX = load_cluster("dgx-h100:4").model_dump()
TORUS = load_cluster("tpu-v7x:4x4x4*2").model_dump()


@pytest.mark.parametrize(
    ("fields", "change", "words"),
    [
        (DGX, {"nodes": 0}, "nodes: must be greater than 0"),
        (DGX, {"nodes": 1e30}, "nodes: is too large a number, found 1e\\+30"),
        (DGX, {"nodes": 10**8}, "at most 100,000,000 devices, got 800,000,000"),
        (DGX, {"nodes": 8}, "links join 32 of 64 devices"),
        (DGX, {"links": DGX["links"][::-1]}, "order links innermost first"),
        (DGX, {"links": {"fabric": "roce"}}, "links: must be a list"),
        (DGX, {"links": ()}, "links join 1 of 32 devices"),
        (TORUS, {"devices_per_node": 64}, "torus 4x4x4 has 128 devices, not 64"),
        (TORUS, {"torus": TORUS["torus"] | {"wrap": (True,)}}, "one entry per dimension"),
        (TORUS, {"torus": TORUS["torus"] | {"devices_per_point": 1}}, "has 64 devices, not 128"),
        (TORUS, {"links": ()}, "links join 128 of 256 devices"),
        (DGX, {"colour": "red"}, "colour: is no field"),
    ],
)
def test_inconsistent_clusters(fields: dict[str, Any], change: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        validated(ClusterSpec, fields | change, "here")
    assert str(caught.value).startswith("here: ")
    assert "\n" not in str(caught.value)


def test_more_problems_are_counted() -> None:
    with pytest.raises(InputError, match=r"\(and 1 more\)"):
        validated(ClusterSpec, DGX | {"nodes": 0, "devices_per_node": 0}, "here")


def test_records_are_frozen() -> None:
    cluster = load_cluster("dgx-h100:4")
    with pytest.raises(ValidationError):
        cluster.nodes = 5  # type: ignore[misc]


def test_torus_size_counts_the_devices_of_every_chip() -> None:
    torus = load_cluster("tpu-v3:4x8").torus
    assert torus is not None
    assert torus.num_devices == 4 * 8 * 2


@pytest.mark.parametrize("record", [ClusterSpec, DeviceSpec, LinkSpec])
def test_schemas_carry_the_documentation(record: type[ClusterSpec]) -> None:
    schema = record.model_json_schema()
    fields = schema.get("$defs", {}).get(record.__name__, schema)["properties"].values()
    assert sum("description" in field for field in fields) >= 4
