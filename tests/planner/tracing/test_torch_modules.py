"""Modules that are more than a sequence of operators: control flow, bags, and what PyTorch stops at."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn.attention.flex_attention import flex_attention  # noqa: E402

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

    def aligned(first: Any, second: Any, x: Any) -> Any:
        ones = torch.ones(4, dtype=torch.long, device=x.device)
        return torch.nn.functional.ctc_loss(first(x).log_softmax(-1), ones[:, None], 2 * ones, ones)

    with pytest.raises(
        InputError, match=r"the module makes as many entries as values say \(test_torch_modules"
    ):
        program_of(aligned, X)

    def looked_at(first: Any, second: Any, x: Any) -> Any:
        rows, columns = torch.where(x[0] > 0)
        return first(x[0][rows]).mean() if len(columns) else first(x).mean()

    with pytest.raises(
        InputError, match=r"the module makes as many entries as values say \(test_torch_modules.py"
    ):
        program_of(looked_at, X, device="cpu")


def test_what_is_no_tensor_is_no_input() -> None:
    class Options(Module):
        def forward(self, factor: Any, x: Any, how: str, mask: Any = None) -> Any:
            return getattr(self.first(x) * factor, how)()

    module = Options(lambda: None).to("meta")
    program = from_torch(module, 2.5, X.to("meta"), "mean", None, gradient=True)
    assert [v.path for v in program.values if v.role == "input"] == ["x"]
    assert len(program.ties) == 2


def test_parameters_inputs_and_operators_may_be_called_alike() -> None:
    class Named(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mask, self.mul = (
                torch.nn.Parameter(torch.zeros(16)),
                torch.nn.Parameter(torch.zeros(8, 4, 16)),
            )

        def forward(self, x: Any, mask: Any) -> Any:
            return (x * self.mask * self.mul + mask).sum()

    program = from_torch(Named(), X, X[0], gradient=True)
    found = {v.name: (v.shape, v.role) for v in program.values if v.role != "intermediate"}
    assert found == {
        "mask": ((16,), "parameter"),
        "mul": ((8, 4, 16), "parameter"),
        "x": ((8, 4, 16), "input"),
        "input.mask": ((4, 16), "input"),
    }
    assert len({t.source for t in program.ties}) == 2


def test_what_an_export_cannot_say_is_refused() -> None:
    module = Module(lambda first, second, x: first(x).mean()).to("meta")
    module.register_buffer("graph", torch.zeros(16), persistent=False)
    with pytest.raises(InputError, match="has something named 'graph'"):
        from_torch(module, X.to("meta"))
    with pytest.raises(InputError, match=r"to be an instance of `torch.nn.Module`, got <class 'function'>"):
        from_torch(lambda x: x.mean(), X)

    def flexible(first: Any, second: Any, x: Any) -> Any:
        return flex_attention(*[first(x).unsqueeze(0)] * 3).mean()

    for device in ("cpu", "meta"):
        with pytest.raises(InputError, match="scaled_dot_product_attention stands for it"):
            program_of(flexible, X, device=device)

    def clamped(first: Any, second: Any, x: Any) -> Any:
        first.weight.data.clamp_(-1, 1)
        return first(x).mean()

    with pytest.raises(InputError, match=r"the module uses .data of a tensor"):
        program_of(clamped, X)


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


def test_functions_of_each_weight_are_one_of_all() -> None:
    """``vmap`` over weights: what it leaves in an export has one dim more than it says."""

    class Ensemble(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = torch.nn.Parameter(torch.ones(4, 16, 16))

        def forward(self, x: Any) -> Any:
            return torch.func.vmap(lambda w: (x @ w.T).tanh())(self.weights).mean()

    program = clean(from_torch(Ensemble(), torch.ones(8, 16), gradient=True))
    assert {v.shape for v in program.values if v.role == "parameter"} == {(4, 16, 16)}
    assert products(program) == 2  # of all, and the gradient of all weights


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


def test_weights_of_rows_of_bags_have_gradients() -> None:
    class Weighted(Bags):
        def __init__(self) -> None:
            super().__init__("sum")
            self.weights = torch.nn.Parameter(torch.zeros(256))

        def forward(self, rows: Any, bags: Any) -> Any:
            return self.table(rows, bags, per_sample_weights=self.weights).mean()

    with torch.device("meta"):
        module, rows, bags = Weighted(), *torch.zeros(2, 256, dtype=torch.long)
    program = clean(from_torch(module, rows, bags[:64], gradient=True))
    (op,) = (o for o in program.operations if o.primitive.endswith("weights_backward"))
    assert {op.sizes[f] for f in splittable(op)} == {1024, 64, 32}
    assert program.value[op.outputs[0]].shape == (256,)
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


def test_products_of_narrow_numbers_are_products() -> None:
    def scaled(left: Any, right: Any, rows: Any, columns: Any) -> Any:
        return torch._scaled_mm(left, right.t(), rows, columns, out_dtype=torch.bfloat16)

    with torch.device("meta"):
        left, right = (torch.zeros(n, 64, dtype=torch.float8_e4m3fn) for n in (32, 128))
        rows, columns, one = torch.zeros(32, 1), torch.zeros(1, 128), torch.zeros(())
        whole = (torch.zeros(32, 64, dtype=torch.int8), torch.zeros(64, 128, dtype=torch.int8))
    for function, given, scales in (
        (torch._int_mm, whole, []),
        (scaled, (left, right, one, one), [(), ()]),
        (scaled, (left, right, rows, columns), [(32, 1), (1, 128)]),
    ):
        op = clean(from_torch(Picks(function), *given)).operations[-1]
        assert (op.kind, sorted(op.sizes)) == ("product", [32, 64, 128])
        sized = [tuple(op.sizes[d[0]] if d else 1 for d in dims) for dims in op.reads[2:]]
        assert sized == scales


def test_rows_that_meet_by_index_stay_whole_unless_they_are_added_up() -> None:
    x, at = torch.empty(8, 6, device="meta"), torch.empty(4, dtype=torch.long, device="meta")
    meet = Picks(lambda x, at, y: x.index_reduce(0, at, y, "amax"))
    (op,) = clean(from_torch(meet, x, at, x[:4])).operations
    assert (op.kind, {op.sizes[f] for f in splittable(op)}) == ("accumulate", {8, 6})


SEVERAL: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "sum of products": (lambda x, at: torch.addbmm(x[0, :, :2], x, x.mT[..., :2]), ["mm"]),
    "distance": (lambda x, at: torch.dist(x, 2 * x), []),
    "repeated by count": (lambda x, at: x.repeat_interleave(at, 0, output_size=16), []),
    "put by place": (lambda x, at: x.put(at, x[0, 0]), []),
    "left empty": (lambda x, at: torch.ops.aten.empty_like(x) + x, []),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_operators_are_made_of_known_ones(name: str) -> None:
    function, found = SEVERAL[name]
    x, at = torch.empty(8, 4, 8, device="meta"), torch.empty(8, dtype=torch.long, device="meta")
    program = clean(from_torch(Picks(function), x, at))
    assert program.replicated == ()
    assert [op.primitive for op in program.operations if op.kind == "product"] == found
