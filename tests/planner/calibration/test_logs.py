"""Logs and measurements as files: what they say, and one sentence for what they do not."""

import re
from pathlib import Path

import pytest

from planner.calibration.measurements import (
    CopyMeasurement,
    LaunchMeasurement,
    parse_measurements,
    to_json_lines,
)
from planner.calibration.nccl_log import parse_nccl_log
from planner.errors import InputError

LOG = (Path(__file__).parents[2] / "data" / "nccl_all_reduce.log").read_text()


def test_a_log_of_nccl_tests() -> None:
    found = parse_nccl_log(LOG, "run.log")
    assert [one.bytes for one in found] == [8, 2048, 65536, 2**20, 2**24, 2**28, 2**30]
    assert found[3].seconds == pytest.approx(57e-6)
    assert {(one.op, one.ranks, one.nodes) for one in found} == {("all_reduce", 8, 1)}


@pytest.mark.parametrize("prefix", ["[1,0]<stdout>:", "[prterun-node-a-17@1,0]<stdout>: ", "0: "])
def test_prefixes_of_launchers_are_no_part_of_it(prefix: str) -> None:
    prefixed = "".join(f"{prefix}{line}\n" for line in LOG.splitlines())
    assert parse_nccl_log(prefixed, "run.log") == parse_nccl_log(LOG, "run.log")


def test_hosts_are_nodes() -> None:
    halves = LOG.replace("node-a device  4", "node-b device  0").replace(
        "node-a device  5", "node-b device  1"
    )
    assert {one.nodes for one in parse_nccl_log(halves, "run.log")} == {2}


def test_groups_of_a_split_run_each_have_a_communicator() -> None:
    halves = re.sub(r"Rank  ([4-7]) Group  0", r"Rank  \1 Group  1", LOG)
    assert {(one.ranks, one.nodes) for one in parse_nccl_log(halves, "run.log")} == {(4, 1)}


def test_results_that_nobody_checked_count() -> None:
    unchecked = re.sub(r" {6}0(?= |$)", "    N/A", LOG, flags=re.MULTILINE)
    assert "N/A" in unchecked
    assert parse_nccl_log(unchecked, "run.log") == parse_nccl_log(LOG, "run.log")


def test_what_nccl_itself_says_between_the_rows_is_passed_over() -> None:
    told = LOG.replace("\n", "\nnode-a:4101:4188 [0] NCCL INFO Channel 00/24 : 0 1 2 3 4 5 6 7\n")
    assert parse_nccl_log(told, "run.log") == parse_nccl_log(LOG, "run.log")


def test_older_logs_name_the_collective_in_their_own_name_or_not_at_all() -> None:
    older = LOG.replace("# Collective test starting: all_reduce_perf\n", "")
    assert parse_nccl_log(older, "alltoall_perf.log")[0].op == "all_to_all"
    assert parse_nccl_log(older, "reduce_scatter_perf.txt")[0].op == "reduce_scatter"
    assert parse_nccl_log(older, "run.log", "all_gather")[0].op == "all_gather"
    with pytest.raises(InputError, match="give --collective"):
        parse_nccl_log(older, "run.log")


@pytest.mark.parametrize("missing", [("   redop    root", 2), ("    root", 1)])
def test_columns_are_those_of_the_header(missing: tuple[str, int]) -> None:
    """Versions before 2.11 print no root, and no reduction where there is none (nccl-tests issue 107)."""
    header, count = missing
    lines = LOG.replace(header, "").splitlines()
    cut = [
        " ".join([*w[: 5 - count], *w[5:]]) if (w := line.split()) and w[0].isdigit() else line
        for line in lines
    ]
    assert parse_nccl_log("\n".join(cut), "run.log") == parse_nccl_log(LOG, "run.log")


def test_processes_that_did_not_find_each_other_are_no_run() -> None:
    with pytest.raises(InputError, match="found 2 headers of tables"):
        parse_nccl_log(LOG + LOG, "run.log")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("#  Rank", "#  rank", "found 0 '#  Rank' lines"),
        ("    57.00   18.40   32.19", "", "cut off"),
        ("57.00", "N/A", "column 6 should be a time in us, found 'N/A'"),
        ("57.00", "-1.0", "a time of -1.0 us"),
        ("32.19      0", "32.19     12", "run.log, line 22: 12 elements were wrong"),
        ("32.31      0", "32.31  5e+03", "run.log, line 22: 5e\\+03 elements were wrong"),
        (": 0 OK", ": 12 FAILED", "run.log: 12 elements of its results were wrong"),
        ("all_reduce_perf", "sendrecv_perf", "sendrecv_perf is not among those fitted: all_reduce, "),
        ("Rank  7 Group  0", "Rank  7 Group  1", "groups of ranks are of unlike sizes"),
    ],
)
def test_bad_logs(old: str, new: str, said: str) -> None:
    text = LOG.replace(old, new)
    if said == "cut off":
        text = LOG.replace(LOG[LOG.index("    57.00") :], "")
    with pytest.raises(InputError, match=said):
        parse_nccl_log(text, "run.log")


def test_a_log_without_rows() -> None:
    with pytest.raises(InputError, match="run.log: no rows of sizes and times"):
        parse_nccl_log(LOG[: LOG.index("           0 ")], "run.log")


def test_a_collective_that_contradicts_the_log_is_refused() -> None:
    assert parse_nccl_log(LOG, "run.log", "all_reduce")[0].op == "all_reduce"
    with pytest.raises(
        InputError, match="run.log is of all_reduce_perf, which contradicts --collective all_gather"
    ):
        parse_nccl_log(LOG, "run.log", "all_gather")


def test_unknown_collective() -> None:
    with pytest.raises(InputError, match="unknown collective 'all_shuffle'"):
        parse_nccl_log(LOG, "run.log", "all_shuffle")


def test_measurements_round_trip() -> None:
    some = (LaunchMeasurement(seconds=4e-6), CopyMeasurement(bytes=2.0**30, seconds=5e-4))
    assert parse_measurements("\n" + to_json_lines(some), "m.jsonl") == some


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "m.jsonl, line 1: not valid JSON"),
        ("[]", "m.jsonl, line 1"),
        ('{"kind": "lunch", "seconds": 1}', "'lunch' found using 'kind' does not match any"),
        ('{"kind": "launch", "seconds": 0}', "seconds: must be greater than 0, found 0"),
        ('{"kind": "launch", "seconds": 1, "unit": "us"}', "unit: is no field here"),
        ("", "m.jsonl has no measurements"),
    ],
)
def test_bad_measurements(line: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse_measurements(line, "m.jsonl")
