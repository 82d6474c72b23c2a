"""Clusters by number of devices, and hardware numbers by short names."""

import pytest

from cluster_specs.catalog import load_cluster
from cluster_specs.changes import KNOBS, changed, knob_paths
from cluster_specs.cluster import ClusterSpec
from cluster_specs.errors import InputError, UnknownName
from cluster_specs.sizing import default_sizes, sized


@pytest.mark.parametrize(
    ("source", "devices", "nodes"),
    [
        ("dgx-h100", 8, 1),
        ("dgx-h100", 64, 8),
        ("dgx-h100:2", 128, 16),
        ("dgx-h100", 2, 1),
        ("tpu-v5p", 128, 1),
    ],
)
def test_number_of_devices(source: str, devices: int, nodes: int) -> None:
    cluster = sized(source, devices)
    assert (cluster.num_devices, cluster.nodes) == (devices, nodes)


def test_as_written_by_hand() -> None:
    assert sized("dgx-h100", 128) == load_cluster("dgx-h100:16")
    assert sized("dgx-h100:3") == load_cluster("dgx-h100:3")


def test_a_file_is_resized(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "mine.json"
    path.write_text(load_cluster("dgx-h100:4").model_dump_json(exclude_none=True))
    assert sized(str(path), 64).links == load_cluster("dgx-h100:8").links


@pytest.mark.parametrize(
    ("source", "devices", "said"),
    [
        ("dgx-h100", 12, "nodes of 8"),
        ("dgx-h100", 3, "no even part.*name dgx-h100:1x3"),
        ("dgx-h100", 0, "nodes of 8"),
        ("tpu-v5p", 100, "no usual slice"),
        ("dgx-h101", 8, "dgx-h100"),
        ("dgx-h100:2+dgx-a100-80g:2", 64, "mixes kinds"),
    ],
)
def test_what_is_not_sold_is_refused(source: str, devices: int, said: str) -> None:
    with pytest.raises(InputError, match=said):
        sized(source, devices)


@pytest.mark.parametrize("source", ["dgx-h100", "tpu-v5p", "tpu-v2", "gb200-nvl72"])
def test_default_sizes_exist(source: str) -> None:
    counts = default_sizes(source, 256)
    assert counts
    assert [sized(source, n).num_devices for n in counts] == list(counts)


@pytest.mark.parametrize("knob", KNOBS)
@pytest.mark.parametrize("source", ["dgx-h100:4", "tpu-v5p:4x4x4*2"])
def test_a_knob_turns_its_numbers(source: str, knob: str) -> None:
    cluster = load_cluster(source)
    assert knob_paths(cluster, knob)
    twice = changed(cluster, {knob: "2x"})
    assert twice != cluster
    assert changed(twice, {knob: "0.5x"}).model_copy(update={"sources": {}}) == cluster.model_copy(
        update={"sources": {}}
    )


def test_values_and_factors() -> None:
    cluster = load_cluster("dgx-h100:4")
    assert changed(cluster, {"network": "800 Gbit/s"}).links[-1].bandwidth == 100e9
    assert changed(cluster, {"links.infiniband.bandwidth": "3x"}).links[-1].bandwidth == 150e9
    assert changed(cluster, {"device.memory": "160 GB"}).device.memory == 160e9


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"network": "-1x"}, "factor"),
        ({"networks": "2x"}, "unknown field"),
        ({"network": "fast"}, "what-if"),
        ({"name": "2x"}, "no number"),
        ({"links.ib.bandwidth": "2x"}, "unknown field"),
    ],
)
def test_nonsense_is_refused(changes: dict[str, str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        changed(load_cluster("dgx-h100:4"), changes)


def test_one_node_has_no_network() -> None:
    single = load_cluster("dgx-h100:1").model_copy(update={"links": load_cluster("dgx-h100:1").links[:1]})
    with pytest.raises(InputError, match="no bandwidth of the slowest network"):
        changed(single, {"network": "2x"})
    with pytest.raises(UnknownName):
        knob_paths(single, "speed")


@pytest.mark.skipif("others" not in ClusterSpec.model_fields, reason="clusters have one kind of nodes")
@pytest.mark.parametrize("knob", KNOBS)
def test_a_knob_turns_the_numbers_of_every_pool(knob: str) -> None:
    cluster = load_cluster("dgx-h100:1+dgx-a100-80g:2")
    twice = changed(cluster, {knob: "2x"})
    if knob == "network":
        assert twice.between.bandwidth == 2 * cluster.between.bandwidth  # type: ignore[attr-defined]
        return
    for before, after in zip(cluster.pools, twice.pools, strict=True):  # type: ignore[attr-defined]
        apart = changed(before, {knob: "2x"})
        assert (after.device, after.links) == (apart.device, apart.links)
