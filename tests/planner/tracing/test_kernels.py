"""Rules that users give for kernels, as text."""

import json

import hypothesis.strategies as st
import pytest
from hypothesis import given
from typer.testing import CliRunner

from planner.errors import InputError
from planner.tracing.program import Program
from planner.tracing.reading.kernels import kernel_rule
from planner.tracing.reading.products import product

A, B, C = (8, 6), (6, 4), (8, 4)


@given(*(st.integers(2, 64) for _ in range(4)))
def test_a_product_in_words_is_a_product(batch: int, rows: int, depth: int, columns: int) -> None:
    left, right, result = (batch, rows, depth), (batch, depth, columns), (batch, rows, columns)
    said = kernel_rule("k", "b i k, b k j -> b i j; sum k", [left, right], [result])
    assert said == product(left, right, ([2], [1]), ([0], [0]))._replace(
        sizes=said.sizes, reads=said.reads, writes=said.writes
    )
    sizes = dict(zip("bikj", said.sizes, strict=True))
    assert sizes == {"b": batch, "i": rows, "k": depth, "j": columns}
    assert said.kind == "product"
    assert said.whole == ()


def test_what_results_lack_is_not_split() -> None:
    rule = kernel_rule("k", "q d, k d -> q d; whole d", [(8, 4), (16, 4)], [(8, 4)])
    assert (rule.kind, rule.sizes, rule.whole) == ("loop", (8, 4, 16), (1, 2))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("i k, k j", "has not one '->'"),
        ("i k -> i j", "it has 2 arrays, the kernel 3"),
        ("i, k j -> i j", "'i' is an array of shape"),
        ("i k, i j -> i j", "i is 8 and 6"),
        ("i k, k j -> i j; adds k", "begins with neither 'whole' nor 'sum'"),
        ("i k, k j -> i j; sum z", "names z, which no array has"),
        ("i k, k j -> i j; sum j", "j is summed over, but the result has it"),
    ],
)
def test_what_is_wrong_is_said(text: str, message: str) -> None:
    with pytest.raises(InputError, match=f"rule for k: .*{message}"):
        kernel_rule("k", text, [A, B], [C])


def test_no_loop_twice_in_an_array() -> None:
    with pytest.raises(InputError, match="has one loop twice"):
        kernel_rule("k", "i i -> i", [(8, 8)], [(8,)])


FILE = """
import jax
from jax.experimental import pallas

array = jax.ShapeDtypeStruct((16384, 16384), "float32")

def double(read, written):
    written[...] = read[...] * 2

def kernel(x):
    return pallas.pallas_call(double, out_shape=array, name="double", interpret=True)(x)

function = (lambda x: kernel(x).sum(), array)
"""


@pytest.mark.jax
def test_a_kernel_with_a_rule_is_split_and_remembered() -> None:
    jax = pytest.importorskip("jax")
    from planner import from_jax, shard

    names: dict[str, object] = {}
    exec(FILE, names)
    rules = {"double": "i j -> i j"}
    program = from_jax(*names["function"], rules=rules)  # type: ignore[misc]
    sharded = shard(program, "dgx-h100:1", {"data": 8})
    assert sharded.program.rules == rules
    assert Program.model_validate_json(program.to_json()).rules == rules
    (kernel,) = (o for o in sharded.operators if "double" in o.members[0])
    assert set(kernel.split) == {"data"}
    by_ffi = jax.ffi.ffi_call("made_elsewhere", jax.ShapeDtypeStruct((16384, 16384), "float32"))
    ours = from_jax(
        by_ffi, names["array"], names["array"], rules={"made_elsewhere": "i k, k j -> i j; sum k"}
    )
    theirs = from_jax(lambda x, y: x @ y, names["array"], names["array"])
    mine, known = (shard(p, "dgx-h100:1", {"data": 8}) for p in (ours, theirs))
    assert mine.seconds == known.seconds


@pytest.mark.jax
def test_rules_are_given_in_the_shell(tmp_path) -> None:  # type: ignore[no-untyped-def]
    pytest.importorskip("jax")
    from planner.cli.app import app

    (tmp_path / "train.py").write_text(FILE)
    command = ["shard", f"{tmp_path}/train.py:function", "dgx-h100:1", "--json"]
    run = CliRunner().invoke(app, [*command, "--rule", "double=i j -> i j"])
    assert run.exit_code == 0, run.output
    assert json.loads(run.stdout)["program"]["rules"] == {"double": "i j -> i j"}
    run = CliRunner().invoke(app, [*command, "--rule", "i j -> i j"])
    assert run.exit_code == 2
