"""Bytes of arrays, and which of them a compiler never stores.

XLA for TPU makes one-hot rows inside the products that read them. Compiled for a v5e (libtpu 0.0.52), 8,192 of them
times a table of 32,768 rows, and the gradient of that, keep no such array, move the bytes of the table and the result
alone, and multiply as densely as any product. XLA for CPU stores them; of GPUs, where a library's product reads its
operands from memory, that is assumed.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from planner.errors import Unsupported
from planner.tracing.program import Operation, Program, Value, elements

ELEMENT_BYTES: Mapping[str, float] = MappingProxyType(
    {
        "bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8,
        "bfloat16": 2, "float16": 2, "float32": 4, "float64": 8, "complex64": 8, "complex128": 16,
        "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e8m0fnu": 1, "float4_e2m1fn": 0.5,
    }
)  # fmt: skip
"""Bytes of a stored element [B]; random keys (``key<...>``) are two words."""

KEY_BYTES = 8.0

COMPARISONS = frozenset({"eq", "ne", "ge", "gt", "le", "lt", "and", "or", "not", "convert_element_type"})
"""Primitives that one-hot matrices are made of."""


def element_bytes(dtype: str) -> float:
    """Bytes of one element [B]; raises ``Unsupported`` for a type that is not known."""
    if dtype.startswith("key<"):
        return KEY_BYTES
    if dtype not in ELEMENT_BYTES:
        raise Unsupported(f"arrays of type {dtype} are not known; known: {', '.join(ELEMENT_BYTES)}")
    return ELEMENT_BYTES[dtype]


def array_bytes(value: Value) -> float:
    """Bytes of a whole array [B]."""
    return elements(value.shape) * element_bytes(value.dtype)


def made_in_products(program: Program, device: Literal["gpu", "tpu"]) -> frozenset[str]:
    """Values that are made anew where products read them, from much less than they hold."""
    if device != "tpu":
        return frozenset()
    lasting = {*program.outputs, *(t.source for t in program.ties)}
    return frozenset(
        name
        for op in program.operations
        if _compares(program, op)
        for name in op.outputs
        if name not in lasting
        and all(_multiplies(program, r, op.region) for r in program.readers.get(name, ()))
    )


def _compares(program: Program, op: Operation) -> bool:
    read, made = (sum(array_bytes(program.value[n]) for n in names) for names in (op.inputs, op.outputs))
    return op.kind == "loop" and set(op.primitive.split("+")) <= COMPARISONS and read < made


def _multiplies(program: Program, position: int, region: str) -> bool:
    reader = program.operations[position]
    return reader.kind == "product" and reader.region == region
