"""GPT-J: attention without biases, beside a feed-forward network with them."""

from keras_attention import positions
from keras_attention.convert.huggingface import buffers, entries, stacks
from keras_attention.convert.huggingface.architecture import language_model
from keras_attention.convert.huggingface.architectures import gpt2
from keras_attention.convert.huggingface.fields import count, ignored, only, read
from keras_attention.layers.multi_head_attention import MultiHeadAttention

FIELDS = {
    **gpt2.STACK,
    "rotary_dim": count(64),
    "tie_word_embeddings": read(False),
    # `transformers` computes this whatever the fields contain.
    "rotary": only(True, None),
    "scale_attn_weights": only(True, None),
    **ignored("positions are computed", "n_positions max_position_embeddings"),
}


def _block(config, n):
    heads, size = config["n_head"], stacks.head_size(config)
    rotary = positions.Rotary(dim=config["rotary_dim"], layout="interleaved")
    return {
        "intermediate_dim": config["n_inner"] or 4 * config["n_embd"],
        "num_heads": heads,
        "activation": config["activation_function"],
        "layer_norm_epsilon": config["layer_norm_epsilon"],
        "residual": "parallel",
        "norm": {"feed_forward": "shared"},
        "attention": MultiHeadAttention(
            heads, size, use_bias=False, position=rotary, name="attention"
        ),
    }


ARCHITECTURES = {
    "gptj": language_model(
        FIELDS,
        stacks.decoder(_block, lambda config: {"logits": {"use_bias": True}}),
        "wte",
        {
            "h": entries.blocks(
                {
                    "ln_1": "attention_norm",
                    **entries.attention("attn.", "q_proj k_proj v_proj out_proj"),
                    "mlp.fc_in": "feed_forward.intermediate_dense",
                    "mlp.fc_out": "feed_forward.output_dense",
                }
            ),
            "ln_f": "final_norm",
        },
        prefix="transformer.",
        unread=buffers.causal("attn"),
    )
}
