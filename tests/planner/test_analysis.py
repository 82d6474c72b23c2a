"""Does it fit, why this plan, which is better: every answer is checked against the evaluator or the search."""

import re

import pytest

from planner import compare, evaluate, explain, fit, load_cluster, plan
from planner.analysis import guide
from planner.analysis.fitting import SHARDED_FROM, FitReport
from planner.analysis.limits import largest_micro_batch, longest_sequence, usable_bytes
from planner.analysis.remedies import KINDS
from planner.errors import Infeasible, InputError
from planner.plans import Estimate, Plan
from planner.runs.vocabulary import SHARDING_NAMES
from planner.search.best_first import Search

NODE = "dgx-a100-80g:1"
JOB = {"global_batch": 64, "seq_len": 4096}
TIGHT = {
    **JOB,
    "tensor": 1,
    "pipeline": 1,
    "context": 1,
    "zero_stage": 0,
    "micro_batch": 1,
    "recompute": "none",
}
"""Llama-2-7B with all states on every rank: 16 bytes x 6.7e9 parameters alone are more than 80 GiB."""


@pytest.fixture(scope="module")
def too_much() -> FitReport:
    return fit("llama-2-7b", NODE, **TIGHT)


@pytest.fixture(scope="module")
def roomy() -> FitReport:
    return fit("llama-3.2-1b", NODE, **JOB)


def memory_of(judged: Plan, **choice: object) -> float:
    changed = judged.plan.model_copy(update=choice)
    return evaluate(judged.model_copy(update={"plan": changed})).memory_bytes


# --- fit ------------------------------------------------------------------------------------------------


def test_a_pinned_plan_that_cannot_fit(too_much: FitReport) -> None:
    assert not too_much.fits
    assert too_much.verdict.startswith("It does not fit")
    assert too_much.memory_bytes > 16 * 6.7e9
    choice = too_much.plan.plan
    assert (choice.tensor, choice.zero_stage, choice.micro_batch, choice.recompute) == (1, 0, 1, "none")
    assert too_much.largest_micro_batch is too_much.longest_seq_len is None


@pytest.mark.parametrize("name", ["too_much", "roomy"])
def test_the_margin_is_what_the_evaluator_leaves(name: str, request: pytest.FixtureRequest) -> None:
    report: FitReport = request.getfixturevalue(name)
    estimate = evaluate(report.plan)
    assert report.memory_bytes == pytest.approx(estimate.memory_bytes)
    limit = report.plan.cluster.device.memory
    assert report.margin_bytes == pytest.approx(limit - estimate.memory_bytes)
    assert report.margin_fraction == pytest.approx(report.margin_bytes / limit)
    assert sum(report.memory.values()) == pytest.approx(report.memory_bytes)
    assert report.fits == estimate.fits


def test_every_change_fits_by_the_evaluator(too_much: FitReport) -> None:
    """Changes of the plan alone: the evaluator agrees on memory, time and cost."""
    judged = too_much.plan
    base = evaluate(judged)
    of_plan = [change for change in too_much.changes if change.kind == "plan"]
    assert of_plan
    for change in of_plan:
        estimate = evaluate(judged.model_copy(update={"plan": change.plan}))
        assert estimate.memory_bytes == pytest.approx(change.memory_bytes)
        assert estimate.memory_bytes <= usable_bytes(judged)
        assert estimate.step_time_s == pytest.approx(change.step_time_s)
        assert change.time_cost_fraction == pytest.approx(estimate.step_time_s / base.step_time_s - 1)


def test_only_of_the_question_itself_the_plan_with_the_least_memory_is_sought(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To find it takes longer than to see that nothing fits, and of a change that does not help nobody asks."""
    sought, least = list[int](), Search._least_memory
    monkeypatch.setattr(Search, "_least_memory", lambda own, tight: sought.append(1) or least(own, tight))
    fit("llama-2-7b", NODE, **TIGHT)
    assert len(sought) == 1


def test_the_least_change_comes_first(too_much: FitReport) -> None:
    order = [(KINDS.index(change.kind), change.time_cost_fraction) for change in too_much.changes]
    assert order == sorted(order)
    assert too_much.changes[0].change in too_much.verdict


def test_sharding_states_is_among_the_changes(too_much: FitReport) -> None:
    assert any("--zero" in change.change for change in too_much.changes)
    assert not any(
        "HYBRID" in change.change for change in too_much.changes
    )  # on one node that is full sharding


def test_changes_keep_the_other_pins(too_much: FitReport) -> None:
    for change in too_much.changes:
        if "--zero" in change.change:
            assert (change.plan.tensor, change.plan.micro_batch, change.plan.recompute) == (1, 1, "none")


@pytest.mark.usefixtures("unnamed")
def test_more_devices_help_where_nothing_else_does() -> None:
    report = fit("llama-3.1-70b", NODE, global_batch=64, seq_len=2048, offload=())
    assert not report.fits
    hardware = [change.change for change in report.changes if change.kind == "hardware"]
    assert any(re.match(r"(16|24|32) devices", change) for change in hardware)
    for change in report.changes:
        nodes = re.match(r"(\d+) devices", change.change)
        if nodes:
            found = plan("llama-3.1-70b", f"dgx-a100-80g:{int(nodes[1]) // 8}", global_batch=64, seq_len=2048)
            assert found.estimate.step_time_s == pytest.approx(change.step_time_s)


def test_a_loss_in_chunks_is_tried_where_logits_are_large_and_the_stack_has_one() -> None:
    long = {"global_batch": 1, "seq_len": 65536}
    found = [
        change for change in fit("llama-3.2-1b", "dgx-h100:1x1", **long).changes if "fused" in change.change
    ]
    (chunks,) = found
    there = plan("llama-3.2-1b", "dgx-h100:1x1", **long, fused_loss=True).estimate
    assert there.memory_bytes == pytest.approx(chunks.memory_bytes)
    nanotron = fit("llama-3.2-1b", "dgx-h100:1x1", **long, stack="nanotron")
    assert not nanotron.fits
    assert not any("fused" in change.change for change in nanotron.changes)


def test_room_is_measured_to_the_edge(roomy: FitReport) -> None:
    """One more does not fit: micro-batches of the batch's divisors, sequences of whole tiles."""
    judged, usable = roomy.plan, usable_bytes(roomy.plan)
    share = judged.job.global_batch // judged.plan.data
    largest, longest = roomy.largest_micro_batch, roomy.longest_seq_len
    assert largest is not None
    assert longest is not None
    sizes = [b for b in range(1, share + 1) if share % b == 0]
    fitting = [b for b in sizes if memory_of(judged, micro_batch=b, num_microbatches=share // b) <= usable]
    assert largest == max(fitting)
    at, beyond = (
        evaluate(
            judged.model_copy(update={"job": judged.job.model_copy(update={"seq_len": length})})
        ).memory_bytes
        for length in (longest, longest + 128)
    )
    assert at <= usable < beyond


def test_no_length_fits_where_states_alone_are_too_much(too_much: FitReport) -> None:
    assert longest_sequence(too_much.plan) is None
    assert largest_micro_batch(too_much.plan) is None


def test_a_smaller_micro_batch_is_the_largest_that_fits() -> None:
    """A third of 15 sequences, which halves would leave out."""
    pins = {"micro_batch": 15, "data": 1, "tensor": 8, "recompute": "none"}
    report = fit("llama-3.1-8b", NODE, global_batch=15, seq_len=8192, **pins)
    fitting = largest_micro_batch(report.plan.model_copy(update={"plan": report.changes[0].plan}))
    assert fitting == 5
    assert f"--micro-batch {fitting} instead of 15" in [change.change for change in report.changes]


def test_a_change_for_which_data_parallelism_must_give_way_says_so() -> None:
    """As pinned, the data ranks alone take all devices."""
    report = fit("llama-2-7b", NODE, **TIGHT, data=8)
    [tensor] = [change for change in report.changes if change.change.startswith("--tensor")]
    assert tensor.change.endswith("instead of 1, --data left open")
    asked = {**TIGHT, "tensor": tensor.plan.tensor}
    assert fit("llama-2-7b", NODE, **asked).memory_bytes == tensor.memory_bytes
    with pytest.raises(InputError, match="does not divide the 8 devices"):
        fit("llama-2-7b", NODE, **asked, data=8)


def test_learned_positions_end_the_search() -> None:
    report = fit("gpt2", NODE, global_batch=64, seq_len=512)
    assert report.longest_seq_len == 1024


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_what_data_parallelism_splits_halves_with_twice_the_ranks(zero: int) -> None:
    pins = {
        "tensor": 1,
        "context": 1,
        "pipeline": 1,
        "micro_batch": 1,
        "recompute": "full",
        "zero_stage": zero,
    }
    pins |= {"sharding": SHARDING_NAMES[zero]}
    half, whole = (fit("llama-3.2-1b", f"dgx-a100-80g:{nodes}", **JOB, **pins) for nodes in (1, 2))
    assert zero == 0 or 2 * half.plan.plan.shard_degree == whole.plan.plan.shard_degree
    for name in SHARDED_FROM.keys() & half.memory.keys():
        ratio = half.memory[name] / whole.memory[name]
        assert ratio == pytest.approx(2 if name in half.split_by_data_parallelism else 1, rel=0.02)


def test_less_room_than_the_headroom_fits_only_just() -> None:
    """The least-memory plan leaves some 5 % of it: it fits, and says that it is tight."""
    report = fit("llama-2-7b", NODE, **TIGHT | {"zero_stage": 3}, memory_headroom=0.6)
    assert report.fits
    assert "only just" in report.verdict


def test_impossible_degrees_are_refused() -> None:
    with pytest.raises((InputError, Infeasible)):
        fit("llama-3.2-1b", NODE, **JOB, tensor=3)


# --- explain --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found() -> Plan:
    return plan("llama-2-7b", "a100-4x-50g:2", global_batch=64, seq_len=4096)


@pytest.fixture(scope="module")
def paragraphs(found: Plan) -> list[str]:
    return guide.paragraphs(found)


@pytest.fixture(scope="module")
def guide_text(paragraphs: list[str]) -> str:
    return guide.laid_out(paragraphs, guide.WIDTH)


@pytest.fixture(scope="module")
def worse() -> Plan:
    """The same with tensor ranks inside the nodes, whole states and a sum of gradients between the nodes."""
    return plan("llama-2-7b", "a100-4x-50g:2", global_batch=64, seq_len=4096, tensor=4, zero_stage=0)


def test_the_guide_fits_on_a_page(guide_text: str) -> None:
    lines = guide_text.splitlines()
    assert len(lines) <= 66
    assert max(map(len, lines)) <= 80


def test_the_guide_says_the_same_in_any_width(paragraphs: list[str], guide_text: str) -> None:
    for width in (40, 120):
        text = guide.laid_out(paragraphs, width)
        assert width - 16 < max(map(len, text.splitlines())) <= width
        assert "".join(text.split()) == "".join(guide_text.split())


def test_the_guide_walks_in_order(guide_text: str) -> None:
    titles = [
        "1. Does one a100-sxm-80g do?",
        "2. Do memory optimisations",
        "3. Does one scale-up domain",
        "4. Does data parallelism alone",
        "5. Do operators split",
        "6. Would stages joined by slow links help (--pipeline ",
        "7. The plan",
        "\nWhere the time goes",
        "\nWhat binds",
        "\nWhat it costs",
        "\nWhat was assumed",
        "\nWhy not the next best",
    ]
    places = [guide_text.index(title) for title in titles]
    assert places == sorted(places)


def test_the_guide_shares_states_with_several_ranks_or_not_at_all() -> None:
    """Eight tensor ranks leave no other data rank of eight devices."""
    one = plan("llama-3.1-8b", "dgx-h100:1", global_batch=64, seq_len=2048)
    two = plan("llama-3.1-8b", "dgx-h100:2", global_batch=64, seq_len=2048)
    alone = explain(one)
    assert "Tensor parallel 8, recompute" in alone
    assert "Tensor parallel 8, ZeRO 3 over 2, recompute" in explain(two)
    assert "over 1," not in alone


def test_the_guide_has_the_numbers_of_the_evaluator(found: Plan, guide_text: str) -> None:
    assert f"{evaluate(found).tokens_per_s:,.0f} tokens/s" in guide_text
    assert f"MFU {evaluate(found).mfu:.1%}" in guide_text
    for other in found.alternatives[:1]:
        assert other.loses_because.split(":")[0] in " ".join(guide_text.split())


def test_the_guide_says_what_mfu_counts(found: Plan, guide_text: str) -> None:
    """Attention in full is the PaLM paper's count, 12 L H Q T beside 6 N (arXiv:2204.02311, appendix B)."""
    estimate, text = evaluate(found), " ".join(guide_text.split())
    assert estimate.dense_peak == pytest.approx(found.cluster.device.peak_flops_per_second["bf16"])
    config = found.model.config
    layers, width = config["num_hidden_layers"], config["hidden_size"]
    matrices = found.model.parameters - config["vocab_size"] * width
    per_token = 6 * matrices + 12 * layers * width * found.job.seq_len
    in_full = per_token * estimate.tokens_per_s_per_device / estimate.dense_peak
    said = float(text.split("with attention in full it is ")[1].split("%")[0])
    assert said == pytest.approx(100 * in_full, rel=2e-3)


def test_one_device_has_no_network_to_speak_of() -> None:
    text = explain(
        plan("llama-3.2-1b", "rtx4090-8x-pcie:1", global_batch=8, seq_len=1024, objective="devices")
    )
    assert "Does one rtx4090 do?" in text


def test_the_guide_leaves_out_a_host_that_cannot_update() -> None:
    """What muon's products cost there is not known."""
    muon = plan("llama-3.2-1b", "dgx-h100:1", global_batch=8, seq_len=1024, optimizer="muon")
    assert "on the host" in explain(
        muon.model_copy(update={"job": muon.job.model_copy(update={"optimizer": "sgd"})})
    )
    assert "on the host" not in explain(muon)


# --- compare --------------------------------------------------------------------------------------------


def test_a_plan_is_no_better_than_itself(found: Plan) -> None:
    same = compare(found, found)
    assert same.better == "neither"
    assert same.choices == same.time_s == same.memory_bytes == same.communication_bytes == ()


def test_the_better_plan_does_not_depend_on_the_order(found: Plan, worse: Plan) -> None:
    assert compare(found, worse).better == "A"
    assert compare(worse, found).better == "B"
    forth, back = compare(found, worse), compare(worse, found)
    assert forth.tokens_per_s_ratio == pytest.approx(1 / back.tokens_per_s_ratio)
    assert forth.memory_difference_bytes == pytest.approx(-back.memory_difference_bytes)


def test_differences_add_up(found: Plan, worse: Plan) -> None:
    a, b = evaluate(found), evaluate(worse)
    result = compare(found, worse)

    def total(lines: tuple[object, ...]) -> float:
        return sum(float(line.b) - float(line.a) for line in lines)  # type: ignore[attr-defined]

    assert total(result.time_s) == pytest.approx(b.step_time_s - a.step_time_s)
    assert total(result.memory_bytes) == pytest.approx(b.memory_bytes - a.memory_bytes)
    changed = {line.name for line in result.choices}
    assert changed <= {*type(found.plan).model_fields, "layers_per_stage"}
    assert all(getattr(found.plan, n) != getattr(worse.plan, n) for n in changed - {"layers_per_stage"})


def test_a_plan_that_fits_beats_a_faster_one_that_does_not(readable: Plan, estimate: Estimate) -> None:
    from planner.analysis import compare as weigh

    fast = estimate.model_copy(update={"fits": False, "tokens_per_s": 2 * estimate.tokens_per_s})
    result = weigh(readable, readable.model_copy(update={"estimate": fast}))
    assert result.better == "A"
    assert "A fits and the other does not" in result.verdict


def test_jobs_of_different_sizes_compare_by_throughput(readable: Plan, estimate: Estimate) -> None:
    from planner.analysis import compare as weigh

    double = {"step_time_s": 2 * estimate.step_time_s, "time": {k: 2 * v for k, v in estimate.time.items()}}
    result = weigh(readable, readable.model_copy(update={"estimate": estimate.model_copy(update=double)}))
    assert result.better == "neither"


def test_a_host_that_is_too_small_is_said() -> None:
    node = load_cluster(NODE)
    small = node.model_copy(update={"host": node.host.model_copy(update={"memory": 50 * 2.0**30})})
    report = fit("llama-3.1-8b", small, global_batch=8, seq_len=2048, offload=("optimizer", "weights"))
    assert not report.fits
    assert "120 of 50 GiB of a node's host" in report.verdict
