"""ModernBERT: windows between layers that see all, each with wavelengths of their own."""

from keras_attention import patterns
from keras_attention.convert.huggingface import buffers, entries, fields, rope, stacks
from keras_attention.convert.huggingface.architecture import Architecture
from keras_attention.convert.huggingface.fields import count, ignored, off, only, read
from keras_attention.models import Encoder

_BASES = {
    "full_attention": ("global_rope_theta", 160000.0),
    "sliding_attention": ("local_rope_theta", 10000.0),
}
FIELDS = {
    **fields.LANGUAGE,
    **rope.fields_by_type(8192, _BASES),
    "hidden_activation": fields.activation("gelu"),
    "norm_eps": read(1e-5),
    "norm_bias": read(False),
    "attention_bias": read(False),
    "mlp_bias": read(False),
    "layer_types": read(None, list | None),
    "global_attn_every_n_layers": count(3),
    "local_attention": read(128, least=0),
    "classifier_activation": fields.activation("gelu"),
    "classifier_bias": read(False),
    "decoder_bias": read(True),
    "tie_word_embeddings": only(True),
    **off("causal_mask is_causal"),
    **ignored("of a classifier, which is not read", "classifier_pooling"),
    **ignored(
        "of training", "sparse_prediction sparse_pred_ignore_index initializer_cutoff_factor"
    ),
    **ignored(
        "of the program that runs the model",
        "deterministic_flash_attn reference_compile repad_logits_with_grad",
    ),
    **ignored("not read: `norm_eps` is", "layer_norm_eps"),
    **ignored("not read: positions are rotary", "position_embedding_type"),
}


def _make(config):
    has_head = stacks.has_head(config, ["ModernBertModel"], "ModernBertForMaskedLM")
    logits = None
    if has_head:
        logits = stacks.masked_logits(
            config,
            config["classifier_activation"],
            _norm(config),
            dense_bias=config["classifier_bias"],
            use_bias=config["decoder_bias"],
        )
    layers = range(config["num_hidden_layers"])
    every = config["global_attn_every_n_layers"]
    types = ["sliding_attention" if n % every else "full_attention" for n in layers]
    types = stacks.layer_types(config, types)
    blocks = stacks.blocks(len(types), lambda n: _block(config, n, types[n]))
    embeddings = stacks.embeddings(config, norm=_norm(config))
    return Encoder(blocks, embeddings, _norm(config, "final_norm"), logits)


def _norm(config, name="norm"):
    return stacks.layer_norm(config["norm_eps"], name, center=config["norm_bias"])


def _block(config, n, kind):
    biases = config["attention_bias"]
    config.require("mlp_bias", biases)
    reach = config["local_attention"] // 2
    sliding = kind == "sliding_attention"
    positions = rope.rotary_by_type(config, stacks.head_size(config), _BASES, scaled=_BASES)
    return {
        "intermediate_dim": config["intermediate_size"],
        "num_heads": config["num_attention_heads"],
        "activation": config["hidden_activation"],
        "gated": True,
        "residual": "pre",
        # The embeddings have a norm already.
        "norm": {"attention": _norm(config) if n else None, "feed_forward": _norm(config)},
        "use_bias": biases,
        "pattern": patterns.SlidingWindow(reach, reach) if sliding else None,
        "position": positions[kind],
    }


ARCHITECTURES = {
    "modernbert": Architecture(
        FIELDS,
        _make,
        {
            "embeddings.tok_embeddings.weight": "embeddings.tokens.table",
            "embeddings.norm": "embeddings.norm",
            "layers": entries.blocks(
                {
                    "attn_norm": "attention_norm",
                    "attn.Wqkv": entries.HEADS,
                    "attn.Wo": "attention.output_dense",
                    "mlp_norm": "feed_forward_norm",
                    "mlp.Wi": ("feed_forward.gate_dense", "feed_forward.intermediate_dense"),
                    "mlp.Wo": "feed_forward.output_dense",
                }
            ),
            "final_norm": "final_norm",
        },
        prefix="model.",
        head=stacks.masked_head("head.dense", "head.norm", "decoder.bias"),
        unread=buffers.ROTARY,
        same={"embeddings.tok_embeddings.weight": [r"decoder\.weight"]},
    )
}
