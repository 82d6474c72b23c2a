"""Programs exported from PyTorch: operators split as PyTorch computes, and the same answers as from JAX."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch.nn import functional as F  # noqa: E402

from cluster_specs.catalog import load_cluster  # noqa: E402
from cost_models.attention import AttentionShape  # noqa: E402
from cost_models.compute import attention_seconds  # noqa: E402
from planner.errors import InputError, Unsupported  # noqa: E402
from planner.tracing.cleaning.passes import clean  # noqa: E402
from planner.tracing.layouts import NamedMesh  # noqa: E402
from planner.tracing.program import Program, elements  # noqa: E402
from planner.tracing.reading.from_torch import from_torch  # noqa: E402
from planner.tracing.solving.options import SUMMING, options, splittable  # noqa: E402
from planner.tracing.solving.pricing import ProgramPricer  # noqa: E402
from planner.tracing.solving.shard import shard  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore"),
]  # torch.export warns of its own insides


class Calls(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


CASES: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "product": (torch.matmul, ((4, 6), (6, 8))),
    "batched product": (torch.bmm, ((2, 4, 6), (2, 6, 8))),
    "linear": (lambda x, w: F.linear(x, w), ((4, 6), (8, 6))),
    "convolution": (lambda x, w: F.conv2d(x, w, padding=1), ((2, 4, 8, 8), (6, 4, 3, 3))),
    "softmax": (lambda x: F.softmax(x, -1), ((4, 6),)),
    "norm": (lambda x: F.layer_norm(x, (6,)), ((4, 2, 6),)),
    "sum": (lambda x: x.sum(1, keepdim=True), ((4, 6, 2),)),
    "concatenated": (lambda x, y: torch.cat([x, y], 1), ((4, 6), (4, 2))),
    "pooled": (lambda x: F.max_pool2d(x, 2), ((2, 4, 8, 8),)),
    "transposed convolution": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1),
        ((2, 4, 8, 8), (4, 6, 4, 4)),
    ),
    "transposed convolution of groups": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1, groups=x.shape[1] // 2),
        ((2, 8, 8, 8), (8, 3, 4, 4)),
    ),
    "norm of groups": (lambda x: F.group_norm(x, x.shape[1] // 2), ((4, 8, 6),)),
    "enlarged": (lambda x: F.interpolate(x, scale_factor=2), ((2, 4, 8, 8),)),
    "repeated": (lambda x: x.repeat(1, 3), ((4, 6),)),
    "turned": (lambda x: x.flip(0), ((4, 6),)),
    "spectrum": (lambda x: torch.fft.rfft(x), ((4, 6),)),
    "length": (lambda x: torch.linalg.vector_norm(x, dim=1), ((4, 6, 2),)),
    "largest": (lambda x: x.topk(4)[0], ((4, 6),)),
    "sorted": (lambda x: torch.sort(x, dim=0, stable=True)[0], ((4, 6),)),
    "middle": (lambda x: x.median(0)[0], ((4, 6),)),
    "running product": (lambda x: x.cumprod(1), ((4, 6),)),
    "distances": (torch.cdist, ((2, 4, 6), (2, 8, 6))),
    "exponential of matrices": (torch.matrix_exp, ((4, 6, 6),)),
    "tagged as element-wise": (torch.hypot, ((4, 6), (4, 6))),
    "complex": (torch.complex, ((4, 6), (4, 6))),
    "sampled": (lambda x, at: F.grid_sample(x, at), ((2, 4, 8, 8), (2, 4, 4, 2))),
}


@pytest.mark.parametrize("name", CASES)
def test_parts_make_up_the_whole(name: str) -> None:
    function, shapes = CASES[name]
    rng = np.random.default_rng(0)
    given = [torch.tensor(rng.normal(size=s), dtype=torch.float32) for s in shapes]
    program = clean(from_torch(Calls(function), *(x.to("meta") for x in given)))
    (op,) = program.operations
    reads = [op.reads[op.inputs.index(n)] for n in program.inputs]
    fixed = {h.factor for h in op.halos} | {f for r in op.reductions for f in r.over}
    for factor in set(splittable(op)) - fixed:
        if op.sizes[factor] % 2:
            continue
        at = [
            next((i for i, d in enumerate(dims) if d and d[0] == factor), None)
            for dims in (*reads, op.writes[0])
        ]
        halves = [
            function(*(x if i is None else x.chunk(2, i)[half] for x, i in zip(given, at, strict=False)))
            for half in (0, 1)
        ]
        assert at[-1] is not None or op.kind in SUMMING
        combined = halves[0] + halves[1] if at[-1] is None else torch.cat(halves, at[-1])
        torch.testing.assert_close(combined, function(*given), rtol=1e-4, atol=1e-5)


class Mlp(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(1024, 4096, bias=False)
        self.down = torch.nn.Linear(4096, 1024, bias=False)

    def forward(self, x: Any) -> Any:
        return (self.down(torch.tanh(self.up(x))) ** 2).mean()


def on_meta(build: Callable[[], Any]) -> Any:
    with torch.device("meta"):
        return build()


def test_a_module_costs_what_the_same_function_does_in_jax() -> None:
    jax = pytest.importorskip("jax")
    from planner.tracing.reading.from_jax import from_jax

    def loss(p: Any, x: Any) -> Any:
        return ((jax.numpy.tanh(x @ p["up"].T) @ p["down"].T) ** 2).mean()

    shaped = {
        "up": jax.ShapeDtypeStruct((4096, 1024), "float32"),
        "down": jax.ShapeDtypeStruct((1024, 4096), "float32"),
    }
    theirs = from_jax(jax.value_and_grad(loss), shaped, jax.ShapeDtypeStruct((512, 1024), "float32"))
    ours = from_torch(on_meta(Mlp), torch.empty(512, 1024, device="meta"), gradient=True)
    first, second = (shard(p, "dgx-h100:1", {"data": 2, "model": 4}) for p in (ours, theirs))
    assert first.seconds == pytest.approx(second.seconds, rel=0.1)  # one kernel more or less
    assert first.inputs["up.weight"] == second.inputs["p.up"]


@torch.library.custom_op("meshwright_tests::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


double.register_fake(torch.empty_like)
double.register_autograd(lambda ctx, gradient: double(gradient))

torch.library.define("meshwright_tests::triple", "(Tensor x) -> Tensor")
torch.library.impl("meshwright_tests::triple", "CompositeExplicitAutograd", lambda x: 3 * x)
torch.library.register_autograd("meshwright_tests::triple", lambda ctx, gradient: 3 * gradient)


class Times(Mlp):
    def __init__(self, operator: Callable[..., Any]) -> None:
        super().__init__()
        self.operator = operator

    def forward(self, x: Any) -> Any:
        return self.operator(self.up(x)).mean()


def test_a_derivative_that_a_library_defines_is_followed() -> None:
    x = torch.empty(8, 1024, device="meta")
    module = on_meta(lambda: Times(double))
    with pytest.raises(Unsupported, match=r"\(meshwright_tests\.double\) has no rule"):
        from_torch(module, x)
    program = from_torch(module, x, gradient=True, replicate_unknown=True)
    assert len(program.replicated) == 2  # there and back


def test_a_derivative_that_cannot_be_traced_is_named() -> None:
    module = on_meta(lambda: Times(torch.ops.meshwright_tests.triple))
    with pytest.raises(InputError, match="has a derivative that cannot be traced"):
        from_torch(module, torch.empty(8, 1024, device="meta"), gradient=True)


class Experts(torch.nn.Module):
    """What stands for the feed-forward layer of the one block of a model of ``transformers``; its input is learned."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.experts, self.scale = model.model.layers[0].mlp, torch.nn.Parameter(torch.ones(HIDDEN))

    def forward(self, x: Any) -> Any:
        return (self.experts(x * self.scale) ** 2).mean()


EXPERTS, CHOSEN, HIDDEN, INNER, TOKENS = 4, 2, 64, 48, 2 * 16
SIZES = {
    "vocab_size": 128, "hidden_size": HIDDEN, "intermediate_size": INNER, "moe_intermediate_size": INNER,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_experts_per_tok": CHOSEN,
}  # fmt: skip
LATENT = {
    "q_lora_rank": 32, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16,
    "n_routed_experts": EXPERTS, "n_group": 2, "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 0,
}  # fmt: skip


def expert_models() -> dict[str, Callable[[], Any]]:
    transformers = pytest.importorskip("transformers")
    of = transformers.AutoConfig.for_model
    configs = {
        "mixtral": lambda: of("mixtral", **SIZES, num_key_value_heads=2, num_local_experts=EXPERTS),
        "qwen3_moe": lambda: of(
            "qwen3_moe", **SIZES, num_key_value_heads=2, num_experts=EXPERTS, head_dim=16
        ),
        "deepseek_v2": lambda: of("deepseek_v2", **SIZES, **LATENT),
        "deepseek_v3": lambda: of("deepseek_v3", **SIZES, **LATENT),
    }
    build = transformers.AutoModelForCausalLM.from_config
    return {name: lambda config=config: Experts(build(config())) for name, config in configs.items()}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("mixtral", "float32"),  # the library's own operator
        ("deepseek_v2", "float32"),
        ("mixtral", "bfloat16"),  # PyTorch's
        ("qwen3_moe", "bfloat16"),
        ("deepseek_v3", "bfloat16"),
    ],
)
def test_experts_of_transformers_have_gradients(name: str, dtype: str) -> None:
    """Two products by expert forward, each twice more backward; all may be split by rows, wherever experts end."""
    module = on_meta(expert_models()[name]).to(getattr(torch, dtype))
    x = torch.empty(2, 16, HIDDEN, dtype=getattr(torch, dtype), device="meta")
    program = clean(from_torch(module, x, gradient=True))
    assert program.replicated == ()
    grouped = [op for op in program.operations if "grouped_mm" in op.primitive]
    assert len(grouped) == 3 * 2
    rows = TOKENS * CHOSEN
    sizes = sorted(elements(op.sizes) for op in grouped)
    assert sizes == [rows * HIDDEN * INNER] * 3 + [rows * HIDDEN * 2 * INNER] * 3
    for op in grouped:
        row, *within = op.reads[0][0]
        assert (op.sizes[row], [op.sizes[f] for f in within]) == (rows // EXPERTS, [EXPERTS])
        assert row in splittable(op)
        assert not {*within} & {*splittable(op)}
    shapes = {v.path: v.shape for v in program.values if v.role == "parameter"}
    assert len(program.ties) == len(shapes)


def test_rows_picked_along_a_dim_are_looked_up() -> None:
    x, rows = torch.empty(4, 6, 2, device="meta"), torch.empty(8, dtype=torch.int64, device="meta")
    (op,) = clean(from_torch(Calls(lambda x, i: x.index_select(1, i)), x, rows)).operations
    ((batch, table, width), (picked,)), (found,) = op.reads, op.writes
    assert (op.kind, found) == ("lookup", (batch, picked, width))
    assert [op.sizes[f] for f in (*batch, *table, *width, *picked)] == [4, 6, 2, 8]


def test_complex_numbers_are_pairs_that_stay_together() -> None:
    x, angles = torch.empty(4, 6, 2, device="meta"), torch.empty(4, 6, device="meta")

    def turned(x: Any, angles: Any) -> Any:
        return torch.view_as_real(torch.view_as_complex(x) * torch.polar(angles, angles))

    program = clean(from_torch(Calls(turned), x, angles))
    assert [v.dtype for v in program.values if v.role == "input"] == ["float32"] * 2
    for op in program.operations:
        assert {op.sizes[f] for f in splittable(op)} == {4, 6}


def test_what_is_written_in_place_is_traced_as_what_it_becomes() -> None:
    """Derivatives of a norm of groups and of a loss of odds change tensors as they go."""

    class Loss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.GroupNorm(2, 4)

        def forward(self, x: Any, y: Any) -> Any:
            return F.binary_cross_entropy_with_logits(self.norm(x), y)

    x, y = torch.empty(2, 2, 4, 8, 8, device="meta")
    program = from_torch(on_meta(Loss), x, y, gradient=True)
    assert [t.target for t in program.ties] == ["norm.weight", "norm.bias"]
    assert not [op.primitive for op in program.operations if op.primitive.endswith("_")]


def test_gradients_lie_as_their_parameters() -> None:
    program = from_torch(on_meta(Mlp), torch.empty(512, 1024, device="meta"), gradient=True)
    assert [t.target for t in program.ties] == ["up.weight", "down.weight"]
    assert program.inputs == ("up.weight", "down.weight", "x")
    assert Program.model_validate_json(program.to_json()) == program


class Images(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(16, 32, 3, padding=1), torch.nn.BatchNorm2d(32)
        self.head = torch.nn.Linear(32, 8)

    def forward(self, x: Any, y: Any) -> Any:
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)
        return F.cross_entropy(self.head(x.mean((2, 3))), y)


class Tokens(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(512, 64)
        self.layer = torch.nn.TransformerEncoderLayer(
            64, 4, 256, dropout=0.0, batch_first=True, norm_first=True
        )

    def forward(self, x: Any, y: Any) -> Any:
        return F.cross_entropy((self.layer(self.embed(x)) @ self.embed.weight.T).flatten(0, 1), y.flatten())


DATA = {
    Images: lambda: (torch.empty(16, 16, 8, 8), torch.empty(16, dtype=torch.long)),
    Tokens: lambda: (torch.empty(8, 32, dtype=torch.long), torch.empty(8, 32, dtype=torch.long)),
}


@pytest.mark.parametrize("kind", DATA)
def test_gradients_of_whole_models_are_planned(kind: type) -> None:
    module = on_meta(kind)
    program = from_torch(module, *on_meta(DATA[kind]), gradient=True)
    assert len(program.ties) == len(list(module.parameters()))
    sharded = shard(program, "dgx-h100:1", {"data": 2, "model": 4})
    assert sharded.proven
    assert all(seconds >= sharded.seconds for seconds in sharded.baselines.values())


def test_an_unknown_operator_is_named() -> None:
    x = torch.empty(4, 4, device="meta")
    with pytest.raises(Unsupported, match=r"linalg_householder_product\) has no rule"):
        from_torch(Calls(torch.linalg.householder_product), x, x[0])
    assert from_torch(Calls(torch.linalg.householder_product), x, x[0], replicate_unknown=True).replicated


def test_there_must_be_something_to_differentiate() -> None:
    with pytest.raises(InputError, match="needs a module with parameters"):
        from_torch(Calls(lambda x: x.sum()), torch.empty(4, device="meta"), gradient=True)
    with pytest.raises(InputError, match=r"returns one number, this one returns \(4, 8\)"):
        from_torch(on_meta(lambda: torch.nn.Linear(8, 8)), torch.empty(4, 8, device="meta"), gradient=True)


LENGTH = 24
"""Of sequences in what follows: arrays that have it twice are scores."""


class Attends(torch.nn.Module):
    """Self-attention whose key heads serve two query heads each; a mask is an array, positions, or none."""

    def __init__(self, masked: str) -> None:
        super().__init__()
        self.masked = masked
        self.q, self.k, self.v = (torch.nn.Linear(32, n, bias=False) for n in (32, 16, 16))
        self.register_buffer("ones", torch.ones(LENGTH, LENGTH, dtype=torch.bool))

    def forward(self, x: Any) -> Any:
        q, k, v = (p(x).unflatten(-1, (-1, 8)).transpose(1, 2) for p in (self.q, self.k, self.v))
        mask = self.ones.tril() if self.masked == "array" else None
        causal = self.masked == "positions"
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, enable_gqa=True).sum()


@pytest.mark.parametrize("masked", ["array", "positions", "none"])
def test_attention_is_one_operator_both_ways(masked: str) -> None:
    x = torch.empty(2, LENGTH, 32, device="meta")
    program = clean(from_torch(on_meta(lambda: Attends(masked)), x, gradient=True))
    forward, backward = (op for op in program.operations if op.attention is not None)
    assert all(v.shape.count(LENGTH) < 2 for v in program.values if v.role == "intermediate") or (
        masked == "array"
    )
    for op, back in ((forward, False), (backward, True)):
        how = op.attention
        assert how is not None
        assert (how.backward, how.causal, how.kernel) == (back, masked == "positions", "flash")
        assert sorted(op.sizes[f] for f in how.queries) == [2, LENGTH]
        assert [op.sizes[f] for f in (*how.keys, *how.width, *how.depth)] == [LENGTH, 8, 8]
    assert [program.value[n].shape for n in forward.outputs] == [(2, 4, LENGTH, 8), (2, 4, LENGTH)]
    assert [program.value[n].shape[1] for n in backward.outputs] == [4, 2, 2]
    over = {tuple(sorted(backward.sizes[f] for f in r.over)) for r in backward.reductions}
    assert over == {(2, LENGTH)}  # keys and values get sums over queries and over the heads that share them


def test_attention_costs_what_a_fused_kernel_does() -> None:
    x = torch.empty(1, LENGTH, 32, device="meta")
    program = clean(from_torch(on_meta(lambda: Attends("positions")), x, gradient=True))
    pricer = ProgramPricer(program, NamedMesh(load_cluster("dgx-h100:1"), {"model": 2}))
    device = pricer.mesh.cluster.device
    for op in program.operations:
        if op.attention is None:
            continue
        found = options(op, [program.value[n].shape for n in op.outputs], pricer.mesh)
        assert len({o.split for o in found}) == 4  # key heads, queries, these with keys in a ring, nothing
        for way in (o for o in found if o.split != op.attention.keys):
            by_queries = way.split[0] in op.attention.queries
            key_heads = 2 if by_queries or way.split == (-1,) else 1
            rows = LENGTH // 2 if by_queries else LENGTH
            shape = AttentionShape(
                batch=key_heads, heads=2, q_len=rows, kv_len=LENGTH, qk_dim=8, v_dim=8, kv_heads=1
            )
            want = attention_seconds(shape, device, "tf32", "flash", op.attention.backward).seconds
            assert pricer.operation(op, way).compute == pytest.approx(want)
