"""Sequences that are packed with several documents, whose tokens attend to their own document alone.

Kernels of GPUs take such documents as sequences of their own: flash-attn's ``flash_attn_varlen_func`` with
``cu_seqlens``, TransformerEngine's ``thd`` layout, block masks of PyTorch's ``flex_attention``. Those of TPUs do not
(`planner.sharding.between`). All else of a model runs over tokens one by one and does not know of documents.
"""

from planner.graph import TOKEN_DIMS, Block, Graph, Op


def of_documents(graph: Graph, length: int | None) -> Graph:
    """``graph`` where every document has ``length`` tokens; as it is where None: a sequence is one document."""
    if length is None:
        return graph
    blocks = tuple(_block_of_documents(block, length) for block in graph.blocks)
    return graph.model_copy(update={"blocks": blocks})


def _block_of_documents(block: Block, length: int) -> Block:
    ops = tuple(_attends_within(op, length) if _is_own(op, block) else op for op in block.ops)
    return block.model_copy(update={"ops": ops})


def _is_own(op: Op, block: Block) -> bool:
    """Whether tokens attend to those of their own sequence."""
    return (
        op.kind == "attention"
        and op.attributes["kv_dim"] in TOKEN_DIMS
        and (op.attributes["kv_dim"] in block.tensor[op.inputs[0]].dims)
    )


def _attends_within(op: Op, length: int) -> Op:
    return op.model_copy(update={"attributes": {**op.attributes, "documents": length}})
