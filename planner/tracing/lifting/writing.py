"""Kernels as operators of a graph, with the tensors that they read, make, and keep for their backward pass."""

import re
from collections.abc import Mapping, Sequence

from planner.graph import BATCH, TOKEN_DIMS, Block, Op, Tensor
from planner.tracing.lifting.biases import ADDS
from planner.tracing.lifting.fused import PART
from planner.tracing.lifting.kernels import EXPONENTIALS, INTEGERS, PRODUCTS, Kernel
from planner.tracing.lifting.mixtures import ROUTING
from planner.tracing.lifting.naming import Naming
from planner.tracing.lifting.plain import no_graph
from planner.tracing.lifting.recurrences import elements_kept, runs_in_levels
from planner.tracing.lifting.stages import Stage
from planner.tracing.program import elements

Attributes = dict[str, bool | int | float | str]

LINEAR = frozenset(
    {
        *ADDS, "_to_copy", "cat", "concatenate", "convert_element_type", "copy", "div", "expand", "mul", "neg", "pad",
        "permute", "reduce_sum", "reshape", "slice", "split", "stack", "sub", "sum", "transpose", "unsqueeze", "view",
    }
)  # fmt: skip
"""Primitives that keep no input for the backward pass, where no more than one of their operands varies."""

FEATURES = ("head_dim", "v_dim")
"""Dims inside a head."""

FUNCTIONS: Mapping[str, frozenset[str]] = {
    "silu": frozenset({"logistic", "silu", "sigmoid"}),
    "gelu": frozenset({"erf", "erfc", "tanh", "gelu"}),
    "relu": frozenset({"max", "relu", "maximum"}),
}
"""Activation -> primitives by which it is known."""


class BlockWriter:
    """One block as it is written."""

    def __init__(self, naming: Naming, stage: Stage, name: str) -> None:
        self.naming, self.lifted, self.stage, self.name = naming, naming.lifted, stage, name
        self.tensors: dict[str, Tensor] = {}
        self.ops: list[Op] = []
        self.called: dict[str, str] = {}
        """Value -> tensor."""
        self.weights: dict[str, str] = {}
        """Parameter -> tensor."""

    def block(self) -> Block:
        """The block, its operators numbered by kind."""
        inputs = tuple(self._tensor(v, f"x{i or ''}") for i, v in enumerate(self.stage.inputs))
        for kernel in self.stage.kernels:
            self._operator(kernel)
        outputs = tuple(self._output(v) for v in self.stage.outputs)
        return Block(
            name=self.name,
            tensors=tuple(self.tensors.values()),
            ops=tuple(self.ops),
            inputs=inputs,
            outputs=outputs,
        )

    def _output(self, value: str) -> str:
        if value not in self.called:
            raise no_graph(f"block {self.name} hands on {value}, which it does not make")
        return self.called[value]

    def _declare(self, tensor: Tensor) -> str:
        """Under its name, or that with a number where another has it: data may be called as a layer's state is."""
        found, number = tensor, 2
        while self.tensors.get(found.name, found) != found:
            found, number = tensor.model_copy(update={"name": f"{tensor.name}_{number}"}), number + 1
        self.tensors[found.name] = found
        return found.name

    def _tensor(self, value: str, name: str) -> str:
        if value not in self.called:
            integer = self.lifted.plain.value[value].dtype.startswith(INTEGERS)
            plain = self.lifted.plain
            data = value in plain.program.inputs or value in plain.factors
            dims = sorted(self.naming.dims(value), key=_place)
            self.called[value] = self._declare(
                Tensor(
                    name=_word(self.lifted.plain.value[value].path or value) if data else name,
                    dims=tuple(dims),
                    role="input" if data else "activation",
                    dtype="int32" if integer else "compute",
                    scale=self.lifted.plain.shares.get(value, 1.0),
                )
            )
        return self.called[value]

    def _weight(self, raw: str) -> str:
        """The tensor of a parameter: positions in it are a table's, which no job lengthens."""
        parameter = self.lifted.root(raw)
        whole, _, part = self.lifted.stem(raw).partition(PART)
        key = f"{self.lifted.stem(whole)}{PART}{part}" if part else whole
        if key not in self.weights:
            dims = tuple("positions" if d == "seq" else d for d in self.naming.dims(raw))
            if "positions" in dims and "positions" not in self.naming.sizes:
                rows = self.lifted.plain.value[parameter].shape  # of a longer table the first ones are read
                longest = rows[dims.index("positions")] if len(rows) == len(dims) else 0
                self.naming.sizes["positions"] = max(longest, self.naming.sizes["seq"])
            path = self.lifted.plain.value[parameter].path
            if self.stage.number is not None:
                path = re.sub(rf"(?<=[._\[]){self.stage.number}(?=[.\]]|$)", "{layer}", path, count=1)
            name = _word(f"{path.replace('{layer}', '')}_{part}")
            frozen = self.lifted.plain.value[parameter].role == "frozen"
            role = "frozen" if frozen else "weight"
            self.weights[key] = self._declare(Tensor(name=name, dims=dims, role=role, path=path))
        return self.weights[key]

    def _operator(self, kernel: Kernel) -> None:
        if kernel.role == "view" and kernel.inputs[0] in self.lifted.plain.data:
            dims = tuple(sorted(self.naming.dims(kernel.outputs[0]), key=_place))
            seen = self.tensors[self._tensor(kernel.inputs[0], "x")]
            self.called[kernel.outputs[0]] = self._declare(seen.model_copy(update={"dims": dims}))
            return
        kind, attributes, name = self._described(kernel)
        inputs = tuple(self._tensor(v, _word(v)) for v in kernel.inputs)
        weights = tuple(self._weight(w) for w in kernel.weights)
        outputs = tuple(
            self._tensor(v, name if len(kernel.outputs) == 1 else f"{name}_{i}")
            for i, v in enumerate(kernel.outputs)
        )
        if not outputs:
            raise no_graph(f"operator {kernel.drafts[-1].name} makes nothing that anything reads")
        self.ops.append(
            Op(name=name, kind=kind, inputs=inputs, outputs=outputs, weights=weights, attributes=attributes)
        )

    def _described(self, kernel: Kernel) -> tuple[str, Attributes, str]:
        """Kind, attributes, and a name."""
        if kernel.role in PRODUCTS:
            self._check_product(kernel)
            words = dict.fromkeys(path.rpartition(".")[2] for path in self._paths(kernel))
            return kernel.role, {}, self._numbered("_".join(words) or kernel.role)
        if kernel.role == "attention":
            name = self._numbered("attention")
            return "attention", self._attention(kernel, name), name
        if kernel.role in ROUTING:
            name = self._numbered(kernel.role)
            return kernel.role, {"routing": self._routing(kernel)}, name
        if kernel.role == "recurrence":
            name = self._numbered(kernel.role)
            return "recurrence", self._recurrence(kernel, name), name
        if kernel.role != "kernel":
            return kernel.role, {}, self._numbered(kernel.role)
        return self._loops(kernel)

    def _paths(self, kernel: Kernel) -> list[str]:
        value = self.lifted.plain.value
        paths = (value[self.lifted.root(w)].path.removesuffix(".weight") for w in kernel.weights)
        return [path for path in paths if not path.endswith("bias")]

    def _numbered(self, name: str) -> str:
        taken, found, number = {op.name for op in self.ops}, _word(name), 2
        while found in taken:
            found, number = f"{_word(name)}_{number}", number + 1
        return found

    def _check_product(self, kernel: Kernel) -> None:
        read, made = set(self.naming.dims(kernel.inputs[0])), set(self.naming.dims(kernel.outputs[0]))
        loops = self.naming.loops(kernel.weights[0])
        if kernel.role == "conv" and len(set(loops)) == len(
            loops
        ):  # of a channel by itself the window is summed
            read |= set(self.naming.dims(kernel.weights[0]))
        if not read - made:
            same = ", ".join(sorted(read & made - {BATCH}))
            what = (
                f"sums over {same} and makes the same" if same else f"sums over what {kernel.inputs[0]} lacks"
            )
            raise no_graph(f"operator {kernel.drafts[0].name} {what}")

    def _attention(self, kernel: Kernel, name: str) -> Attributes:
        queries = self.naming.dims(kernel.inputs[0])
        context = self.naming.dims(kernel.outputs[0])
        seen_from, seen = self.naming.attended[id(kernel)]
        if not seen:
            raise no_graph(f"attention {name}: no positions of keys beside {', '.join(queries)}")
        positions, keys = (
            [*dict.fromkeys(self.naming.over([x]) for x in seen_by)] for seen_by in (seen_from, seen)
        )
        if BATCH in (*positions, *keys):
            raise no_graph(
                f"attention {name} runs over the first dim of the inputs, which is no batch then: trace a batch "
                "of such inputs (jax.vmap, torch.vmap)"
            )
        width, rows = elements(self.naming.size[x] for x in seen), keys[0]
        if len(keys) > 1 or width < self.naming.sizes[rows]:  # within windows
            rows = other = f"window_{width}"
            self.naming.sizes[rows] = width
        elif [rows] == positions:
            other = f"kv_{rows}"
            self.naming.sizes.setdefault(other, self.naming.sizes[rows])
        else:
            other = rows
        heads = tuple(
            d for d in context if d in queries and d not in (BATCH, *positions) and not d.startswith(FEATURES)
        )
        sums = Tensor(name=f"{name}_log_sum_exp", dims=(BATCH, *positions, *heads), dtype="fp32")
        odds = Tensor(name=f"{name}_probabilities", dims=(BATCH, *heads, *positions, other))
        return {
            "causal": kernel.masked,
            "window": 0,
            "chunk": 0,
            "kv_dim": rows,
            **({} if set(positions) <= {*TOKEN_DIMS} else {"q_dim": " ".join(positions)}),
            "log_sum_exp": self._declare(sums),
            "probabilities": self._declare(odds),
        }

    def _recurrence(self, kernel: Kernel, name: str) -> Attributes:
        """What a step does for one sequence, and all that the backward pass keeps of it."""
        step = self.lifted.plain.recurrences[kernel.drafts[0].name]
        dims = self.naming.dims(kernel.outputs[0])
        over = self.naming.over([self.naming.find((self.naming.drafts.index(kernel.drafts[0]), step.over))])
        if BATCH not in dims:
            raise no_graph(f"loop {kernel.drafts[0].name} hands on nothing of each sequence")
        batch = next(
            self.naming.size[x]
            for x in self.naming.loops(kernel.outputs[0])
            if self.naming.names.get(x) == BATCH
        )
        row = batch * elements(self.naming.sizes[d] for d in dims if d not in (BATCH, over))
        kept = Tensor(name=f"{name}_kept", dims=tuple(dict.fromkeys((*dims, over))), scale=step.kept / row)
        return {
            "over": over,
            "products": " ".join(f"{self._weight(w)}={depth}" for w, depth in step.products),
            "step_flops": step.flops / batch,
            "state": step.state / batch,
            **({"kept": self._declare(kept)} if step.kept else {}),
        }

    def _routing(self, kernel: Kernel) -> str:
        """Which tokens each expert takes."""
        routed = kernel.outputs[0] if kernel.role == "dispatch" else kernel.inputs[0]
        dims, share = self.naming.dims(kernel.inputs[1]), self.lifted.plain.shares[routed]
        return self._declare(Tensor(name="routing", dims=dims, dtype="int32", scale=share))

    def _loops(self, kernel: Kernel) -> tuple[str, Attributes, str]:
        """Loss, norm, mean or element-wise, by what is summed and what comes out."""
        if not kernel.inputs:
            paths = ", ".join(self._paths(kernel))
            raise no_graph(f"operator {kernel.drafts[0].name} makes an array of weights alone ({paths})")
        wide = max(kernel.inputs, key=lambda n: (self.lifted.plain.size(n), n))
        dims = self.naming.dims(wide)
        made = self.naming.dims(kernel.outputs[0]) if kernel.outputs else ()
        summed = self._summed(kernel)
        if not made or BATCH not in made:
            return self._ending(kernel, wide, dims)
        if summed and summed <= set(made):
            name = self._numbered("norm")
            over = [d for d in dims if d in summed]
            moments = Tensor(
                name=f"{name}_statistics",
                dims=tuple(d for d in dims if d not in over),
                dtype="fp32",
                scale=min(2, sum(len(d.reductions) for d in kernel.drafts)),
            )
            return "norm", {"over": " ".join(over), "statistics": self._declare(moments)}, name
        if summed - set(made):
            return "pool", {}, self._numbered("pool")
        return self._elementwise(kernel)

    def _summed(self, kernel: Kernel) -> set[str]:
        number = {id(d): i for i, d in enumerate(self.naming.drafts)}
        loops = {
            self.naming.find((number[id(d)], f)) for d in kernel.drafts for r in d.reductions for f in r.over
        }
        return {self.naming.names[x] for x in loops if x in self.naming.names}

    def _ending(self, kernel: Kernel, wide: str, dims: Sequence[str]) -> tuple[str, Attributes, str]:
        """A loss: cross-entropy where labels meet a softmax, else a number per sequence."""
        name = self._numbered("loss")
        labels = [n for n in kernel.inputs if self.lifted.plain.value[n].dtype.startswith("int")]
        if labels and (EXPONENTIALS & kernel.primitives):
            kernel.inputs[:] = [wide, labels[0]]
            rest = tuple(d for d in dims if d in self.naming.dims(labels[0]))
            kept = Tensor(name="log_probabilities", dims=tuple(dims), dtype="fp32")
            self._name_output(kernel, name, rest)
            return "cross_entropy", {"log_probabilities": self._declare(kept)}, name
        self._name_output(kernel, name, (BATCH,))
        return "elementwise", {}, name

    def _name_output(self, kernel: Kernel, name: str, dims: tuple[str, ...]) -> None:
        """The loss of each token or sequence; the mean over all is no array."""
        loss = self._declare(Tensor(name=name, dims=dims, dtype="fp32"))
        self.called.update(dict.fromkeys(kernel.outputs, loss))  # several numbers are one: they only add up
        kernel.outputs[:] = kernel.outputs[:1]

    def _elementwise(self, kernel: Kernel) -> tuple[str, Attributes, str]:
        made = self.naming.dims(kernel.outputs[0])
        products = any(
            len([n for n in d.inputs if not self.lifted.is_weight(n)]) > 1
            for d in kernel.drafts
            if {"mul", "div"} & set(d.primitives)
        )
        if kernel.primitives <= LINEAR and not products:
            if kernel.weights:
                return "add", {}, self._numbered("add")
            return "elementwise", {"linear": True}, self._numbered("linear")
        name = self._numbered("activation")
        attributes: Attributes = {}
        function = next((f for f, known in FUNCTIONS.items() if known & kernel.primitives), None)
        if function is not None:
            attributes["function"] = function
        if products and function and len(kernel.inputs) > 1:
            share = self.lifted.plain.shares.get(kernel.outputs[0], 1.0)
            gate = Tensor(name=f"{name}_gate", dims=made, scale=share)
            attributes["activated_gate"] = self._declare(gate)
        if runs_in_levels(self.lifted.plain, kernel.drafts):
            whole = self.lifted.plain.size(kernel.outputs[0])
            share = elements_kept(self.lifted.plain, kernel.drafts) / whole
            return (
                "elementwise",
                {"kept": self._declare(Tensor(name=f"{name}_kept", dims=made, scale=share))},
                name,
            )
        return "elementwise", attributes, name


def _place(dim: str) -> int:
    """Where a dim stands in activations, as attention has it: batch, positions, heads and others, inside a head."""
    return 0 if dim == BATCH else 1 if dim.endswith("seq") else 3 if dim.startswith(FEATURES) else 2


def _word(text: str) -> str:
    return re.sub(r"\W+", "_", text).strip("_")
