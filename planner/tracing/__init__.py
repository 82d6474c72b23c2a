"""Models as they are written: traced from JAX or PyTorch, cleaned, sharded on a mesh, and checked there.

`reading` makes a `Program` (``program``) of a function, `cleaning` simplifies it, `solving` chooses how its arrays lie
(``layouts``) and says so (``sharded``), `applying` runs it that way, and `lifting` makes a model of it that plans take.
"""
