"""A model's graph as a JAX function: every operator by its kind, every array by the names of its dims.

The graph is the JSON of `planner.graph.Graph`, parameters come as `planner.verification.arrays` lists them.
What matters here is the structure (shapes, sums, who reads what), not a model's exact mathematics: rotary
positions and norms are the plain ones. Every token goes to every expert, weighted by the router: choosing the best
few would turn rounding into other choices.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Pin = Callable[[Any, str], Any]
"""Constrains an activation, by ``block.tensor``."""

Attention = Callable[[Any, Any, Any, Mapping[str, Any], str], Any]
"""Context of (batch, seq, heads, dim) queries, (batch, keys, kv_heads, dim) keys and values; attributes, a name."""


class NoProgram(Exception):
    """An operator that this module cannot run; the message names it."""


class Setting(NamedTuple):
    """What operators need besides their tensors."""

    sizes: Mapping[str, int]
    attention: Attention
    lay: Pin
    """Lays what a product with an array of several weights makes, by rank, as one of its results is pinned."""
    block: str = ""


class Values(NamedTuple):
    """An operator's arrays with their tensors (dicts with ``name``, ``dims``, ``scale``)."""

    arrays: Sequence[Any]
    tensors: Sequence[Mapping[str, Any]]

    def dims(self, index: int) -> tuple[str, ...]:
        """Names of the dims of one of them."""
        return tuple(self.tensors[index]["dims"])


class Columns(NamedTuple):
    """Of one weight within an array of several, were they not ``dealt`` among ranks: each has its part of all."""

    start: int
    size: int
    dealt: int


class Part(NamedTuple):
    """A matrix (inputs, outputs) within an array of several: some of its columns."""

    whole: Any
    columns: Columns


def cut(array: Any, columns: Columns) -> Any:
    """The columns of one weight, or of what a product with all of them makes."""
    start, size, ranks = columns
    if ranks == 1:
        return array[..., start : start + size]
    by_rank = array.reshape(*array.shape[:-1], ranks, -1)
    own = by_rank[..., start // ranks : (start + size) // ranks]
    return own.reshape(*array.shape[:-1], size)


LOGITS = {"vocab"}
"""Dims of results that leave their product in fp32, as the loss wants them."""

Operator = Callable[[Mapping[str, Any], Values, Values, Sequence[Mapping[str, Any]], Setting], Sequence[Any]]
"""(operator, inputs, weights, tensors of the outputs, setting) -> outputs."""


def align(x: Any, dims: Sequence[str], target: Sequence[str]) -> Any:
    """``x`` with its dims in the order of ``target``, and 1 where it lacks one."""
    order = [d for d in target if d in dims]
    x = jnp.transpose(x, [list(dims).index(d) for d in order])
    return x.reshape([x.shape[order.index(d)] if d in order else 1 for d in target])


def _matmul(op: Any, inputs: Values, weights: Values, outputs: Any, setting: Setting) -> list[Any]:
    names = sorted({d for t in (*inputs.tensors, *weights.tensors, *outputs) for d in t["dims"]})
    letter = {d: chr(ord("a") + i) for i, d in enumerate(names)}

    def spell(dims: Sequence[str]) -> str:
        return "".join(letter[d] for d in dims)

    x, results = inputs.arrays[0], []
    pending = list(zip(weights.arrays, map(weights.dims, range(len(weights.arrays))), strict=True))
    products: dict[int, Any] = {}
    for output in outputs:
        array, dims = pending.pop(0)
        if isinstance(array, Part):
            key = id(array.whole)
            if key not in products:
                products[key] = _laid(x @ array.whole, array.columns.dealt, output["name"], setting)
            own = cut(products[key], array.columns)
            sizes = [setting.sizes[d] for d in output["dims"] if d not in inputs.dims(0)]
            result = own.reshape(*x.shape[:-1], *sizes)
        else:
            equation = f"{spell(inputs.dims(0))},{spell(dims)}->{spell(output['dims'])}"
            logits = jnp.float32 if set(output["dims"]) >= LOGITS else None
            result = jnp.einsum(equation, x, array, preferred_element_type=logits)
        while pending and set(pending[0][1]) < set(output["dims"]):
            bias, bias_dims = pending.pop(0)
            result = result + align(bias, bias_dims, output["dims"])
        results.append(result)
    if pending:
        raise NoProgram(f"operator {op['name']} has weights that belong to no output")
    return results


def _laid(product: Any, ranks: int, name: str, setting: Setting) -> Any:
    """Columns of a product where the ranks among which they are dealt have them: XLA may move weights else.

    Or it gathers what the product reads in place of the array, where that has more columns than there are tokens.
    """
    by_rank = setting.lay(product.reshape(*product.shape[:-1], ranks, -1), f"{setting.block}.{name}")
    return by_rank.reshape(product.shape)


def _norm(op: Any, inputs: Values, weights: Values, outputs: Any, setting: Setting) -> list[Any]:
    dims = inputs.dims(0)
    over = tuple(dims.index(d) for d in op["attributes"]["over"].split())
    x = inputs.arrays[0].astype(jnp.float32)
    if len(weights.arrays) > 1:
        x = x - x.mean(over, keepdims=True)
    x = x * jax.lax.rsqrt(jnp.square(x).mean(over, keepdims=True) + 1e-5)
    x = x.astype(inputs.arrays[0].dtype)
    for i, (weight, combine) in enumerate(zip(weights.arrays, (jnp.multiply, jnp.add), strict=False)):
        x = combine(x, align(weight, weights.dims(i), dims))
    return [x]


FUNCTIONS: Mapping[str, Callable[[Any], Any]] = {
    "silu": jax.nn.silu,
    "gelu": jax.nn.gelu,
    "gelu_new": jax.nn.gelu,
    "gelu_pytorch_tanh": jax.nn.gelu,
    "quick_gelu": lambda x: x * jax.nn.sigmoid(1.702 * x),
    "relu": jax.nn.relu,
    "relu2": lambda x: jnp.square(jax.nn.relu(x)),
    "tanh": jnp.tanh,
}


def _elementwise(op: Any, inputs: Values, weights: Values, outputs: Any, setting: Setting) -> list[Any]:
    if op["attributes"].get("linear"):
        return _linear(op, inputs, outputs, setting)
    if op["attributes"].get("function") == "scale":
        return [inputs.arrays[0] * weights.arrays[0]]
    function = FUNCTIONS.get(op["attributes"].get("function", ""))
    same = all(inputs.dims(i) == tuple(outputs[0]["dims"]) for i in range(len(inputs.arrays)))
    if function is None or not same or len(outputs) > 1 or len(inputs.arrays) > 2:
        raise NoProgram(f"elementwise operator {op['name']} is neither an activation nor rotary positions")
    first, *rest = inputs.arrays
    return [function(first) * rest[0] if rest else function(first)]


def _linear(op: Any, inputs: Values, outputs: Any, setting: Setting) -> list[Any]:
    shapes = [tuple(t["dims"]) for t in outputs]
    if shapes == [inputs.dims(i) for i in range(len(inputs.arrays))]:
        return [rotate(x) for x in inputs.arrays]
    last = [setting.sizes[shape[-1]] for shape in shapes]
    if len(inputs.arrays) == 1 and sum(last) == inputs.arrays[0].shape[-1]:
        cuts = [sum(last[:i]) for i in range(1, len(last))]
        return list(jnp.split(inputs.arrays[0], cuts, axis=-1))
    if len(inputs.arrays) == 3 and len(outputs) == 3:
        return _latent_heads(inputs.arrays, last)
    raise NoProgram(f"linear operator {op['name']} is none that is known")


def _latent_heads(arrays: Sequence[Any], last: Sequence[int]) -> list[Any]:
    """Queries, keys and values of latent attention: keys get the shared rotary part, once for every head."""
    q, rope, both = arrays
    nope = last[1] - rope.shape[-1]
    shared = jnp.broadcast_to(rope[:, :, None, :], (*both.shape[:-1], rope.shape[-1]))
    k = jnp.concatenate([both[..., :nope], shared], axis=-1)
    return [rotate(q), rotate(k), both[..., both.shape[-1] - last[2] :]]


def rotate(x: Any) -> Any:
    """Rotary positions of (batch, seq, heads, dim)."""
    half = x.shape[-1] // 2
    angle = jnp.arange(x.shape[1])[:, None] / 10000 ** (jnp.arange(half) / half)
    cosine, sine = (f(angle)[None, :, None, :].astype(x.dtype) for f in (jnp.cos, jnp.sin))
    first, second, rest = jnp.split(x, [half, 2 * half], axis=-1)
    return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine, rest], axis=-1)


def plain_attention(q: Any, k: Any, v: Any, attributes: Mapping[str, Any], name: str) -> Any:
    """Attention with all its scores."""
    k, v = (jnp.repeat(t, q.shape[2] // t.shape[2], axis=2) for t in (k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) / math.sqrt(q.shape[-1])
    probabilities = jax.nn.softmax(jnp.where(mask_of(q.shape[1], k.shape[1], attributes), scores, -1e30), -1)
    return jnp.einsum("bhqk,bkhd->bqhd", probabilities.astype(v.dtype), v)


def mask_of(queries: int, keys: int, attributes: Mapping[str, Any]) -> Any:
    """Which keys a query sees: causal, in a window (of both sides where it is not causal), in its chunk."""
    q, k = jnp.arange(queries)[:, None], jnp.arange(keys)[None, :]
    seen = (k <= q) if attributes["causal"] else jnp.ones((queries, keys), bool)
    if window := attributes.get("window"):
        seen &= (q - k < window) if attributes["causal"] else (abs(q - k) <= window // 2)
    if attributes.get("chunk"):
        seen &= q // attributes["chunk"] == k // attributes["chunk"]
    return seen


def _attention(op: Any, inputs: Values, weights: Values, outputs: Any, setting: Setting) -> list[Any]:
    if len(inputs.arrays) != 3 or any(array.ndim != 4 for array in inputs.arrays):
        raise NoProgram(f"attention {op['name']} does not read queries, keys and values by heads")
    q, k, v = inputs.arrays
    return [setting.attention(q, k, v, op["attributes"], f"{setting.block}.{op['outputs'][0]}")]


def _add(op: Any, inputs: Values, weights: Values, outputs: Any, setting: Setting) -> list[Any]:
    dims = tuple(outputs[0]["dims"])
    if len(inputs.arrays) == 1 and len(weights.arrays) > 1 and inputs.dims(0) != dims:
        return [_behind_token(op, inputs.arrays[0], weights)]
    if any(inputs.dims(i) != dims for i in range(len(inputs.arrays))):
        raise NoProgram(f"operator {op['name']} adds tensors of different dims")
    total = sum(inputs.arrays[1:], inputs.arrays[0])
    for i, array in enumerate(weights.arrays):
        own = weights.dims(i)
        if own[-1] != dims[-1] or len(own) > 2:
            raise NoProgram(f"operator {op['name']} adds a weight of dims {own}")
        rows = total.shape[1] if "positions" in own[0] else 1
        total = total + (array[:rows] if len(own) == 2 else array)
    return [total]


def _behind_token(op: Any, x: Any, weights: Values) -> Any:
    """Tokens behind one that learns, the first of the ``weights``, plus their positions, the last of them."""
    token, positions = weights.arrays[0], weights.arrays[-1]
    if positions.shape != (x.shape[1] + 1, *x.shape[2:]):
        raise NoProgram(f"operator {op['name']} adds tensors of different dims")
    first = jnp.broadcast_to(token, (x.shape[0], 1, x.shape[2]))
    return jnp.concatenate([first, x], axis=1) + positions


def _pool(op: Any, inputs: Values, weights: Values, outputs: Any, setting: Setting) -> list[Any]:
    x, dims, kept = inputs.arrays[0], inputs.dims(0), outputs[0]["dims"]
    if len(kept) == 2 and setting.sizes[kept[1]] == 2 * x.shape[-1]:  # DINOv2's classifier reads both
        return [jnp.concatenate([x[:, 0], x[:, 1:].mean(1)], axis=-1)]
    if "predictions" in kept:  # which tokens are masked makes no difference
        return [x[:, : setting.sizes["predictions"]]]
    if not set(kept) < set(dims):
        raise NoProgram(f"pool {op['name']} is no mean over whole dims")
    return [x.mean(tuple(i for i, d in enumerate(dims) if d not in kept))]


def _embedding(op: Any, inputs: Values, weights: Values, outputs: Any, setting: Setting) -> list[Any]:
    return [weights.arrays[0][inputs.arrays[0]]]


def _cross_entropy(op: Any, inputs: Values, weights: Values, outputs: Any, setting: Setting) -> list[Any]:
    logits, labels = inputs.arrays
    logits = logits.astype(jnp.float32)
    if logits.shape[-1] == 1:  # the other of two classes is that this one is not
        return [jax.nn.softplus(logits[..., 0]) - labels * logits[..., 0]]
    hit = jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
    return [jax.nn.logsumexp(logits, axis=-1) - (logits * hit).sum(-1)]


def _dispatch(op: Any, inputs: Values, weights: Values, outputs: Any, setting: Setting) -> list[Any]:
    x, experts = inputs.arrays[0], setting.sizes[outputs[0]["dims"][-2]]
    return [jnp.broadcast_to(x[..., None, :], (*x.shape[:-1], experts, x.shape[-1]))]


def _combine(op: Any, inputs: Values, weights: Values, outputs: Any, setting: Setting) -> list[Any]:
    out, logits = inputs.arrays
    shares = jax.nn.softmax(logits.astype(jnp.float32), axis=-1).astype(out.dtype)
    return [jnp.einsum("bseh,bse->bsh", out, shares)]


OPERATORS: Mapping[str, Operator] = {
    "matmul": _matmul,
    "norm": _norm,
    "elementwise": _elementwise,
    "attention": _attention,
    "add": _add,
    "pool": _pool,
    "embedding": _embedding,
    "cross_entropy": _cross_entropy,
    "dispatch": _dispatch,
    "combine": _combine,
}


def run_block(
    block: Mapping[str, Any], given: Mapping[str, Any], weights: Mapping[str, Any], pin: Pin, setting: Setting
) -> tuple[Any, ...]:
    """Outputs of a block from its inputs and the model's (``given``) and its weights, all by tensor name."""
    tensors = {t["name"]: t for t in block["tensors"]}
    setting = setting._replace(block=block["name"])
    have = {name: pin(x, f"{block['name']}.{name}") for name, x in given.items() if name in tensors}

    def values(names: Sequence[str], source: Mapping[str, Any]) -> Values:
        return Values([source[n] for n in names], [tensors[n] for n in names])

    for op in block["ops"]:
        if op["kind"] not in OPERATORS:
            raise NoProgram(f"operators of kind {op['kind']} ({op['name']}) have no program")
        outputs = [tensors[name] for name in op["outputs"]]
        arguments = (values(op["inputs"], have), values(op["weights"], weights))
        results = OPERATORS[op["kind"]](op, *arguments, outputs, setting)
        for name, result in zip(op["outputs"], results, strict=True):
            have[name] = pin(result, f"{block['name']}.{name}")
    return tuple(have[name] for name in block["outputs"])
