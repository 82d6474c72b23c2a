"""Which products XLA's partitioner makes rings of, and which sums it makes whole.

Each row is one product ``bsf,fh->bsh`` in 16 bits (4,096 tokens, ``h`` 4,096), ``f`` and the result's ``s`` split over
``ranks`` and ``b`` over the rest of the slice, compiled ahead of time for it by jax 0.10.2 with libtpu 0.0.52; the last
column is what became of its reduce-scatter.
"""

import pytest

from cluster_specs.catalog import load_cluster
from cluster_specs.software import load_software
from planner.sharding.mesh import Mesh
from planner.sharding.neighbours import plain_sums
from planner.sharding.partitioning import SlicePartitioner, slice_partitioner

COMPILED = """
v5e:2x2     4   4096 scatter
v5e:2x2     4   8192 ring
v5e:2x4     8   4096 scatter
v5e:2x4     8   5120 ring
v5e:4x4    16   4096 whole
v5e:4x4    16   5120 ring
v5e:4x4     8   4096 scatter
v5e:4x4     8   5120 ring
v5e:4x4     4   4096 scatter
v5e:4x4     4   4480 ring
v5e:4x4     2  32768 scatter
v5e:4x8    32   2048 scatter
v5e:8x8    64   4096 whole
v5e:8x8    64  14336 whole
v5e:8x8    16   2048 scatter
v5e:8x8     8   4096 scatter
v5e:8x8     8   5120 ring
v5e:8x16  128   2048 scatter
v5e:16x16 256  14336 whole
v5e:16x16 128   2048 scatter
v5e:16x16  16   4096 scatter
v5e:16x16  16   8192 ring
v5p:2x2x1   4   2048 scatter
v5p:2x2x1   4  28672 scatter
v5p:2x2x2   4  28672 scatter
v5p:2x2x4   4  28672 scatter
v5p:2x2x4   8   8192 ring
v5p:2x4x4   4   8192 ring
v4:2x2x4    4  28672 scatter
v4:4x4x4    4   4480 scatter
v4:4x4x4    4   8192 ring
v5p:2x2x2   8   4096 whole
v5p:2x2x2   8   8192 ring
v5p:2x2x4  16   4096 whole
v5p:2x2x4  16   8192 ring
v5p:2x4x4  32   2048 whole
v5p:4x4x4  64   2048 whole
v5p:4x4x4  16   4096 scatter
v5p:4x4x4  16   8192 ring
v5p:4x4x4   4   4096 scatter
v5p:4x4x4   4   5120 ring
v5p:4x4x8 128   2048 whole
v5p:4x4x8  16   2048 scatter
v5p:4x8x8 256   2048 whole
v5p:8x8x8   8   4096 scatter
v5p:8x8x8   8   8192 ring
v6e:2x4     8   2048 scatter
v6e:4x4    16   2048 whole
v6e:4x8    32   2048 scatter
v6e:8x8    64   2048 whole
v6e:8x16  128   2048 scatter
v6e:16x16 256   2048 whole
"""
ROWS = [line.split() for line in COMPILED.strip().splitlines()]
WIDTH = 2


def partitioner_on(name: str) -> SlicePartitioner:
    partitioner = slice_partitioner(load_software("jax-xla"), load_cluster(name))
    assert partitioner is not None
    return partitioner


@pytest.mark.parametrize(("name", "ranks", "depth", "became"), ROWS)
def test_products_become_what_xla_made_of_them(name: str, ranks: str, depth: str, became: str) -> None:
    cluster, partitioner = load_cluster(f"tpu-{name}"), partitioner_on(f"tpu-{name}")
    group = Mesh(cluster, {"tensor": int(ranks), "data": cluster.num_devices // int(ranks)}).group(["tensor"])
    rings = partitioner.rings(float(depth), WIDTH, int(ranks), nearest=True)
    assert ("ring" if rings else "whole" if partitioner.sums_whole(group) else "scatter") == became


GATHERED = """
v5e:4x4    16    8 gather
v5e:4x8    32    8 gather
v5e:8x8    16    8 gather
v5e:8x8    32    8 gather
v5e:8x8    64   16 sum
v5e:8x8    64   17 gather
v5e:8x16   32    8 gather
v5e:8x16  128   16 sum
v5e:8x16  128   24 gather
v5e:16x16  64    8 gather
v5e:16x16 256    8 sum
v5e:16x16 256   32 gather
v6e:8x8    64   16 sum
v6e:8x8    64   24 gather
v5p:2x2x4  16    8 gather
v5p:4x4x4  32    8 gather
v5p:4x4x4  64  256 sum
v5p:4x4x8 128   64 sum
v4:4x4x4   64   64 sum
"""
"""What became of a gather of so many MiB, beside a product too short for a ring."""


@pytest.mark.parametrize("line", GATHERED.strip().splitlines())
def test_gathers_become_what_xla_made_of_them(line: str) -> None:
    name, ranks, size, became = line.split()
    cluster, partitioner = load_cluster(f"tpu-{name}"), partitioner_on(f"tpu-{name}")
    group = Mesh(cluster, {"tensor": int(ranks), "data": cluster.num_devices // int(ranks)}).group(["tensor"])
    summed = partitioner.sums_gathers(group) and int(size) * 2**20 <= partitioner.most_summed
    assert summed == (became == "sum")


def test_the_depth_of_a_ring_is_what_outlasts_two_further_parts() -> None:
    """2 x 197 TFLOP/s x 2 bytes / (2 x 2 x 45 GB/s) = 4,378 on TPU v5e; fp32 asks for twice as much."""
    v5e = partitioner_on("tpu-v5e:4x4")
    assert not v5e.rings(4377, WIDTH, 8, nearest=True)
    assert v5e.rings(4378, WIDTH, 8, nearest=True)
    assert not v5e.rings(8755, 2 * WIDTH, 8, nearest=True)


def test_a_ring_of_eight_sends_nine_parts() -> None:
    v5e = partitioner_on("tpu-v5e:4x4")
    assert 7 * (1 + v5e.beyond("reduce_scatter", 8)) == pytest.approx(9)
    assert 7 * (1 + v5e.beyond("all_gather", 8)) == pytest.approx(9)
    assert v5e.beyond("all_gather", 4) == 0


def test_other_stacks_and_networks_have_no_partitioner() -> None:
    assert slice_partitioner(load_software("jax-xla"), load_cluster("dgx-h100:2")) is None
    assert slice_partitioner(load_software("torch-fsdp2"), load_cluster("tpu-v5e:4x4")) is None


@pytest.mark.parametrize(
    ("rings", "later", "sums"),
    [
        ("...", "", 1),  # projections of attention of Llama 3.1 8B, TPU v5e
        ("r..", "", 1),  # of Llama 3.1 70B: queries are deep enough for a ring
        ("rr", "", 0),  # of a gated MLP
        ("...", "r", 3),  # of Phi-2, whose MLP reads the same: in the backward its ring comes first
        ("...", ".", 0),  # the same with an MLP that is too narrow for a ring, which sees to the sum
    ],
)
def test_sums_beside_a_ring_are_not_added_up_first(rings: str, later: str, sums: int) -> None:
    """Reduce-scatters of one gradient in compiled layers; ``r`` marks products that have a ring of their own."""
    assert plain_sums([c == "r" for c in rings], [c == "r" for c in later]) == sums
