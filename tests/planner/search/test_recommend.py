"""The answer as people get it: repeatable, evaluable for ever, and better where the hardware is."""

import math
import re
from functools import cache

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from small_cases import CASES, TWO_NODES, Case, cluster_with, every_candidate, small_llama

import planner
from cluster_specs.catalog import load_cluster
from cluster_specs.software import load_software
from cluster_specs.units import format_change
from planner.analysis.guide import assumptions
from planner.analysis.naming import EXCHANGES
from planner.errors import Infeasible
from planner.evaluation import evaluate
from planner.models.catalog import build_graph, load_model
from planner.plans import Job, Parallelism, Pins, Plan
from planner.report.plans import describe_choices
from planner.search import plan
from planner.search.branches import Answer
from planner.search.recommend import alternative, set_apart, warnings_of, why_memory
from planner.search.space import BY_PIN_ONLY


def answer_to(case: Case) -> Plan:
    return plan(case.model, case.cluster, case.job, case.pins)


@cache
def answer_to_case(name: str) -> Plan:
    return answer_to(CASES[name])


def step_time(answer: Plan) -> float:
    assert answer.estimate is not None
    return answer.estimate.step_time_s


@pytest.mark.parametrize("name", CASES)
def test_two_runs_are_identical_to_the_byte(name: str) -> None:
    assert answer_to(CASES[name]).to_json() == answer_to_case(name).to_json()


@pytest.mark.parametrize("name", CASES)
def test_a_plan_survives_its_file_and_gives_the_same_numbers(name: str) -> None:
    answer = answer_to_case(name)
    read = Plan.model_validate_json(answer.to_json())
    assert read == answer
    assert evaluate(read) == answer.estimate


@pytest.mark.parametrize("name", CASES)
def test_alternatives_are_no_better_and_say_why(name: str) -> None:
    answer = answer_to_case(name)
    times = [step_time(answer), *(other.estimate.step_time_s for other in answer.alternatives)]
    assert times == sorted(times)
    assert all("step time" in other.loses_because for other in answer.alternatives)
    losses = re.findall(
        r"\+([\d.]+) [num]?s\b", " ".join(other.loses_because for other in answer.alternatives)
    )
    assert all(float(loss) > 0 for loss in losses)  # not +0.00 s, where a step takes milliseconds


@pytest.mark.parametrize("name", CASES)
def test_the_paragraph_and_the_list_agree_on_the_next_best(name: str) -> None:
    answer = answer_to_case(name)
    if answer.alternatives:
        slower = answer.alternatives[0].estimate.step_time_s / step_time(answer) - 1
        assert f"is {format_change(slower).lstrip('+')} slower" in answer.explanation


def test_losses_and_what_gives_them_back_are_named() -> None:
    answer = answer_to_case("slow network")
    assert answer.estimate is not None
    best = answer.estimate.model_copy(update={"step_time_s": 2.9, "time": {"bubble": 1.0, "compute": 1.9}})
    other = best.model_copy(update={"step_time_s": 3.0, "time": {"bubble": 2.0, "compute": 1.0}})
    reason = alternative(Answer(answer.plan, other), best, "time").loses_because
    assert reason == "+3.4% step time: bubble +1 s, compute -900 ms"


def test_a_next_best_of_the_same_degrees_is_told_apart_by_its_schedule() -> None:
    best = Parallelism(data=2, pipeline=4, num_microbatches=8, schedule="interleaved", virtual_stages=2)
    other = best.model_copy(update={"schedule": "1f1b", "virtual_stages": 1})
    assert set_apart(other, best) == "virtual stages 1, schedule 1f1b"
    assert set_apart(best, best) == "the same degrees"


@pytest.mark.parametrize("name", CASES)
def test_stages_hold_every_layer_and_every_device_once(name: str) -> None:
    answer = answer_to_case(name)
    stages = answer.plan.stages
    ends = [0, *(stage.blocks[1] for stage in stages)]
    assert [stage.blocks[0] for stage in stages] == ends[:-1]
    assert ends[-1] == build_graph(answer.model, answer.job.seq_len).num_layers
    held = sorted({stage.devices for stage in stages})
    assert [rank for start, end in held for rank in range(start, end)] == list(range(answer.plan.num_devices))


def test_the_slow_network_of_the_seed_case_gets_no_traffic_for_every_weight() -> None:
    """Gathering all weights between nodes for every micro-batch is what makes naive full sharding slow."""
    answer = answer_to_case("slow network")
    naive = plan(answer.model, answer.cluster, answer.job, Pins(data=8, sharding="FULL_SHARD", zero_stage=3))
    assert answer.plan.sharding != "FULL_SHARD" or answer.plan.shard_degree <= 4
    assert step_time(answer) < step_time(naive)


@settings(max_examples=4)
@given(slow=st.floats(0.1, 10), factor=st.floats(1, 20))
@example(slow=1.0, factor=1.0)
def test_faster_links_make_no_plan_slower(slow: float, factor: float) -> None:
    job = Job(global_batch=16, seq_len=1024)
    before, after = (
        plan(small_llama(), cluster_with(TWO_NODES, 8, bandwidth), job) for bandwidth in (slow, slow * factor)
    )
    assert step_time(after) <= step_time(before) * (1 + 1e-9)


@settings(max_examples=4)
@given(small=st.floats(4.5, 20), factor=st.floats(1, 4), pins=st.sampled_from([Pins(), Pins(pipeline=2)]))
def test_more_memory_makes_the_best_plan_no_slower(small: float, factor: float, pins: Pins) -> None:
    job = Job(global_batch=16, seq_len=1024)
    before, after = (
        plan(small_llama(), cluster_with(TWO_NODES, gib), job, pins) for gib in (small, small * factor)
    )
    assert step_time(after) <= step_time(before) * (1 + 1e-9)


@settings(max_examples=6)
@given(st.sampled_from(["tensor", "data", "virtual_stages", "micro_batch"]), st.sampled_from([1, 2, 4]))
def test_a_pin_makes_the_best_plan_no_faster(name: str, degree: int) -> None:
    case = CASES["pipeline"]
    try:
        pinned = answer_to(case._replace(pins=case.pins.model_copy(update={name: degree})))
    except Infeasible:
        return
    assert step_time(pinned) >= step_time(answer_to(case)) * (1 - 1e-9)


def test_pinning_the_stages_of_a_large_model_makes_its_best_plan_no_faster() -> None:
    def seconds(**pins: int) -> float:
        asked = {"tensor": 2, "context": 4, "pipeline": 4, "micro_batch": 1, **pins}
        try:
            found = planner.plan("llama-3.1-70b", "dgx-h100:16", global_batch=1024, seq_len=8192, **asked)
        except Infeasible:  # a buffer for every micro-batch that each of many stages receives
            return math.inf
        assert found.estimate is not None
        return found.estimate.step_time_s

    pinned = [seconds(virtual_stages=v) for v in range(1, 9)]
    assert seconds() <= min(pinned) < math.inf


def test_leaving_expert_ranks_out_makes_the_best_plan_of_a_large_mixture_no_faster() -> None:
    """Its stages recompute unlike one another, which is faster by more than any stages alike come near it."""

    def seconds(**pins: int) -> float:
        asked = {"pipeline": 16, "micro_batch": 1, **pins}
        found = planner.plan("qwen3-235b-a22b", "mi300x-8x:16", global_batch=512, seq_len=4096, **asked)
        assert found.estimate is not None
        return found.estimate.step_time_s

    assert seconds() <= seconds(expert=1) * (1 + 1e-9)


@settings(max_examples=8)
@given(
    gib=st.sampled_from([3.0, 4.0, 5.0, 6.5, 8.0]),
    bandwidth=st.sampled_from([0.2, 1.0]),
    batch=st.sampled_from([8, 16]),
    pin=st.sampled_from([("virtual_stages", 2), ("zero_stage", 2), ("tensor", 1), ("schedule", "1f1b")]),
)
def test_no_pin_finds_a_faster_plan(
    gib: float, bandwidth: float, batch: int, pin: tuple[str, int | str]
) -> None:
    cluster, job = cluster_with(TWO_NODES, gib, bandwidth), Job(global_batch=batch, seq_len=1024)
    case = Case(small_llama(), cluster, job, Pins(pipeline=4))
    pinned = case._replace(pins=Pins(pipeline=4, **dict([pin])))
    try:
        assert step_time(answer_to(pinned)) >= step_time(answer_to(case)) * (1 - 1e-9)
    except Infeasible:
        return


@pytest.mark.parametrize(
    ("model", "global_batch", "seq_len"), [("resnet-50", 1024, 1), ("vit-l-16", 768, 197), ("gpt2", 96, 512)]
)
def test_no_micro_batch_beats_that_of_the_plan(model: str, global_batch: int, seq_len: int) -> None:
    """Short inputs leave a device idle unless many are taken at once, and batches are not only powers of two."""

    def seconds(**pins: int) -> float:
        found = planner.plan(model, "dgx-h100:1", global_batch=global_batch, seq_len=seq_len, **pins)
        assert found.estimate is not None
        return found.estimate.step_time_s

    best = seconds()
    share = global_batch // 8
    assert all(best <= seconds(data=8, micro_batch=share // n) for n in (1, 2, 3, 4) if share % n == 0)


def test_what_comes_after_the_pipeline_counts_where_layers_are_cut() -> None:
    """Reducing a large embedding over a slow network takes longer than all micro-batches."""
    case = Case(
        small_llama(num_hidden_layers=6, vocab_size=128000),
        cluster_with("a100-4x-50g:4", 16),
        Job(global_batch=32, seq_len=1024),
        Pins(pipeline=2),
    )
    pinned = case._replace(pins=Pins(pipeline=2, schedule="1f1b"))
    assert step_time(answer_to(case)) <= step_time(answer_to(pinned)) * (1 + 1e-9)


def test_what_does_not_fit_is_told_its_least_memory_and_what_would_help() -> None:
    """The least memory is that of all plans there are."""
    case = Case(small_llama(), cluster_with(TWO_NODES, 1), Job(global_batch=16, seq_len=1024))
    with pytest.raises(Infeasible, match="small-llama does not fit on 8 x ") as refusal:
        answer_to(case)
    told = re.search(r"needs (\d+\.\d) GiB per device, (\d+\.\d) GiB may be used", str(refusal.value))
    assert told is not None
    search = case.search()
    priced = map(search.price, every_candidate(search, pipelines=True))
    least = min(found.estimate.memory_bytes for found in priced)
    assert float(told[1]) == pytest.approx(least / 2**30, abs=0.06)
    assert float(told[2]) < float(told[1])
    assert "devices" in refusal.value.least_change


def test_of_plans_that_need_as_little_memory_the_smallest_micro_batch_is_told() -> None:
    """Where states have the peak, 64 sequences at once need as much as one: nobody should be told to train so."""
    job = Job(global_batch=64, seq_len=512)
    told = []
    for pins in (Pins(), Pins(micro_batch=1)):
        with pytest.raises(Infeasible) as refusal:
            plan(load_model("mixtral-8x7b"), load_cluster("dgx-h100:1"), job, pins)
        told.append(re.search(r"micro-batch (\d+)\) needs (\d+\.\d) GiB", str(refusal.value)))
    free, pinned = told
    assert free is not None
    assert pinned is not None
    assert free.groups() == pinned.groups()


def test_the_device_that_is_said_to_suffice_suffices() -> None:
    case = Case(small_llama(), cluster_with(TWO_NODES, 1), Job(global_batch=16, seq_len=1024))
    with pytest.raises(Infeasible) as refusal:
        answer_to(case)
    enough = re.search(r"devices with (\d+) GiB", refusal.value.least_change)
    assert enough is not None
    assert answer_to(case._replace(cluster=cluster_with(TWO_NODES, int(enough[1]) + 1))).estimate is not None


def test_a_schedule_that_is_found_is_no_slower_than_any_with_a_name() -> None:
    case = CASES["any schedule"]
    found = answer_to(case)
    named = {}
    for schedule in ("1f1b", "interleaved", *BY_PIN_ONLY):
        try:
            named[schedule] = step_time(
                answer_to(case._replace(pins=case.pins.model_copy(update={"schedule": schedule})))
            )
        except Infeasible:
            continue
    assert {"1f1b", "zb-h1", "zb-v"} <= set(named)
    assert step_time(found) <= min(named.values())
    assert evaluate(found) == found.estimate


def test_a_split_backward_on_compiled_blocks_comes_with_a_warning() -> None:
    split = Parallelism(data=1, pipeline=2, virtual_stages=2, schedule="zb-v")
    estimate = answer_to_case(next(iter(CASES))).estimate
    graph, device = build_graph(load_model("llama-3.1-8b"), 8), load_cluster("dgx-h100:1").device
    warned = {
        (name, schedule): any(
            "splits backwards" in text
            for text in warnings_of(p, estimate, load_software(name), graph, device)
        )
        for name in ("torch-fsdp2", "torch-eager", "megatron")
        for schedule in ("zb-v", "interleaved")
        for p in (split.model_copy(update={"schedule": schedule}),)
    }
    assert [key for key, said in warned.items() if said] == [("torch-fsdp2", "zb-v")]


def test_recomputation_that_stages_have_of_their_own_is_not_called_none() -> None:
    answer = answer_to_case(next(iter(CASES)))
    assert answer.estimate is not None
    same = why_memory(answer.plan.model_copy(update={"recompute": "none", "stages": ()}), answer.estimate)
    assert "nothing is recomputed" in same
    stages = tuple(stage.model_copy(update={"recompute": "full"}) for stage in answer.plan.stages)
    own = why_memory(answer.plan.model_copy(update={"recompute": "none", "stages": stages}), answer.estimate)
    assert "differs from stage to stage" in own


@pytest.mark.parametrize(("cluster", "batch"), [("tpu-v5e:3x5", 60), ("tpu-v5p:3x3x3", 27)])
def test_slices_with_odd_sides_are_planned(cluster: str, batch: int) -> None:
    found = planner.plan("llama-3.2-1b", cluster, global_batch=batch, seq_len=1024)
    assert found.plan.num_devices == found.cluster.num_devices


@pytest.mark.parametrize(("tensor", "where"), [(1, "data"), (2, "data and tensor")])
def test_ranks_of_experts_count_tensor_ranks_that_have_whole_ones(tensor: int, where: str) -> None:
    """128 experts on eight devices either way; in Megatron's words an expert degree of 8, each in one piece."""
    job = {"global_batch": 32, "seq_len": 2048, "stack": "megatron", "token_exchange": "deepep"}
    job["memory_headroom"] = 0.02  # so that it fits in either way
    answer = planner.plan("qwen3-30b-a3b", "dgx-h100:1", **job, tensor=tensor, expert=8 // tensor)
    assert answer.plan.expert_ranks == 8
    assert f"experts are spread over 8 {where} ranks;" in answer.explanation
    shown = dict(describe_choices(answer))["experts"]
    assert shown == "over 8 ranks; tokens by DeepEP, once to each node and rank"
    assert f"Experts: tokens by {EXCHANGES['deepep']}; the fullest rank gets 1 times the mean" in "\n".join(
        assumptions(answer)
    )


@pytest.mark.parametrize(
    ("tensor", "where"), [(8, "stays on nvlink;"), (16, "crosses infiniband, as nvlink joins 8 devices.")]
)
def test_tensor_ranks_beyond_a_domain_are_said_to_cross_its_border(tensor: int, where: str) -> None:
    answer = planner.plan("llama-3.1-8b", "dgx-h100:2", global_batch=16, seq_len=2048, tensor=tensor)
    assert f"tensor parallelism {tensor} {where}" in answer.explanation


def test_tensor_ranks_of_a_slice_are_on_its_torus() -> None:
    """Its links are those between slices."""
    answer = planner.plan("llama-3.1-8b", "tpu-v5p:2x2x2", global_batch=16, seq_len=4096, tensor=2)
    assert "tensor parallelism 2 stays on the torus" in answer.explanation
    assert "one way: torus link 90 GB/s" in " ".join(planner.explain(answer).split())
