"""BLOOM."""

from keras_attention.convert.huggingface import entries, fields, stacks
from keras_attention.convert.huggingface.architecture import language_model
from keras_attention.convert.huggingface.fields import ignored, needs, only, read, same_as

FIELDS = {
    **fields.COMMON,
    **fields.renamed(num_hidden_layers="n_layer", num_attention_heads="n_head"),
    **needs("vocab_size hidden_size"),
    # The name in older files.
    "n_embed": same_as("hidden_size"),
    "layer_norm_epsilon": read(1e-5),
    "apply_residual_connection_post_layernorm": only(False),
    # With `pretraining_tp` above 1 it sums parts of products, without the biases.
    "slow_but_exact": only(False),
    "tie_word_embeddings": read(True),
    **ignored("not read", "n_inner seq_length"),
    **ignored(
        "of the program that trained it",
        """
        attention_softmax_in_fp32 masked_softmax_fusion bias_dropout_fusion offset_alibi
        skip_bias_add skip_bias_add_qkv
        """,
    ),
}


def _block(config, n):
    return {
        "intermediate_dim": 4 * config["hidden_size"],
        "num_heads": config["n_head"],
        "activation": "gelu_tanh",
        "layer_norm_epsilon": config["layer_norm_epsilon"],
        "position": "alibi",
    }


def _further(config):
    return {"embeddings": {"norm": stacks.layer_norm(config["layer_norm_epsilon"])}}


ARCHITECTURES = {
    "bloom": language_model(
        FIELDS,
        stacks.decoder(_block, _further),
        "word_embeddings",
        {
            "word_embeddings_layernorm": "embeddings.norm",
            "h": entries.blocks(
                {
                    "input_layernorm": "attention_norm",
                    "self_attention.query_key_value": entries.by_head("attention.num_heads"),
                    "self_attention.dense": "attention.output_dense",
                    "post_attention_layernorm": "feed_forward_norm",
                    "mlp.dense_h_to_4h": "feed_forward.intermediate_dense",
                    "mlp.dense_4h_to_h": "feed_forward.output_dense",
                }
            ),
            "ln_f": "final_norm",
        },
        prefix="transformer.",
    )
}
