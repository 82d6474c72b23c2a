"""Shipped stacks load, and say where every value comes from."""

from fnmatch import fnmatchcase

import pytest

from cluster_specs.catalog import list_devices, load_device
from cluster_specs.errors import UnknownName
from cluster_specs.software import (
    SoftwareSpec,
    device_on,
    in_training,
    list_software,
    load_software,
    replayed,
)

STACKS = list_software()


@pytest.mark.parametrize("stack", STACKS, ids=lambda stack: stack.name)
def test_every_value_has_a_source(stack: SoftwareSpec) -> None:
    values = set(SoftwareSpec.model_fields) - {"name", "summary", "sources", "attention"}
    paths = values | {f"attention.{pattern}" for pattern in stack.attention}
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
    # arXiv:2407.08608, figure 5: FlashAttention-2 370 and FlashAttention-3 648 TFLOP/s forward on H100.
    h100 = load_device("h100-sxm-80g")
    slower = device_on(h100, load_software("nanotron"))
    assert slower.efficiency.attention_forward * 989 == pytest.approx(370, rel=0.01)
    assert h100.efficiency.attention_forward * 989 == pytest.approx(648, rel=0.01)
    assert slower.efficiency.matmul == h100.efficiency.matmul
    assert device_on(h100, load_software("megatron")) == h100


def test_patterns_name_devices_that_exist() -> None:
    names = [device.name for device in list_devices()]
    for stack in STACKS:
        for pattern in stack.attention:
            assert any(fnmatchcase(name, pattern) for name in names)
            # An A100's own rates are FlashAttention-2's: only software older than it has others.
            assert stack.name == "composer-2023" or not fnmatchcase("a100-sxm-80g", pattern)


def test_training_keeps_a_share_of_the_best_rates_once() -> None:
    a100 = load_device("a100-sxm-80g")
    slower = in_training(a100)
    share = a100.efficiency.sustained
    assert share < 1
    assert slower.efficiency.matmul == pytest.approx(share * a100.efficiency.matmul)
    assert slower.efficiency.attention_backward == pytest.approx(share * a100.efficiency.attention_backward)
    assert slower.efficiency.memory == a100.efficiency.memory
    assert in_training(slower) == slower


def test_captured_graphs_need_no_host() -> None:
    eager = load_software("deepspeed")
    graphs = replayed(eager)
    assert eager.host_operator > 0
    assert (graphs.host_operator, graphs.host_collective, graphs.host_routing) == (0, 0, 0)
    assert graphs.elementwise_passes == eager.elementwise_passes
