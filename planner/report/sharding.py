"""A sharded program in lines for people."""

from collections.abc import Iterator

from cluster_specs.units import GIB
from planner.tracing.sharded import ShardedProgram


def sharding_report(answer: ShardedProgram) -> Iterator[str]:
    """The answer in lines for people."""
    axes = ", ".join(f"{name} {size}" for name, size in answer.mesh.items())
    proof = "proven best" if answer.proven else f"within {answer.gap:.1%} of the best possible"
    fold = ", repeated blocks alike" if answer.folded else ""
    yield f"{answer.program.name} on {answer.cluster}, mesh {axes}"
    yield f"time         {1e3 * answer.seconds:.3f} ms ({proof} in this space{fold})"
    yield f"  computing  {1e3 * answer.compute_seconds:.3f} ms"
    yield f"  exchanging {1e3 * answer.communication_seconds:.3f} ms"
    used, limit = answer.memory_bytes / GIB, answer.memory_limit_bytes / GIB
    yield f"memory       {used:.2f} GiB of {limit:.2f} GiB for arrays"
    for name, seconds in answer.baselines.items():
        yield f"{name + ':':<15}{1e3 * seconds:.3f} ms"
    yield f"cleaned      {'; '.join(answer.program.applied) or 'nothing to do'}"
    for products in answer.together:
        yield f"as one       {', '.join(products)}"
    for operator in answer.operators:
        if operator.ring:
            around = f"around {', '.join(operator.ring)}, positions dealt out {operator.dealt}"
            yield f"in a ring    keys and values of {operator.name}, {around}"
    if answer.recomputed:
        yield f"run again    {', '.join(operator.name for operator in answer.recomputed)}"
    if any(v.role == "parameter" for v in answer.program.values) and not answer.program.ties:
        yield "forward      alone (--gradient adds the backward pass of a PyTorch module, jax.grad that of a function)"
    if answer.program.replicated:
        yield f"replicated   no rule for {', '.join(answer.program.replicated)}"
    yield "inputs"
    width = max(map(len, answer.inputs), default=0)
    for path, partition in answer.inputs.items():
        yield f"  {path:<{width}}  {', '.join('+'.join(axes) or '-' for axes in partition) or 'scalar'}"
