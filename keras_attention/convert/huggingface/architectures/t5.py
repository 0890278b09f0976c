"""T5, its version 1.1, and mT5: biases of distances that all layers share."""

import functools

from keras_attention import positions
from keras_attention.convert.huggingface import entries, fields, stacks
from keras_attention.convert.huggingface.architecture import Architecture
from keras_attention.convert.huggingface.tensors import Checkpoint
from keras_attention.layers.blocks.norms import RMSNorm
from keras_attention.models import Decoder, Encoder, EncoderDecoder, Logits

_STACK = {
    **fields.COMMON,
    **fields.renamed(
        hidden_size="d_model",
        head_dim="d_kv",
        num_hidden_layers="num_layers",
        num_attention_heads="num_heads",
    ),
    **fields.needs("vocab_size d_ff"),
    **fields.nullable(num_decoder_layers=None),
    **fields.defaults(relative_attention_num_buckets=32, relative_attention_max_distance=128),
    **fields.defaults(layer_norm_epsilon=1e-6),
    # If missing, both follow from `feed_forward_proj`.
    "dense_act_fn": fields.activation(None),
    "is_gated_act": fields.read(None, bool),
    **fields.ignored("distances have no end", "n_positions"),
}
_ENCODERS = ("T5EncoderModel", "MT5EncoderModel")


def _make(config):
    bases = ("EncoderModel", "Model")
    has_head = stacks.has_head(config, "T5 MT5", ["ForConditionalGeneration"], bases)
    options, tokens = _options(config), stacks.table(config)

    def stack(name, count, decoder=False, **given):
        table = positions.RelativeBias(
            config["relative_attention_num_buckets"],
            config["relative_attention_max_distance"],
            bidirectional=not decoder,
            name="relative_bias",
        )
        block = {**options, "causal": decoder, "cross_attention": decoder, "position": table}
        return (Decoder if decoder else Encoder)(
            stacks.blocks(config, lambda n: block, count),
            stacks.embeddings(config, tokens=tokens),
            RMSNorm(config["layer_norm_epsilon"], name="final_norm"),
            name=name,
            **given,
        )

    encoder = stack("encoder", "num_layers")
    if config.architecture in _ENCODERS:
        return encoder
    count = "num_decoder_layers" if config["num_decoder_layers"] else "num_layers"
    logits = _logits(config) if has_head else None
    return EncoderDecoder(encoder, stack("decoder", count, decoder=True, logits=logits))


def _options(config):
    given = config["feed_forward_proj"]
    gate, _, name = given.rpartition("-")
    # In T5 1.1 "gelu" is its approximation.
    name = fields.ACTIVATIONS.get("gelu_new" if given == "gated-gelu" else name)
    name = config["dense_act_fn"] or name
    if name is None or gate not in ("", "gated"):
        wanted = f"an activation among {sorted(fields.ACTIVATIONS)}, or 'gated-' and one of these"
        config.refuse("feed_forward_proj", wanted, repr(given))
    gated = config["is_gated_act"]
    return stacks.block(
        config,
        "rms",
        intermediate_dim=config["d_ff"],
        key_dim=config["d_kv"],
        activation=name,
        gated=gate == "gated" if gated is None else gated,
        score="dot",
        residual="pre",
        use_bias=False,
    )


def _logits(config):
    # Version 1.1 is said to be untied. transformers 5 ties it all the same, unless its files have
    # a matrix of their own, and writes in another field that its output is not scaled.
    scaled = False
    if config.model_type == "t5":
        scaled = config["scale_decoder_outputs"]
        scaled = config["tie_word_embeddings"] is not False if scaled is None else scaled
    tied = config.folder is None or "lm_head.weight" not in Checkpoint(config.folder).names
    scale = config["d_model"] ** -0.5 if scaled else 1.0
    return Logits(config["vocab_size"], tied, scale=scale, name="logits")


def _network(name, block):
    names = "wi_0 wi_1 wo" if block.gated else "wi wo"
    return entries.of(entries.network(names), block, name)


def _stack(last):
    """The tensors of a stack, the branch `last` of whose blocks is the feed-forward network."""
    block = {
        **entries.attention("layer.0.SelfAttention. q k v o"),
        **entries.norms(f"layer.0.layer_norm layer.{last}.layer_norm"),
        f"layer.{last}.DenseReluDense.": _network,
    }
    if last == 2:
        block |= entries.attention("layer.1.EncDecAttention. q k v o", "cross_attention_layer")
        block |= {"layer.1.layer_norm": "cross_attention_norm"}
    distances = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    return {
        "block": entries.blocks(block),
        distances: "blocks.0.attention.position.embeddings",
        "final_layer_norm": "final_norm",
    }


@entries.layout
def _of_encoder(name, model, table):
    """The tensors of the encoder, which may be the whole model."""
    return entries.of(table, getattr(model, "encoder", model), name)


_T5 = functools.partial(
    Architecture,
    make=_make,
    tensors={
        "shared": _of_encoder({".weight": "embeddings.tokens.table"}),
        "encoder.": _of_encoder(_stack(last=1)),
        "decoder": entries.within("decoder", _stack(last=2)),
        "lm_head": "decoder.logits.dense",
    },
    # A model is tied if its file has no matrix of the output.
    unsaid=("tied",),
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
    "t5": _T5(
        {
            **_STACK,
            "feed_forward_proj": fields.read("relu"),
            "tie_word_embeddings": fields.read(None, bool | None),
            "scale_decoder_outputs": fields.read(None, bool),
        }
    ),
    "mt5": _T5(
        {
            **_STACK,
            "feed_forward_proj": fields.read("gated-gelu"),
            **fields.ignored("as it is of T5 1.1, whatever they say", "tie_word_embeddings"),
            **fields.ignored("not read for this model", "scale_decoder_outputs"),
        }
    ),
}
