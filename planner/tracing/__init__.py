"""Models as they are written: traced from JAX or PyTorch, cleaned, sharded on a mesh, and checked there.

``from_jax`` and ``from_torch`` make a `Program`; `passes.clean` simplifies it; `solving.shard` chooses a layout
for every array; `jax_apply` runs the choice, and `hlo` compares what the compiler made of it.
"""
