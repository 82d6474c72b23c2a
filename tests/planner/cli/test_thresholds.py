"""``--fail-if``."""

import json
import re
from collections.abc import Callable

import pytest
from typer.testing import Result

from planner.cli.outcome import ThresholdMissed
from planner.cli.thresholds import check_thresholds
from planner.errors import InputError

Cli = Callable[..., Result]

ANSWER = {
    "estimate": {
        "step_time_s": 12.0,
        "memory_bytes": 60 * 2**30,
        "fits": True,
        "mfu": 0.49,
        "tokens_per_s": 100.0,
        "memory": {"weights": 5.0},
        "measured": None,
    }
}


@pytest.mark.parametrize(
    "condition",
    [
        "step_time_s > 10",
        "step_time_s>=12",
        "memory_bytes > 59 GiB",
        "fits == true",
        "estimate.memory.weights<6",
        "mfu < 50%",
        "tokens_per_s < 200",
    ],
)
def test_thresholds_that_are_missed(condition: str) -> None:
    with pytest.raises(ThresholdMissed, match="threshold missed"):
        check_thresholds(ANSWER, [condition])


@pytest.mark.parametrize("condition", ["step_time_s > 12", "memory_bytes > 61 GiB", "fits != true"])
def test_thresholds_that_are_met(condition: str) -> None:
    check_thresholds(ANSWER, [condition])


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        ("step_time > 10", "did you mean step_time_s"),
        ("step_time_s", "is not a condition"),
        ("step_time_s > ", "is not a condition"),
        ("step_time_s > soon", "compares 12.0 with soon"),
        ("mfu < nan", "nothing compares with nan"),
        ("memory > 1", "not a single value"),
        ("memory_bytes > 5 parsec", "unit"),
        ("memory_bytes > 70 GB/s", "is in B/s, expected B"),
        ("step_time_s > 5 GiB", "is in B, expected s"),
        ("measured > 5", "the answer has no value for measured"),
    ],
)
def test_thresholds_that_cannot_be_read(condition: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        check_thresholds(ANSWER, [condition])


def test_a_missed_threshold_ends_with_4_after_the_answer(cli: Cli, run_file: str) -> None:
    result = cli("evaluate", run_file, "--json", "--fail-if", "step_time_s > 0")
    assert result.exit_code == 4
    seconds = json.loads(result.stdout)["estimate"]["step_time_s"]
    assert seconds > 0
    assert result.stderr == f"threshold missed: step_time_s > 0: it is {seconds:.4g}\n"


@pytest.mark.parametrize(
    ("condition", "seen"),
    [
        ("mfu < 40%", "mfu < 40%: it is 37.2%"),
        ("memory_bytes > 70 GiB", "memory_bytes > 70 GiB: it is 71.50 GiB"),
        ("fits == false", "fits == false: it is false"),
        ("searches > 1", "searches > 1: it is 2,000"),
    ],
)
def test_what_was_seen_is_said_as_it_was_asked(condition: str, seen: str) -> None:
    answer = {"mfu": 0.3719, "memory_bytes": 71.5 * 2**30, "fits": False, "searches": 2000}
    with pytest.raises(ThresholdMissed, match=re.escape(seen)):
        check_thresholds(answer, [condition])


NAMED = (
    "estimate.memory.weights < 1",
    "plan.zero_stage > 1",
    "optimality.gap > 0",
    "schema == 3",
    "host_bytes > 1 GiB",
)
QUESTION = ("no-such-model", "dgx-h100:1", "--global-batch", "8", "--seq-len", "8")


@pytest.mark.parametrize("condition", NAMED)
def test_names_that_an_answer_may_have_are_let_through(cli: Cli, condition: str) -> None:
    assert "unknown model 'no-such-model'" in cli("plan", *QUESTION, "--fail-if", condition).stderr


@pytest.mark.parametrize(
    ("command", "condition", "reason"),
    [
        (("plan", *QUESTION), "step_time > 10", "did you mean step_time_s"),
        (("plan", *QUESTION), "plan.zero > 1", "zero"),
        (("fit", *QUESTION), "margin_byte < 1", "did you mean margin_bytes"),
        (("what-if", *QUESTION), "search > 1", "did you mean searches"),
        (("validate", "no-such-file.jsonl"), "summary.step > 1", "step"),
    ],
)
def test_names_that_no_answer_has_are_refused_before_the_search(
    cli: Cli, command: tuple[str, ...], condition: str, reason: str
) -> None:
    result = cli(*command, "--fail-if", condition)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "name in --fail-if" in result.stderr
    assert reason in result.stderr


@pytest.mark.parametrize(
    ("condition", "share"),
    [
        ("mfu < 40", "write 40%, or 0.4"),
        ("mfu < 140%", "--fail-if 'mfu < 140%': mfu is a share, at most 100%\n"),
        ("estimate.bubble_fraction > 3", "write 3%, or 0.03"),
    ],
)
def test_a_share_above_one_is_refused_as_its_percent_sign_is_missing(
    cli: Cli, condition: str, share: str
) -> None:
    """It would hold of every plan, or of none."""
    result = cli("plan", *QUESTION, "--fail-if", condition)
    assert (result.exit_code, result.stdout) == (2, "")
    assert share in result.stderr


def test_what_is_no_condition_is_refused_before_the_search(cli: Cli) -> None:
    result = cli(
        "plan", "no-such-model", "dgx-h100:1", *["--global-batch", "8", "--seq-len", "8", "--fail-if"], "mfu"
    )
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--fail-if 'mfu' is not a condition" in result.stderr
