"""OPT. The embeddings of 350m are smaller than its blocks, and projected on both sides."""

import keras

from keras_attention.convert.huggingface import buffers, entries, fields, stacks
from keras_attention.convert.huggingface.architecture import language_model
from keras_attention.convert.huggingface.fields import count, needs, only, read

FIELDS = {
    **fields.COMMON,
    **needs("vocab_size hidden_size ffn_dim num_hidden_layers num_attention_heads"),
    **needs("max_position_embeddings"),
    "word_embed_proj_dim": count(None, int | None),
    "activation_function": fields.activation("relu"),
    "do_layer_norm_before": read(True),
    "_remove_final_layer_norm": read(False),
    "enable_bias": read(True),
    "tie_word_embeddings": read(True),
    "layer_norm_elementwise_affine": only(True),
}
# Rows of the table of positions before that of position 0.
_BEFORE = 2


def _block(config, n):
    return {
        "intermediate_dim": config["ffn_dim"],
        "num_heads": config["num_attention_heads"],
        "activation": config["activation_function"],
        "residual": "pre" if config["do_layer_norm_before"] else "post",
        "use_bias": config["enable_bias"],
    }


def _further(config):
    size, length = config["hidden_size"], config["max_position_embeddings"]
    tokens = config["word_embed_proj_dim"] or size
    if not (config.architecture or "").endswith("LM"):
        # Without its head, our model would return the states before the projection.
        config.require("word_embed_proj_dim", size, None)
    into, out_of = (
        None if tokens == size else keras.layers.Dense(features, use_bias=False, name=name)
        for features, name in ((size, "project_in"), (tokens, "project_out"))
    )
    given = {"size": tokens, "positions": stacks.positions(length), "token_projection": into}
    normed = config["do_layer_norm_before"] and not config["_remove_final_layer_norm"]
    norm = stacks.layer_norm(1e-5, "final_norm") if normed else None
    return {"embeddings": given, "final_norm": norm, "logits": {"transform": out_of}}


ARCHITECTURES = {
    "opt": language_model(
        FIELDS,
        stacks.decoder(_block, _further),
        "decoder.embed_tokens",
        {
            "decoder.embed_positions.weight": entries.rows(
                "embeddings.positions.embeddings", _BEFORE
            ),
            "decoder.project_in": "embeddings.token_projection",
            "decoder.layers": entries.blocks(
                {
                    "self_attn_layer_norm": "attention_norm",
                    **entries.attention("self_attn.", "q_proj k_proj v_proj out_proj"),
                    "final_layer_norm": "feed_forward_norm",
                    "fc1": "feed_forward.intermediate_dense",
                    "fc2": "feed_forward.output_dense",
                }
            ),
            "decoder.final_layer_norm": "final_norm",
            "decoder.project_out": "logits.transform",
        },
        prefix="model.",
        unread=buffers.VERSION,
    )
}
