"""GPT-2, whose matrices are stored as (inputs, outputs)."""

from keras_attention import scores
from keras_attention.convert.huggingface import buffers, entries, fields, stacks
from keras_attention.convert.huggingface.architecture import language_model
from keras_attention.convert.huggingface.entries import transposed
from keras_attention.convert.huggingface.fields import count, ignored, needed, read

# Fields that GPT-J shares.
STACK = {
    **fields.COMMON,
    **fields.renamed(
        hidden_size="n_embd", num_hidden_layers="n_layer", num_attention_heads="n_head"
    ),
    "vocab_size": needed(),
    "n_inner": count(None, int | None),
    "activation_function": fields.activation("gelu_new"),
    "layer_norm_epsilon": read(1e-5),
    **fields.SUMMARY,
}
FIELDS = {
    **STACK,
    **fields.renamed(max_position_embeddings="n_positions"),
    "scale_attn_weights": read(True),
    "scale_attn_by_inverse_layer_idx": read(False),
    "tie_word_embeddings": read(True),
    **ignored("the order of a product and a cast, of half precision", "reorder_and_upcast_attn"),
    **ignored("an older name of `n_positions`, which is not read", "n_ctx"),
    **ignored("of GPT, and not read", "n_special predict_special_tokens"),
}


def _block(config, n):
    scale = stacks.head_size(config) ** -0.5 if config["scale_attn_weights"] else 1.0
    by_layer = config["scale_attn_by_inverse_layer_idx"]
    return {
        "intermediate_dim": config["n_inner"] or 4 * config["n_embd"],
        "num_heads": config["n_head"],
        "activation": config["activation_function"],
        "layer_norm_epsilon": config["layer_norm_epsilon"],
        "score": scores.ScaledDot(scale / (n + 1) if by_layer else scale),
    }


def _further(config):
    return {"embeddings": {"positions": stacks.positions(config["n_positions"])}}


ARCHITECTURES = {
    "gpt2": language_model(
        FIELDS,
        stacks.decoder(_block, _further),
        "wte",
        {
            "wpe.weight": "embeddings.positions.embeddings",
            "h": entries.blocks(
                {
                    "ln_1": "attention_norm",
                    "attn.c_attn": transposed(entries.HEADS),
                    "attn.c_proj": transposed("attention.output_dense"),
                    "ln_2": "feed_forward_norm",
                    "mlp.c_fc": transposed("feed_forward.intermediate_dense"),
                    "mlp.c_proj": transposed("feed_forward.output_dense"),
                }
            ),
            "ln_f": "final_norm",
        },
        prefix="transformer.",
        unread=buffers.causal(r"(attn|crossattention)"),
    )
}
