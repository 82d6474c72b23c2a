"""The public API: friendly arguments lead where the explicit ones do, and nothing is loaded before it is used."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import planner
from planner import Job, Pins, evaluate, load_cluster, load_model, plan, read_plan
from planner.errors import InputError, UnknownName

MODEL, CLUSTER = "llama-3.2-1b", "dgx-h100:1"
JOB = {"global_batch": 64, "seq_len": 2048}

RUN = {
    "model": {"name": MODEL, "seq": 2048},
    "hardware": CLUSTER,
    "parallel": {"dp": 8, "micro_batch": 2, "global_batch": 64},
}


@pytest.mark.parametrize("name", planner.__all__)
def test_every_public_name_leads_somewhere_documented(name: str) -> None:
    assert getattr(planner, name).__doc__


def test_unknown_names_are_no_attributes() -> None:
    with pytest.raises(AttributeError, match="no attribute 'plann'"):
        planner.plann  # noqa: B018
    assert set(planner.__all__) <= set(dir(planner))


def test_importing_loads_none_of_our_modules() -> None:
    code = "import sys, planner; print([m for m in sys.modules if m.startswith(('planner.', 'pydantic'))])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_words_may_be_in_any_case_and_schedules_have_the_names_of_others() -> None:
    asked = {"global_batch": 8, "seq_len": 512, "pipeline": 2}
    theirs = plan(
        MODEL, CLUSTER, precision="BF16", schedule="1F1B", recompute="Full", sharding="no_shard", **asked
    )
    ours = plan(
        MODEL, CLUSTER, precision="bf16", schedule="1f1b", recompute="full", sharding="NO_SHARD", **asked
    )
    assert theirs.plan == ours.plan


def test_words_and_objects_are_the_same_question() -> None:
    words = plan(MODEL, CLUSTER, **JOB, tensor=2, zero_stage=3)
    objects = plan(load_model(MODEL), load_cluster(CLUSTER), Job(**JOB), Pins(tensor=2, zero_stage=3))
    assert words == objects
    assert (words.plan.tensor, words.plan.zero_stage) == (2, 3)


def test_options_override_the_job_given() -> None:
    found = plan(MODEL, CLUSTER, Job(**JOB), Pins(tensor=2), seq_len=1024, tensor=1)
    assert (found.job.seq_len, found.job.global_batch, found.plan.tensor) == (1024, 64, 1)


def test_objectives_differ() -> None:
    fastest, fewest = plan(MODEL, CLUSTER, **JOB), plan(MODEL, CLUSTER, **JOB, objective="devices")
    assert fewest.plan.num_devices < fastest.plan.num_devices
    assert fewest.estimate.step_time_s > fastest.estimate.step_time_s


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({**JOB, "tensr": 8}, "did you mean tensor"),
        ({**JOB, "objective": "fun"}, "objective 'fun' is unknown"),
        ({**JOB, "top": 0}, "at least 1"),
        ({"global_batch": 8}, "seq_len: is missing"),
        ({**JOB, "zero_stage": 7}, "pins: zero_stage"),
    ],
)
def test_bad_arguments_are_named(options: dict[str, object], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        plan(MODEL, CLUSTER, **options)


def test_unknown_models_and_clusters_suggest_near_ones() -> None:
    with pytest.raises(UnknownName, match="did you mean"):
        plan("lama-3.2-1b", CLUSTER, **JOB)
    with pytest.raises(UnknownName, match="did you mean"):
        plan(MODEL, "dgx-h10:1", **JOB)


def test_one_plan_in_all_its_forms(tmp_path: Path) -> None:
    """A `Plan`, its file, its data, and the run that describes it: one estimate."""
    described, assumed = read_plan(RUN)
    saved, run = tmp_path / "plan.json", tmp_path / "run.json"
    saved.write_text(described.to_json())
    run.write_text(json.dumps(RUN))
    forms = [described, saved, str(saved), json.loads(saved.read_text()), run, RUN]
    first, *others = [evaluate(form) for form in forms]
    assert all(other == first for other in others)
    assert any(choice.startswith("precision=") for choice in assumed)


def test_what_the_search_prints_is_what_the_evaluator_says() -> None:
    found = plan(MODEL, CLUSTER, **JOB)
    assert evaluate(found) == found.estimate


def test_plans_of_other_versions_are_refused(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text('{"schema": "meshwright/plan/9"}')
    with pytest.raises(InputError, match="expected 'meshwright/plan/1'"):
        evaluate(tmp_path / "plan.json")


def test_the_stack_is_that_of_the_devices_unless_it_is_said() -> None:
    job = {"global_batch": 16, "seq_len": 1024}
    assert plan("llama-3.2-1b", "tpu-v5p:2x2x2", **job).job.stack == "jax-xla"
    assert plan("llama-3.2-1b", "tpu-v5p:2x2x2", Job(**job)).job.stack == "jax-xla"
    assert plan("llama-3.2-1b", "tpu-v5p:2x2x2", Job(**job, stack="torch-xla")).job.stack == "torch-xla"
    assert plan("llama-3.2-1b", "dgx-h100:1", **job).job.stack == "torch-fsdp2"


def test_what_is_no_model_is_refused_by_its_type() -> None:
    with pytest.raises(InputError, match="not function; trace functions and modules with planner.from_jax"):
        load_model(lambda x: x)  # type: ignore[arg-type]


@pytest.mark.parametrize("source", [3, None, [1]])
def test_what_is_no_plan_is_refused_in_a_sentence(source: Any) -> None:
    with pytest.raises(
        InputError, match=f"a plan is a Plan, a file or the data of one, not {type(source).__name__}"
    ):
        evaluate(source)
