"""DINOv2: a ViT whose branches have learned factors, `LayerScale`.

The first token is the class token. Classifiers apply to it and to the mean of the patches, and are
refused, as is the gated feed-forward network of the largest model. Images have the size of the
table of positions.
"""

from keras_attention.convert.huggingface import entries, fields, stacks
from keras_attention.convert.huggingface.architecture import Architecture
from keras_attention.convert.huggingface.architectures import vit
from keras_attention.convert.huggingface.fields import count, ignored, only, read
from keras_attention.layers.layer_scale import LayerScale
from keras_attention.models import Encoder

FIELDS = {
    **fields.COMMON,
    **{name: x for name, x in fields.SIZES.items() if name != "intermediate_size"},
    "mlp_ratio": count(4),
    "image_size": read(224, int | list),
    "patch_size": read(14, int | list),
    "num_channels": count(3),
    "hidden_act": fields.activation("gelu"),
    "layer_norm_eps": read(1e-6),
    "qkv_bias": only(True),
    "use_swiglu_ffn": only(False),
    **ignored(
        "of training, and of feature maps",
        """
        layerscale_value drop_path_rate use_mask_token apply_layernorm reshape_hidden_states
        stage_names out_features out_indices _out_features _out_indices
        """,
    ),
}


def _block(config):
    return {
        "intermediate_dim": config["hidden_size"] * config["mlp_ratio"],
        "num_heads": config["num_attention_heads"],
        "activation": config["hidden_act"],
        "layer_norm_epsilon": config["layer_norm_eps"],
        "residual": "sandwich",
        "norm": {f"{branch}_output": LayerScale() for branch in ("attention", "feed_forward")},
    }


def _make(config):
    stacks.has_head(config, ["Dinov2Model"])
    return Encoder(
        stacks.blocks(config["num_hidden_layers"], lambda n: _block(config)),
        vit.embeddings(config, ["cls_token"]),
        stacks.layer_norm(config["layer_norm_eps"], "final_norm"),
    )


ARCHITECTURES = {
    "dinov2": Architecture(
        FIELDS,
        _make,
        {
            "embeddings.patch_embeddings.projection": entries.convolution(
                "embeddings.tokens.layers.0"
            ),
            "embeddings.cls_token": "embeddings.tokens.layers.2.token",
            "embeddings.position_embeddings": entries.axes("embeddings.positions.embeddings", 3),
            "encoder.layer": entries.blocks(
                {
                    "norm1": "attention_norm",
                    **entries.attention(
                        "attention.", "attention.query attention.key attention.value output.dense"
                    ),
                    "layer_scale1.lambda1": "attention_output_norm.scale",
                    "norm2": "feed_forward_norm",
                    "mlp.fc1": "feed_forward.intermediate_dense",
                    "mlp.fc2": "feed_forward.output_dense",
                    "layer_scale2.lambda1": "feed_forward_output_norm.scale",
                }
            ),
            "layernorm": "final_norm",
        },
        prefix="dinov2.",
        unread={r"embeddings\.mask_token": "of training with hidden patches"},
        input_shape=vit.input_shape,
    ),
}
