"""Arguments out of shell scripts."""

import pytest

from planner.errors import InputError
from planner.importers.shell import read_arguments

SCRIPTS = {
    "plain": ("--tp 4 --sp\n--modules a b --bf16", {"tp": "4", "sp": True, "modules": ["a", "b"], "bf16": True}),
    "continued": (
        "torchrun --nproc_per_node 8 pretrain.py \\\n  --tp 4 \\\n  --sp",
        {"nproc_per_node": "8", "tp": "4", "sp": True},
    ),
    "array": ("ARGS=(\n    --tp 4\n    --sp\n)\nrun ${ARGS[@]}", {"tp": "4", "sp": True}),
    "array on one line": ("ARGS=(--tp 4 --sp) ; next", {"tp": "4", "sp": True}),
    "variables": (
        "TP=4\nexport GPUS=$TP\nrun --tp ${TP} --gpus $GPUS --mbs ${MBS:-2}",
        {"tp": "4", "gpus": "4", "mbs": "2"},
    ),
    "unset variable": ("run --tp $TP", {"tp": "$TP"}),
    "quotes": ("--layout 'Et|(t|)*2tL' --x=1", {"layout": "Et|(t|)*2tL", "x": "1"}),
    "comments": ("# --tp 8\n--tp 4 # --sp", {"tp": "4"}),
    "quoted block": ('ARGS="\n  --tp 4 \n  --sp\n"\nrun $ARGS', {"tp": "4", "sp": True}),
    "last wins": ("--tp 4 --tp 8", {"tp": "8"}),
}  # fmt: skip


@pytest.mark.parametrize("case", SCRIPTS)
def test_arguments(case: str) -> None:
    text, expected = SCRIPTS[case]
    assert read_arguments(text, "run.sh") == expected


def test_an_open_quote_is_refused() -> None:
    with pytest.raises(InputError, match=r"run.sh is no shell script with arguments"):
        read_arguments("--tp '4", "run.sh")
