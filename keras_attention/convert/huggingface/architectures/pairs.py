"""Encoder–decoders: BART, mBART, Marian, Pegasus, M2M-100 (NLLB), Whisper, T5, 1.1, mT5, UMT5.

Those of BART's kind have norms and positions in other places. Whisper's encoder is of spectrograms:
its input is (B, frames, mel bands), transposed beside `transformers`. In T5, all layers of a side
share the biases of distances; in UMT5 each has its own.
"""

import functools

import keras
import numpy as np

from keras_attention import positions
from keras_attention.convert.huggingface import entries, fields, stacks
from keras_attention.convert.huggingface.architecture import Architecture
from keras_attention.convert.huggingface.tensors import Checkpoint
from keras_attention.layers.blocks.norms import RMSNorm
from keras_attention.layers.embeddings.position_embedding import SinCosPositionEmbedding, sin_cos
from keras_attention.models import Decoder, Embeddings, Encoder, EncoderDecoder, Logits

# The first rows of a table of positions, which no position uses.
_FIRST = 2
# Fields of encoder and decoder.
_SIDES = (
    fields.COMMON
    | fields.needs("vocab_size encoder_ffn_dim decoder_layers decoder_attention_heads")
    | fields.needs("decoder_ffn_dim")
    | fields.renamed("d_model encoder_layers encoder_attention_heads")
    | fields.defaults(activation_function="gelu")
    | fields.fixed(tie_word_embeddings=True)
)
_BART = (
    _SIDES
    | fields.needs("max_position_embeddings")
    | fields.defaults(scale_embedding=False)
    | fields.fixed(extra_pos_embeddings=(_FIRST, None))
    # These follow from the architecture: `transformers` does not read them.
    | fields.fixed(normalize_embedding=(True, None))
    | fields.off("normalize_before add_final_layer_norm static_position_embeddings")
    | fields.off("add_bias_logits do_blenderbot_90_layernorm")
)
_PRE = fields.each("normalize_before add_final_layer_norm", fields.only(True, None))
_SINES = fields.fixed(
    normalize_embedding=(False, None), static_position_embeddings=(True, None)
) | fields.ignored("positions are computed", "max_position_embeddings extra_pos_embeddings")


def _side(config, name, count, embeddings, final_norm, options, own=lambda n: {}, **of_decoder):
    """The encoder or the decoder, whose blocks have the same options, and `own` by their number."""
    cls, decoder = (Decoder, True) if name == "decoder" else (Encoder, False)
    options = {"causal": decoder, "cross_attention": decoder, **options}
    made = stacks.blocks(config, lambda n: options | own(n), count)
    return cls(made, embeddings, final_norm, name=name, **of_decoder)


def _pair(config, logits, residual, encoder, decoder):
    """The `EncoderDecoder` of both embeddings; sides end with a norm if the residual needs one."""

    def side(name, embeddings, **of_decoder):
        heads, size = (config[f"{name}_{field}"] for field in ("attention_heads", "ffn_dim"))
        options = {"intermediate_dim": size, "num_heads": heads, "residual": residual}
        norm = None if residual == "post" else stacks.layer_norm(1e-5, "final_norm")
        return _side(config, name, f"{name}_layers", embeddings, norm, options, **of_decoder)

    return EncoderDecoder(side("encoder", encoder), side("decoder", decoder, logits=logits))


def _text(config, residual="post", sines=None, use_bias=True):
    """A pair of texts; `sines` is from a `Config` to options of positions, None for tables."""
    heads = ["ForConditionalGeneration", "MTModel"]
    has_head = stacks.has_head(config, "Bart MBart Marian Pegasus M2M100", heads)
    if config.get("decoder_vocab_size") is not None:
        config.require("decoder_vocab_size", config["vocab_size"], None)
    scale = config["d_model"] ** 0.5 if config["scale_embedding"] else 1
    tokens = stacks.table(config, scale=scale)

    def embeddings(side):
        norm = None if sines is not None else stacks.layer_norm(1e-5)
        options = {} if sines is None else {"layout": "half_split", **sines(config)}
        rows = config["max_position_embeddings"] if sines is None else _others(config, side)
        if rows is not None:
            positions = stacks.positions(rows)
        else:
            positions = SinCosPositionEmbedding(**options, name="positions")
        return stacks.embeddings(config, tokens=tokens, positions=positions, norm=norm)

    logits = Logits(config["vocab_size"], use_bias=use_bias, name="logits") if has_head else None
    return _pair(config, logits, residual, embeddings("encoder"), embeddings("decoder"))


def _others(config, side):
    """The rows of a table of positions that a folder has in place of sines; or None."""
    if config.folder is None:
        return None
    checkpoint = Checkpoint(config.folder)
    names = (f"{first}{side}.embed_positions.weight" for first in ("model.", ""))
    name = next((name for name in names if name in checkpoint.names), None)
    if name is None:
        return None
    table = np.asarray(checkpoint[name], "float32")
    computed = sin_cos(np.arange(len(table)), table.shape[1], 10000.0, "half_split", "float32")
    # Those in half precision are the same.
    same = np.allclose(table, keras.ops.convert_to_numpy(computed), atol=0.01)
    return None if same else len(table)


def _m2m(config):
    """The longest of its wavelengths is of the last pair, and the row of padding is the first."""
    half, rest = divmod(config["d_model"], 2)
    if rest or half < 2:
        config.refuse("d_model", "an even number of at least 4", config["d_model"])
    shift = config["pad_token_id"] + 1
    return {"max_wavelength": 10000.0 ** (half / (half - 1)), "shift": shift}


def _whisper(config):
    has_head = stacks.has_head(config, "Whisper", ["ForConditionalGeneration"])
    dim, options = config["d_model"], {"activation": "gelu", "data_format": "channels_last"}
    # Of both convolutions the second halves the number of frames.
    layers = [
        keras.layers.Conv1D(dim, 3, padding="same", name="conv1", **options),
        # Keras's own padding would be on the right alone.
        keras.layers.ZeroPadding1D(1, data_format="channels_last", name="padding"),
        keras.layers.Conv1D(dim, 3, strides=2, name="conv2", **options),
    ]
    sources, targets = (
        stacks.positions(config[f"max_{x}_positions"]) for x in ("source", "target")
    )
    sound = Embeddings(keras.Sequential(layers, name="tokens"), sources, name="embeddings")
    text = stacks.embeddings(config, positions=targets)
    logits = Logits(config["vocab_size"], name="logits") if has_head else None
    return _pair(config, logits, "pre", sound, text)


def _names(first, key=lambda path: path):
    """The tensors of both sides, whose first position has the row `first`.

    `key` is from the path of the projection of keys to what it has in files.
    """

    def attention(name, layer):
        table = entries.attention(f"{name}. q_proj k_proj v_proj out_proj", layer)
        return {**table, f"{name}.k_proj": key(f"{layer}.key_dense")}

    block = {
        **entries.norms("self_attn_layer_norm final_layer_norm"),
        **attention("self_attn", "attention"),
        **attention("encoder_attn", "cross_attention_layer"),
        "encoder_attn_layer_norm": "cross_attention_norm",
        **entries.network("fc1 fc2"),
    }
    side = {
        "embed_positions.weight": entries.rows("embeddings.positions.embeddings", first),
        "layernorm_embedding": "embeddings.norm",
        "layer_norm": "final_norm",
        "layers": entries.blocks(block),
    }
    return {name: entries.within(name, side) for name in ("encoder", "decoder")}


def _like_bart(fields, first=_FIRST, **options):
    """The `Architecture` of a pair of texts; `options` are as of `_text`."""
    return Architecture(
        fields,
        functools.partial(_text, **options),
        {"shared.weight": "encoder.embeddings.tokens.table", **_names(first)},
        prefix="model.",
        head={"final_logits_bias": entries.axes("decoder.logits.bias", 2)},
        unread={
            # Others have them among the tensors of the model.
            r"(encoder|decoder)\.embed_positions\.weights?": "of models where they are computed",
        },
        same={"shared.weight": [r"(encoder|decoder)\.embed_tokens\.weight", r"lm_head\.weight"]},
        optional=("final_logits_bias",),
        # Whether positions are sines, folders say by their tensors.
        unsaid=() if first else ("positions",),
        input_shape=lambda config: [(None, None), (None, None)],
    )


_MARIAN = (
    _BART
    | _SINES
    | fields.fixed(share_encoder_decoder_embeddings=True)
    | fields.nullable(decoder_vocab_size=None)
)
_WHISPER = (
    _SIDES
    | fields.needs("num_mel_bins max_source_positions max_target_positions")
    | fields.defaults(num_key_value_heads=fields.same_as("encoder_attention_heads"))
    | fields.fixed(scale_embedding=False)
    | fields.ignored("of a classifier", "classifier_proj_size use_weighted_layer_sum")
    | fields.ignored("of the times of words, and of texts that are longer", "median_filter_width")
    | fields.ignored("an older name of `max_target_positions`", "max_position_embeddings")
)
# T5

_T5_FIELDS = (
    fields.COMMON
    | fields.renamed("d_model num_layers num_heads")
    | fields.renamed("d_kv", "head_dim")
    | fields.needs("vocab_size d_ff")
    | fields.nullable(num_decoder_layers=None)
    | fields.defaults(relative_attention_num_buckets=32, relative_attention_max_distance=128)
    | fields.defaults(layer_norm_epsilon=1e-6, is_gated_act=fields.read(None, bool))
    # If missing, both follow from `feed_forward_proj`.
    | fields.defaults(dense_act_fn=None)
    | fields.ignored("distances have no end", "n_positions")
)
_T5_SCALED = (
    _T5_FIELDS
    | fields.defaults(tie_word_embeddings=fields.read(None, bool | None))
    | fields.defaults(scale_decoder_outputs=fields.read(None, bool))
)
_ENCODERS = ("T5EncoderModel", "MT5EncoderModel", "UMT5EncoderModel")


def _t5(config):
    bases = ("EncoderModel", "Model")
    has_head = stacks.has_head(config, "T5 MT5 UMT5", ["ForConditionalGeneration"], bases)
    tokens, options = stacks.table(config), _t5_options(config)

    def side(name, count="num_layers", **of_decoder):
        table = functools.partial(
            positions.RelativeBias,
            config["relative_attention_num_buckets"],
            config["relative_attention_max_distance"],
            bidirectional=name == "encoder",
            name="relative_bias",
        )
        shared = None if config.model_type == "umt5" else table()
        embeddings = stacks.embeddings(config, tokens=tokens)
        norm = RMSNorm(config["layer_norm_epsilon"], name="final_norm")
        given = options, lambda n: {"position": shared or table()}
        return _side(config, name, count, embeddings, norm, *given, **of_decoder)

    if config.architecture in _ENCODERS:
        return side("encoder")
    count = "num_decoder_layers" if config["num_decoder_layers"] else "num_layers"
    logits = _t5_logits(config) if has_head else None
    return EncoderDecoder(side("encoder"), side("decoder", count, logits=logits))


def _t5_options(config):
    given = config["feed_forward_proj"]
    gate, _, name = given.rpartition("-")
    # In T5 1.1 "gelu" is its approximation.
    name = fields.ACTIVATIONS.get("gelu_new" if given == "gated-gelu" else name)
    name = config["dense_act_fn"] or name
    if name is None or gate not in ("", "gated"):
        wanted = f"an activation among {sorted(fields.ACTIVATIONS)}, or 'gated-' and one of these"
        config.refuse("feed_forward_proj", wanted, repr(given))
    gated = gate == "gated" if config["is_gated_act"] is None else config["is_gated_act"]
    options = {"key_dim": config["d_kv"], "activation": name, "gated": gated, "norm": "rms"}
    # `transformers` has the last projection, and with it the sums, in float32 beside float16.
    options |= {"score": "dot", "residual": "pre", "use_bias": False}
    return {**options, "wide_residual": True}


def _t5_logits(config):
    # Version 1.1 is said to be untied. transformers 5 ties it all the same, unless its files have
    # a matrix of their own, and writes in another field that its output is not scaled.
    scaled = False
    if "scale_decoder_outputs" in config:
        scaled = config["scale_decoder_outputs"]
        scaled = config["tie_word_embeddings"] is not False if scaled is None else scaled
    tied = config.folder is None or "lm_head.weight" not in Checkpoint(config.folder).names
    scale = config["d_model"] ** -0.5 if scaled else 1.0
    return Logits(config["vocab_size"], tied, scale=scale, name="logits")


def _t5_side(last, own):
    """The tensors of a stack, the branch `last` of whose blocks is the feed-forward network.

    `own` says whether each block has biases of distances, or the first has those of all.
    """
    name = "layer.0.SelfAttention.relative_attention_bias.weight"
    path = "attention.position.embeddings"
    first = {} if own else {f"block.0.{name}": f"blocks.0.{path}"}
    block = {
        **({name: path} if own else {}),
        **entries.attention("layer.0.SelfAttention. q k v o"),
        **entries.norms(f"layer.0.layer_norm layer.{last}.layer_norm"),
        f"layer.{last}.DenseReluDense.": lambda name, block: entries.of(
            entries.network("wi_0 wi_1 wo" if block.gated else "wi wo"), block, name
        ),
    }
    if last == 2:
        block |= entries.attention("layer.1.EncDecAttention. q k v o", "cross_attention_layer")
        block |= {"layer.1.layer_norm": "cross_attention_norm"}
    return {"block": entries.blocks(block), **first, "final_layer_norm": "final_norm"}


@entries.layout
def _of_encoder(name, model, table):
    """The tensors of the encoder, which may be the whole model."""
    return entries.of(table, getattr(model, "encoder", model), name)


def _t5_tensors(own=False):
    return {
        "shared": _of_encoder({".weight": "embeddings.tokens.table"}),
        "encoder.": _of_encoder(_t5_side(1, own)),
        "decoder": entries.within("decoder", _t5_side(2, own)),
        "lm_head": "decoder.logits.dense",
    }


_like_t5 = functools.partial(
    Architecture,
    make=_t5,
    tensors=_t5_tensors(),
    # A model is tied if its file has no matrix of the output.
    # Files of released versions have no `wide_residual`.
    unsaid=("tied", "wide_residual"),
    unread={
        r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight": (
            "of a cross-attention, which no code has read since 2020"
        ),
    },
    unread_of={kind: {r"decoder\..*": "of models with a decoder"} for kind in _ENCODERS},
    same={"shared.weight": [r"(encoder|decoder)\.embed_tokens\.weight"]},
    # An encoder alone takes one sequence.
    input_shape=lambda x: (None, None) if x.architecture in _ENCODERS else [(None, None)] * 2,
)
ARCHITECTURES = {
    "bart": _like_bart(_BART),
    "mbart": _like_bart(_BART | _PRE, residual="pre"),
    "marian": _like_bart(_MARIAN, 0, sines=lambda config: {}),
    "pegasus": _like_bart(_BART | _PRE | _SINES, 0, residual="pre", sines=lambda config: {}),
    "m2m_100": _like_bart(
        _SIDES
        | fields.defaults(scale_embedding=True, activation_function="relu")
        | fields.defaults(pad_token_id=fields.read(1, least=0))
        | fields.ignored("positions are computed", "max_position_embeddings"),
        residual="pre",
        sines=_m2m,
        use_bias=False,
    ),
    "whisper": Architecture(
        _WHISPER,
        _whisper,
        {
            "encoder.conv1": entries.convolution("encoder.embeddings.tokens.layers.0"),
            "encoder.conv2": entries.convolution("encoder.embeddings.tokens.layers.2"),
            "decoder.embed_tokens.weight": "decoder.embeddings.tokens.table",
            # Files have no bias of keys, which changes no weight of a softmax: ours stays 0.
            **_names(0, key=lambda path: lambda name, owner: entries.of({name: path}, owner)[:1]),
        },
        prefix="model.",
        same={"decoder.embed_tokens.weight": [r"proj_out\.weight"]},
        input_shape=lambda config: [(None, None, config["num_mel_bins"]), (None, None)],
    ),
    "t5": _like_t5(_T5_SCALED | fields.defaults(feed_forward_proj=fields.read("relu"))),
    "umt5": _like_t5(
        _T5_SCALED
        | fields.defaults(feed_forward_proj=fields.read("gated-gelu"))
        | fields.ignored("not read", "scalable_attention"),
        tensors=_t5_tensors(own=True),
    ),
    "mt5": _like_t5(
        _T5_FIELDS
        | fields.defaults(feed_forward_proj=fields.read("gated-gelu"))
        | fields.ignored("as it is of T5 1.1, whatever they say", "tie_word_embeddings")
        | fields.ignored("not read for this model", "scale_decoder_outputs")
    ),
}
