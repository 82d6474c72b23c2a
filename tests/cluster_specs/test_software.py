"""Shipped stacks load, and say where every value comes from."""

import json
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import median

import pytest

from cluster_specs.adjusted import device_on, in_training, replayed, software_on, updating
from cluster_specs.catalog import list_devices, load_cluster, load_device
from cluster_specs.errors import UnknownName
from cluster_specs.software import SoftwareSpec, list_software, load_software
from cluster_specs.usual_stacks import device_family, runs_on, usual_stack

STACKS = list_software()


@pytest.mark.parametrize("stack", STACKS, ids=lambda stack: stack.name)
def test_every_value_has_a_source(stack: SoftwareSpec) -> None:
    stated = {name for name in SoftwareSpec.model_fields if getattr(stack, name) is not None}
    names = (
        "attention",
        "activation_arrays",
        "activation_kernels",
        "fused_experts",
        "grouped_grid",
        "grouped_share",
        "indexed_rows",
    )
    tables = {name: getattr(stack, name) for name in names}
    parts = (
        "partitioner",
        "on_gpu",
        "routing_kernels",
        "biased_experts",
        "flat_buffers",
        "host_product",
    )
    records = {name: getattr(stack, name) for name in parts}
    paths = (stated - {"name", "summary", "sources", "routing_operators", *records, *tables}) | {
        f"{table}.{key}" for table, keys in tables.items() for key in keys
    }
    for name, record in records.items():
        paths |= {f"{name}.{key}" for key in dict(record or ())}
    for exchange, record in stack.routing_operators.items():
        paths |= {f"routing_operators.{exchange}.{key}" for key in dict(record)}
    assert not [path for path in paths if not any(fnmatchcase(path, source) for source in stack.sources)]
    assert all(stack.sources.values())


def test_the_usual_stacks_are_there() -> None:
    assert {"torch-fsdp2", "megatron", "deepspeed", "nanotron", "jax-xla"} <= {stack.name for stack in STACKS}
    assert load_software("MEGATRON") == load_software("megatron")


def test_unknown_stacks_suggest_near_ones() -> None:
    with pytest.raises(UnknownName, match="did you mean torch-fsdp2"):
        load_software("torch-fsdp")


@pytest.mark.parametrize("stack", STACKS, ids=lambda stack: stack.name)
def test_a_fused_optimizer_needs_less_than_the_tracked_foreach(stack: SoftwareSpec) -> None:
    # PyTorch's memory tracker: foreach AdamW peaks 4 bytes per parameter above fused AdamW.
    assert 0 <= stack.optimizer_temporaries <= 4


def test_kernels_of_a_stack_replace_the_rates_of_a_device() -> None:
    # arXiv:2407.08608, figure 5: FlashAttention-2 370 and FlashAttention-3 648 TFLOP/s forward on H100; cuDNN 9.19
    # 693 on H200, 32k tokens, not causal (NVIDIA/cudnn-frontend@3929da2).
    h100, b200 = load_device("h100-sxm-80g"), load_device("b200-sxm-180g")
    for stack, measured in (("nanotron", 370), ("megatron", 648)):
        slower = device_on(h100, load_software(stack))
        assert slower.efficiency.attention_forward * 989 == pytest.approx(measured, rel=0.01)
        assert slower.efficiency.matmul == h100.efficiency.matmul
    assert h100.efficiency.attention_forward * 989 == pytest.approx(693, rel=0.01)
    assert device_on(b200, load_software("megatron")) == b200


def test_every_device_has_a_usual_stack_that_runs_on_it() -> None:
    for device in list_devices():
        assert runs_on(load_software(usual_stack(device)), device)
    assert device_family(load_device("trn2")) == "trainium"
    assert not runs_on(load_software("jax-xla"), load_device("trn2"))


def test_patterns_name_devices_that_exist() -> None:
    names = [device.name for device in list_devices()]
    for stack in STACKS:
        assert all(any(fnmatchcase(name, pattern) for name in names) for pattern in stack.fused_experts)
        for pattern in stack.attention:
            assert any(fnmatchcase(name, pattern) for name in names)
            # An A100's own rates are FlashAttention-2's: only software older than it has others.
            assert stack.name.startswith("composer-") or not fnmatchcase("a100-sxm-80g", pattern)


def test_training_keeps_a_share_of_the_best_rates_once() -> None:
    a100 = load_device("a100-sxm-80g")
    slower = in_training(a100)
    share = a100.efficiency.sustained
    assert share < 1
    assert slower.efficiency.matmul == pytest.approx(share * a100.efficiency.matmul)
    assert slower.efficiency.attention_backward == pytest.approx(share * a100.efficiency.attention_backward)
    assert slower.efficiency.memory == a100.efficiency.memory
    assert in_training(slower) == slower


def test_collectives_of_a_compiler_slow_gpus_as_those_of_other_stacks_do() -> None:
    xla, torch = load_software("jax-xla"), load_software("torch-fsdp2")
    assert software_on(xla, load_device("tpu-v5p")) == xla
    there = software_on(xla, load_device("h100-sxm-80g"))
    assert (there.overlap_slowdown, there.straggler) == (torch.overlap_slowdown, torch.straggler)
    assert there.elementwise_passes == xla.elementwise_passes
    assert software_on(torch, load_device("h100-sxm-80g")) == torch


def test_captured_graphs_need_no_host() -> None:
    eager = load_software("transformer-engine-1.11")
    graphs = replayed(eager)
    assert eager.host_operator > 0
    assert eager.host_product is not None
    assert (graphs.host_operator, graphs.host_collective, graphs.host_launch) == (0, 0, 0)
    assert graphs.host_product is None
    assert graphs.elementwise_passes == eager.elementwise_passes


PAIRS = {
    "1.5B": (6, {24: (11.8, 12.9), 32: (12.5, 13.4), 64: (13.6, 14.2)}),
    "6.2B": (3, {24: (3.50, 3.88), 32: (3.70, 4.00), 64: (4.03, 4.20)}),
    "14.6B": (1, {48: (1.40, 1.61), 64: (1.49, 1.67), 128: (1.64, 1.76)}),
    "28.3B": (1, {96: (0.76, 0.87), 128: (0.80, 0.90), 256: (0.88, 0.96)}),
}
"""Micro-batch; by number of them the samples per second and device under 1F1B and ZB-1p: arXiv:2401.10241, table 4."""


def test_a_split_backward_costs_what_zero_bubble_measured() -> None:
    rates = Path(__file__).parents[1] / "data" / "schedules" / "zero_bubble_rates.jsonl"
    shares = []
    for row in map(json.loads, rates.read_text().splitlines()):
        micro_batch, measured = PAIRS[row["model"]]
        p, m = row["pp"], row["microbatches"]
        backward = row["tB_ms"] + row["tW_ms"]
        beyond = [
            1e3 * m * micro_batch / (p * speed) - m * (row["tF_ms"] + backward) / (1 - row[bubble])
            for speed, bubble in zip(measured[m], ("bubble_1f1b", "bubble_zb_h1"), strict=True)
        ]
        shares.append((beyond[1] - beyond[0]) / ((m + p - 1) * backward))
    assert len(shares) == 12
    assert load_software("megatron").split_backward == pytest.approx(median(shares), abs=5e-4)
    assert min(shares) > -0.016
    assert max(shares) < 0.0285


@pytest.mark.parametrize(
    ("cluster", "stack"),
    [
        ("dgx-h100", "torch-fsdp2"),
        ("mi300x-8x", "torch-fsdp2"),
        ("tpu-v5p:2x2x1", "jax-xla"),
        ("trn1.32xlarge", "neuronx"),
    ],
)
def test_devices_have_the_stack_of_their_maker(cluster: str, stack: str) -> None:
    device = load_cluster(cluster).device
    assert usual_stack(device) == stack
    unknown = usual_stack(device.model_copy(update={"vendor": "another"}))
    assert unknown == {"gpu": "torch-fsdp2", "tpu": "jax-xla"}[device.kind]


@pytest.mark.parametrize("stack", STACKS, ids=lambda stack: stack.name)
def test_what_is_said_of_the_update_changes_only_what_is_unusual(stack: SoftwareSpec) -> None:
    assert updating(stack, stack.fused_optimizer) == stack
    other = updating(stack, not stack.fused_optimizer)
    assert other.fused_optimizer is not stack.fused_optimizer
    assert other.optimizer_temporaries == (0.0 if other.fused_optimizer else 4.0)


@pytest.mark.parametrize("held", [{"fragmentation": 0.1}, {"unplaced_arrays": None}])
def test_a_stack_says_once_what_its_allocator_holds(held: dict[str, float | None]) -> None:
    """Of two figures one would be read over in silence."""
    fields = load_software("torch-fsdp2").model_dump() | held
    with pytest.raises(ValueError, match="give one of them"):
        SoftwareSpec.model_validate(fields)
