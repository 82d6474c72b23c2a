"""Modules that are more than a sequence of operators: control flow, bags, and what PyTorch stops at."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from planner.errors import InputError  # noqa: E402
from planner.tracing.cleaning.passes import clean  # noqa: E402
from planner.tracing.program import Program, elements  # noqa: E402
from planner.tracing.reading.from_torch import from_torch  # noqa: E402
from planner.tracing.solving.options import splittable  # noqa: E402
from planner.tracing.solving.shard import shard  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


class Module(torch.nn.Module):
    """``function`` of two layers and the inputs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(self.first, self.second, *inputs)


def program_of(function: Callable[..., Any], *inputs: Any, device: str = "meta", **how: Any) -> Program:
    return clean(
        from_torch(Module(function).to(device), *(x.to(device) for x in inputs), gradient=True, **how)
    )


def products(program: Program) -> int:
    return sum(op.kind == "product" for op in program.operations)


X = torch.ones(8, 4, 16)


def by_value(first: Any, second: Any, x: Any) -> Any:
    return (second(first(x)) if x.sum() > 0 else first(x)).mean()


def test_a_branch_on_values_is_the_one_that_the_inputs_take(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(
        InputError, match=r"depends on values \(test_torch_modules.py, line \d+: return .*on the CPU"
    ):
        program_of(by_value, X)
    assert "def forward" not in capsys.readouterr().err  # PyTorch prints the graph
    both, one = (program_of(by_value, x, device="cpu") for x in (X, -X))
    assert products(both) > products(one)
    assert "branches that depend on values: those that the example inputs take" in both.applied


def test_a_function_of_rows_is_that_of_all() -> None:
    """Calls that begin and end ``vmap`` make nothing, but they stay."""
    rows = program_of(lambda first, second, x: torch.func.vmap(first)(x).mean(), X)
    assert products(rows) == products(program_of(lambda first, second, x: first(x).mean(), X))


def test_control_flow_of_torch_is_unfolded() -> None:
    from functorch.experimental.control_flow import map as each  # type: ignore[import-not-found]
    from torch._higher_order_ops.scan import scan
    from torch._higher_order_ops.while_loop import while_loop

    def branches(first: Any, second: Any, x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda x: first(x), lambda x: second(first(x)), (x,)).mean()

    def rows(first: Any, second: Any, x: Any) -> Any:
        return each(first, x).mean()

    def steps(first: Any, second: Any, x: Any) -> Any:
        def step(carried: Any, row: Any) -> Any:
            carried = first(carried) + row
            return carried, second(carried)

        return scan(step, x[0] * 0, x)[1].mean()

    def loop(first: Any, second: Any, x: Any) -> Any:
        count = torch.zeros((), dtype=torch.long, device=x.device)
        return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, first(x)), (count, x))[1].mean()

    plain = products(program_of(lambda first, second, x: second(first(x)).mean(), X))
    once = products(program_of(lambda first, second, x: first(x).mean(), X))
    found = program_of(branches, X)
    assert products(found) == plain
    assert "cond: taken to run the branch with more operators" in found.applied
    assert products(program_of(rows, X[:2])) == 2 * once
    assert products(program_of(steps, X[:2])) >= 2 * plain - 1  # what begins the scan has no gradient
    with pytest.raises(InputError, match="trips=N"):
        program_of(loop, X)
    three = program_of(loop, X, trips=3)
    assert products(three) == products(program_of(lambda f, s, x: f(f(f(x))).mean(), X))
    assert "while: taken to run 3 times" in three.applied


def test_what_values_say_the_size_of_is_refused() -> None:
    with pytest.raises(InputError, match=r"makes as many entries as values say \(return self.function\("):
        program_of(lambda first, second, x: first(x)[x > 0].mean(), X)


def test_a_module_that_fails_says_where() -> None:
    with pytest.raises(
        InputError,
        match=r"cannot be exported by PyTorch \(test_torch_modules.py, line \d+: .*same reduction dim",
    ):
        program_of(lambda first, second, x: first(x[..., :3]).mean(), X)
    with pytest.raises(
        InputError, match=r"cannot be exported by PyTorch: missing a required argument: 'input'"
    ):
        from_torch(torch.nn.Linear(2, 2, device="meta"))


def test_slices_of_complex_numbers_can_be_assigned() -> None:
    """As Fourier neural operators do."""

    def modes(first: Any, second: Any, x: Any) -> Any:
        spectrum = torch.fft.rfft(first(x))
        kept = torch.zeros_like(spectrum)
        kept[..., 2:5] = spectrum[..., 2:5] * 2
        return torch.fft.irfft(kept).mean()

    assert len(program_of(modes, X).ties) == 2


class Bags(torch.nn.Module):
    def __init__(self, mode: str) -> None:
        super().__init__()
        self.table = torch.nn.EmbeddingBag(1024, 32, mode=mode)
        self.top = torch.nn.Linear(32, 1)

    def forward(self, rows: Any, bags: Any) -> Any:
        return self.top(self.table(rows, bags)).mean()


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_rows_are_split_by_bags_rows_of_the_table_or_columns(mode: str) -> None:
    with torch.device("meta"):
        module = Bags(mode)
        rows, bags = torch.zeros(256, dtype=torch.long), torch.zeros(64, dtype=torch.long)
    program = clean(from_torch(module, rows, bags, gradient=True))
    (op,) = (o for o in program.operations if o.kind == "lookup")
    table = {1024} if mode != "max" else set()  # largest entries are not added up
    assert {op.sizes[f] for f in splittable(op)} == {64, 32} | table
    assert elements(op.sizes) == 1024 * 256 * 32
    back = next(o for o in program.operations if o.kind == "accumulate")
    assert program.value[back.outputs[0]].shape == (1024, 32)
    assert shard(program, "dgx-h100:1", {"data": 2, "model": 4}).proven


def test_one_tensor_of_indices_picks_along_its_dim_and_several_leave_all_whole() -> None:
    x, at = torch.empty(4, 6, 2, device="meta"), torch.empty(8, dtype=torch.long, device="meta")
    (op,) = clean(from_torch(Picks(lambda x, at: x[:, at]), x, at)).operations
    assert (op.kind, [op.sizes[f] for f in splittable(op)]) == ("lookup", [8, 4, 2, 6])
    (op,) = clean(from_torch(Picks(lambda x, at: x[at[:4], at[4:]]), x[..., 0], at)).operations[-1:]
    assert list(splittable(op)) == []


class Picks(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def test_a_product_of_three_is_one_product() -> None:
    """``x W y`` for each of 64 matrices, and its gradient: sums over what the result lacks."""

    class Bilinear(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Bilinear(16, 32, 64)

        def forward(self, x: Any, y: Any) -> Any:
            return self.layer(x, y).mean()

    x, y = torch.empty(8, 16, device="meta"), torch.empty(8, 32, device="meta")
    program = clean(from_torch(Bilinear().to("meta"), x, y, gradient=True))
    found = [op for op in program.operations if op.kind == "product"]
    assert [sorted(op.sizes) for op in found] == [[8, 16, 32, 64]] * 2
    made = [[op.sizes[f] for (f,) in op.writes[0]] for op in found]
    assert made == [[8, 64], [64, 16, 32]]
    assert shard(program, "dgx-h100:1", {"data": 2, "model": 4}).proven
