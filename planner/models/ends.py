"""What stands before and after the layers: embedding, final norm, vocabulary projection, loss."""

from planner.graph import BATCH, Block
from planner.models.building import BlockBuilder, parameter_paths
from planner.models.config import TransformerConfig
from planner.models.gates import gated_norm


def embedding_block(config: TransformerConfig, seq: str = "seq") -> Block:
    """Token embedding, with learned positions and a norm where the model has them."""
    b = BlockBuilder("embedding", parameter_paths(config.scheme))
    return b.build(embedded(b, config, seq))


def embedded(b: BlockBuilder, config: TransformerConfig, seq: str = "seq") -> str:
    """Append what `embedding_block` has."""
    x = token_vectors(b, config, seq) if config.widened_last else token_embedding(b, config, seq)
    if config.positions:
        x = learned_positions(b, x, token_types=bool(config.token_types))
    if config.embedding_norm:
        over = b.dims(x)[-1]
        x = b.norm(
            "embedding_norm", x, "embedding_normed", style=config.norm, role="embedding_norm", over=over
        )
    return _widened(b, x, bias=True) if config.widened_last else x


def token_embedding(b: BlockBuilder, config: TransformerConfig, seq: str = "seq") -> str:
    """Append the look-up of token vectors, projected to ``hidden`` where the table is narrower."""
    return _widened(b, token_vectors(b, config, seq), bias=False)


def token_vectors(b: BlockBuilder, config: TransformerConfig, seq: str) -> str:
    """Append the look-up of token vectors."""
    ids = b.data("tokens", BATCH, seq)
    width = "embedding_dim" if config.embedding_dim else "hidden"
    x = b.tensor("embedded", BATCH, seq, width)
    weight = b.weight("weight", "vocab", width, role="embedding", suffix=".weight")
    return b.op("embedding", "embedding", (ids,), (x,), (weight,))


def _widened(b: BlockBuilder, x: str, *, bias: bool) -> str:
    *_, seq, width = b.dims(x)
    if width == "hidden":
        return x
    projected = b.tensor("projected", BATCH, seq, "hidden")
    weights = b.linear_weights("w_project_in", "hidden", width, role="project_in", columns=1, bias=bias)
    return b.op("project_in", "matmul", (x,), (projected,), weights)


def learned_positions(b: BlockBuilder, x: str, *, token_types: bool = False) -> str:
    """Append the sum with a table of position vectors, and with one of segment vectors (BERT)."""
    width = b.dims(x)[-1]
    tables = [b.weight("position_weight", "positions", width, role="positions", suffix=".weight")]
    if token_types:
        tables.append(
            b.weight("token_type_weight", "token_types", width, role="token_types", suffix=".weight")
        )
    out = b.tensor("positioned", *b.dims(x))
    return b.op("positions", "add", (x,), (out,), tuple(tables))


def language_model_head(b: BlockBuilder, config: TransformerConfig, x: str) -> str:
    """Append final norm, projection onto the vocabulary and cross-entropy."""
    if config.final_norm:
        x = b.norm("final_norm", x, "final_normed", style=config.norm, role="final_norm")
        x = gated_norm(b, config, "final", x)
    width = "hidden"
    if config.embedding_dim:
        width = "embedding_dim"
        projected = b.tensor("projected", BATCH, "seq", width)
        weights = b.linear_weights(
            "w_project_out", width, "hidden", role="project_out", columns=1, bias=False
        )
        x = b.op("project_out", "matmul", (x,), (projected,), weights)
    return language_model_loss(
        b, x, width=width, bias=config.head_bias, capped=config.logit_cap, narrow=config.narrow_loss
    )


def language_model_loss(
    b: BlockBuilder,
    x: str,
    *,
    name: str = "weight",
    width: str = "hidden",
    bias: bool = False,
    capped: bool = False,
    narrow: bool = False,
) -> str:
    """Append the projection onto the vocabulary and the loss, of logits that are ``capped`` by a tanh (Gemma 2)."""
    logits = b.tensor("logits", *b.dims(x)[:-1], "vocab")
    weights = b.linear_weights(name, "vocab", width, role="head", columns=1, bias=bias)
    b.op("lm_head", "matmul", (x,), (logits,), weights)
    if capped:
        within = b.tensor("capped_logits", *b.dims(logits))
        logits = b.op("logit_cap", "elementwise", (logits,), (within,), function="tanh")
    return cross_entropy(b, logits, narrow=narrow)


def cross_entropy(b: BlockBuilder, logits: str, *, narrow: bool = False) -> str:
    """Append the loss over the last dim of ``logits``; its fp32 log-probabilities are auxiliary.

    ``narrow`` are those of classes of transformers that take it in the training type.
    """
    dims = b.dims(logits)
    labels = b.data("labels", *dims[:-1])
    loss = b.tensor("loss", *dims[:-1], dtype="fp32")
    kept = b.tensor("log_probabilities", *dims, dtype="fp32", narrow=narrow)
    return b.op("loss", "cross_entropy", (logits, labels), (loss,), log_probabilities=kept)
