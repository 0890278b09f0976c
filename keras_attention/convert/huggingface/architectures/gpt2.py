"""GPT-2, whose matrices are stored as (inputs, outputs)."""

from keras_attention import scores
from keras_attention.convert.huggingface import parts
from keras_attention.layers.position_embedding import LearnedPositionEmbedding
from keras_attention.layers.transformer_block import TransformerBlock
from keras_attention.models import Decoder

MODEL_TYPES = ("gpt2",)
PREFIX = "transformer."
SUMMARIES = "type use_proj activation proj_to_labels first_dropout"


def model(config, dtype):
    """The `Decoder` of a configuration."""
    epsilon = config.get("layer_norm_epsilon", 1e-5)
    size, heads = config["n_embd"], config["n_head"]
    config.require("add_cross_attention", False, default=False)
    # `n_ctx` is an older name of `n_positions`; the heads of summaries are of other models; the
    # order of a product and a cast matters in half precision alone.
    config.ignore("resid_pdrop", "embd_pdrop", "attn_pdrop", "n_ctx", "reorder_and_upcast_attn")
    config.ignore(*(f"summary_{name}" for name in SUMMARIES.split()))
    scale = (size // heads) ** -0.5 if config.get("scale_attn_weights", True) else 1.0
    by_layer = config.get("scale_attn_by_inverse_layer_idx", False)
    blocks = [
        TransformerBlock(
            config.get("n_inner", 4 * size),
            heads,
            activation=parts.activation(config, "activation_function", "gelu_new"),
            layer_norm_epsilon=epsilon,
            causal=True,
            residual="pre",
            score=scores.ScaledDot(scale / (n + 1) if by_layer else scale),
            name=f"block_{n}",
            dtype=dtype,
        )
        for n in range(config["n_layer"])
    ]
    positions = LearnedPositionEmbedding(config["n_positions"], name="positions", dtype=dtype)
    return Decoder(
        blocks,
        parts.embeddings(config, dtype, size=size, positions=positions),
        parts.layer_norm(epsilon, "final_norm", dtype),
        parts.logits(config, dtype, tied=True),
        dtype=dtype,
    )


def entries(model, prefix):
    """The tensors of a model; `prefix` is what their names begin with."""
    found = [
        parts.plain(f"{prefix}wte.weight", model.embeddings.tokens.table),
        parts.plain(f"{prefix}wpe.weight", model.embeddings.positions.embeddings),
    ]
    for n, block in enumerate(model.blocks):
        name = f"{prefix}h.{n}"
        attention, feed_forward = block.attention, block.feed_forward
        found += parts.norm(f"{name}.ln_1", block.attention_norm)
        found += parts.norm(f"{name}.ln_2", block.feed_forward_norm)
        for weight, *bias in (
            parts.fused_dense(f"{name}.attn.c_attn", parts.heads(attention)),
            parts.dense(f"{name}.attn.c_proj", attention.output_dense, inputs=2),
            parts.dense(f"{name}.mlp.c_fc", feed_forward.intermediate_dense),
            parts.dense(f"{name}.mlp.c_proj", feed_forward.output_dense),
        ):
            found += [parts.transposed(weight), *bias]
    found += parts.norm(f"{prefix}ln_f", model.final_norm)
    return found + parts.head("lm_head", model)


def unused(name):
    """Whether a tensor is the causal mask, which older files have."""
    return name.endswith((".attn.bias", ".attn.masked_bias"))
