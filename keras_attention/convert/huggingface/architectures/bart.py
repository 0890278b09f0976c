"""BART, mBART and Marian: encoder–decoders with different places of norms, and positions."""

from keras_attention.convert.huggingface import buffers, parts, sequences
from keras_attention.convert.huggingface.fields import (
    COMMON,
    activation,
    count,
    ignored,
    needed,
    off,
    only,
    read,
    same_as,
)
from keras_attention.convert.huggingface.tensors import matrix, rows, shaped
from keras_attention.layers.position_embedding import (
    LearnedPositionEmbedding,
    SinCosPositionEmbedding,
)
from keras_attention.layers.transformer_block import TransformerBlock
from keras_attention.models import Decoder, Embeddings, Encoder, EncoderDecoder, Logits

PREFIX = "model."
_MODELS = ("BartModel", "MBartModel", "MarianModel")
_HEADS = ("BartForConditionalGeneration", "MBartForConditionalGeneration", "MarianMTModel")
# Rows of a table of positions that none has.
_FIRST = 2
# Of both sides, of Whisper too.
SIDES = {
    **COMMON,
    "vocab_size": needed(),
    "d_model": needed(),
    **{
        f"{side}_{name}": needed()
        for side in ("encoder", "decoder")
        for name in ("layers", "attention_heads", "ffn_dim")
    },
    "hidden_size": same_as("d_model"),
    "num_hidden_layers": same_as("encoder_layers"),
    "num_attention_heads": same_as("encoder_attention_heads"),
    "activation_function": activation("gelu"),
    "tie_word_embeddings": only(True),
}
_BART = {
    **SIDES,
    "max_position_embeddings": needed(),
    "scale_embedding": read(False),
    # Which architecture it is says these: they are not read.
    "normalize_embedding": only(True, None),
    "extra_pos_embeddings": only(_FIRST, None),
    **off("normalize_before add_final_layer_norm add_bias_logits static_position_embeddings"),
    **off("do_blenderbot_90_layernorm"),
    **ignored(
        "of training",
        "save_step replacing_rate student_encoder_layers student_decoder_layers kobart_version",
    ),
}
_PRE = dict.fromkeys(("normalize_before", "add_final_layer_norm"), only(True, None))
FIELDS = {
    "bart": _BART,
    "mbart": {**_BART, **_PRE},
    "marian": {
        **_BART,
        "normalize_embedding": only(False, None),
        "static_position_embeddings": only(True, None),
        "share_encoder_decoder_embeddings": only(True),
        "decoder_vocab_size": count(None, int | None),
        **ignored("positions are computed", "max_position_embeddings extra_pos_embeddings"),
    },
}

UNREAD = {
    **buffers.VERSION,
    # Others have them among the tensors of the model.
    r"(encoder|decoder)\.embed_positions\.weight": "of Marian, where they are computed",
}
SAME = {"shared.weight": [r"(encoder|decoder)\.embed_tokens\.weight", r"lm_head\.weight"]}
OPTIONAL = ("final_logits_bias",)


def model(config, dtype):
    """The `EncoderDecoder` of a configuration."""
    has_head = sequences.has_head(config, _MODELS, *_HEADS)
    kind = config.model_type
    if kind == "marian":
        config.require("decoder_vocab_size", config["vocab_size"], None)
    dim, vocabulary = config["d_model"], config["vocab_size"]
    scale = dim**0.5 if config["scale_embedding"] else 1
    tokens = sequences.tokens(vocabulary, dim, dtype, scale)

    def embeddings():
        if kind == "marian":
            positions = SinCosPositionEmbedding(layout="half_split", name="positions", dtype=dtype)
        else:
            positions = LearnedPositionEmbedding(
                config["max_position_embeddings"], name="positions", dtype=dtype
            )
        norm = None if kind == "marian" else sequences.layer_norm(1e-5, dtype)
        return Embeddings(tokens, positions, norm=norm, name="embeddings", dtype=dtype)

    def final_norm():
        return sequences.layer_norm(1e-5, dtype, "final_norm") if kind == "mbart" else None

    residual = "pre" if kind == "mbart" else "post"
    logits = Logits(vocabulary, use_bias=True, name="logits", dtype=dtype)
    encoder = Encoder(
        blocks(config, "encoder", residual, dtype),
        embeddings(),
        final_norm(),
        name="encoder",
        dtype=dtype,
    )
    decoder = Decoder(
        blocks(config, "decoder", residual, dtype),
        embeddings(),
        final_norm(),
        logits if has_head else None,
        name="decoder",
        dtype=dtype,
    )
    return EncoderDecoder(encoder, decoder, dtype=dtype)


def input_shape(config):
    """The shapes of the source and the target."""
    return [(None, None), (None, None)]


def blocks(config, side, residual, dtype):
    """The blocks of a side."""
    decoder = side == "decoder"
    return [
        TransformerBlock(
            config[f"{side}_ffn_dim"],
            config[f"{side}_attention_heads"],
            activation=parts.activation(config, "activation_function"),
            residual=residual,
            causal=decoder,
            cross_attention=decoder,
            name=f"block_{n}",
            dtype=dtype,
        )
        for n in range(config[f"{side}_layers"])
    ]


def entries(model, prefix):
    """The tensors of a model."""
    found = [parts.plain(f"{prefix}shared.weight", model.encoder.embeddings.tokens.table)]
    for side in ("encoder", "decoder"):
        stack = getattr(model, side)
        layer, name = stack.embeddings, f"{prefix}{side}"
        if isinstance(layer.positions, LearnedPositionEmbedding):
            table = layer.positions.embeddings
            found.append(rows(f"{name}.embed_positions.weight", table, _FIRST))
        found += parts.norm(f"{name}.layernorm_embedding", layer.norm)
        found += block_entries(stack, name)
        found += parts.norm(f"{name}.layer_norm", stack.final_norm)
    logits = model.decoder.logits
    if logits is not None:
        found.append(shaped("final_logits_bias", logits.bias, (1, logits.vocabulary_size)))
    return found


def block_entries(stack, name, key_bias=True):
    """The tensors of the blocks of a side."""
    found = []
    for n, block in enumerate(stack.blocks):
        layer = f"{name}.layers.{n}"
        found += _attention(f"{layer}.self_attn", block.attention, key_bias)
        found += parts.norm(f"{layer}.self_attn_layer_norm", block.attention_norm)
        if block.cross_attention:
            found += _attention(f"{layer}.encoder_attn", block.cross_attention_layer, key_bias)
            found += parts.norm(f"{layer}.encoder_attn_layer_norm", block.cross_attention_norm)
        found += sequences.feed_forward(f"{layer}.fc1", f"{layer}.fc2", block.feed_forward)
        found += parts.norm(f"{layer}.final_layer_norm", block.feed_forward_norm)
    return found


def _attention(name, layer, key_bias):
    key = f"{name}.k_proj"
    return [
        *parts.dense(f"{name}.q_proj", layer.query_dense),
        # A bias of keys changes no weight of a softmax: without one, ours stays 0.
        *(
            parts.dense(key, layer.key_dense)
            if key_bias
            else [matrix(f"{key}.weight", layer.key_dense.kernel)]
        ),
        *parts.dense(f"{name}.v_proj", layer.value_dense),
        *parts.dense(f"{name}.out_proj", layer.output_dense, inputs=2),
    ]
