"""Errors of the stacks, and of the options of blocks that make them."""

import keras
import numpy as np

import keras_attention as ka
from keras_attention import positions
from tests.errors.calls import X

IDS = np.ones((2, 3), "int32")
SYMBOLS = keras.Input((3,), dtype="int32")


def tokens():
    return ka.ScaledEmbedding(8, 4)


def start(prompt, max_tokens=2, mask=None, positions=None):
    """`start` of a language model."""
    blocks = [ka.TransformerBlock(8, 2, causal=True)]
    model = ka.Decoder(blocks, ka.Embeddings(tokens(), positions), logits=ka.Logits(8))
    return model.start(prompt, max_tokens, mask=mask)


def cached(blocks, entries, name="cache"):
    """A call of a decoder with a list of so many dictionaries of another."""
    made = [
        ka.TransformerBlock(8, 2, causal=True, cross_attention=name == "context")
        for _ in range(blocks)
    ]
    model = ka.Decoder(made, ka.Embeddings(tokens()))
    context = np.zeros((2, 3, 4), "float32") if name == "context" else None
    model(IDS, context)
    given = model.make_cache(2, 3) if context is None else model.cache_context(context)
    return model(IDS, **{name: (given * entries)[:entries]})


def encoder():
    return ka.Encoder([ka.TransformerBlock(8, 2)], ka.Embeddings(tokens()))


def decoder():
    return ka.Decoder([ka.TransformerBlock(8, 2, causal=True)], ka.Embeddings(tokens()))


def translator():
    """A model of two sequences."""
    embeddings = ka.Embeddings(tokens())
    block = ka.TransformerBlock(8, 2, causal=True, cross_attention=True)
    return ka.EncoderDecoder(
        ka.Encoder([ka.TransformerBlock(8, 2)], embeddings), ka.Decoder([block], embeddings)
    )


def translated(source, prompt):
    """`start` of such a model."""
    return translator().start(source, prompt, max_tokens=2)


def across(built=False):
    """A block that attends to a context alone."""
    block = ka.TransformerBlock(8, 2, cross_attention=True, self_attention=False)
    if built:
        block.build(X.shape, X.shape)
    return block


def longrope(**kwargs):
    given = {"original_max_length": 8, "short_factors": [1.0, 1.0], "long_factors": [1.0, 2.0]}
    return positions.Rotary(scaling="longrope", **{**given, **kwargs})


def switching(scaling="longrope", embeds=True):
    """A stack of two blocks whose positions change beyond 8 tokens."""
    position = (
        longrope()
        if scaling == "longrope"
        else positions.Rotary(scaling=scaling, original_max_length=8)
    )
    blocks = [ka.TransformerBlock(8, 2, causal=True, position=position) for _ in range(2)]
    return ka.Decoder(blocks, ka.Embeddings(ka.ScaledEmbedding(8, 8)) if embeds else None)


def unembedded():
    """The same of vectors."""
    model = switching(embeds=False)
    model.build((None, None, 8))
    return model


def typed():
    """A call with types beside a cache of tokens that may be read again."""
    model = switching()
    model.build((None, None))
    return model(IDS, types=IDS, cache=model.make_cache(2, 9))


ROWS = {
    # layers/transformer_block without self-attention, layers/learned_queries
    r"has cross_attention=True.* Received: cross_attention=False, and \[\]": lambda: (
        ka.TransformerBlock(8, 2, self_attention=False)
    ),
    r"Received: cross_attention=True, and \['position', 'causal'\]": lambda: ka.TransformerBlock(
        8, 2, causal=True, cross_attention=True, self_attention=False, position="rotary"
    ),
    "are of the self-attention, and this block has self_attention=False": lambda: across()(
        X, X, segment_ids=np.zeros((1, 3))
    ),
    r"has no cache of its own tokens.* Received: a block with self_attention=False": lambda: across(
        built=True
    ).make_cache(1, 4),
    r"unless `dim` is given\. Received: x\.shape=\(None, None, None\)": lambda: ka.LearnedQueries(
        2
    )(keras.Input((None, None))),
    # layers/slot_attention
    r"`slots` \(B, K, 4\)\. Received: x\.shape=\(2, 3, 4\), slots\.shape=\(2, 2, 5\)": lambda: (
        ka.SlotAttention(2, 4, 8)(X, np.zeros((2, 2, 5), "float32"))
    ),
    r"`x` must be \(B, S, D\) with a known D.*x\.shape=\(None, None, None\)": lambda: (
        ka.SlotAttention(2, 4, 8)(keras.Input((None, None)))
    ),
    "Batch sizes must be equal. Received: x=2, slots=1": lambda: ka.SlotAttention(2, 4, 8)(
        X, np.zeros((1, 2, 4), "float32")
    ),
    "`initial` must be one of": lambda: ka.SlotAttention(2, 4, 8, initial="zeros"),
    r"called with one list, `model\(\[source, target\]\)`": (
        ValueError,
        lambda: translator()(IDS, IDS),
        lambda: translator()(*[keras.Input((None,), dtype="int32")] * 2),
    ),
    r"A cache of several blocks with scaling='dynamic' must have at most "
    r"`original_max_length`=8 tokens.* Received: 9 tokens": lambda: switching("dynamic").start(
        IDS, max_tokens=7
    ),
    r"'longrope' reads all tokens again, which needs embeddings.* Received: 9 tokens": lambda: (
        unembedded().make_cache(2, 9)
    ),
    r"takes tokens, their mask and a context alone\. Received also: types": typed,
    r"`top_k` must be at most `num_experts`\. Received: top_k=5, num_experts=4": lambda: (
        ka.MixtureOfExperts(4, 5, 8)
    ),
    r"`num_groups` must divide `num_experts` into groups of at least 2, of which `top_groups` "
    r".*Received: num_experts=4, top_k=2, num_groups=4, top_groups=2": lambda: ka.MixtureOfExperts(
        4, 2, 8, num_groups=4, top_groups=2
    ),
    r"`limit` and `offset` are of gated experts\. "
    r"Received: gated=False, limit=7\.0, offset=0\.0": lambda: ka.MixtureOfExperts(
        4, 2, 8, limit=7.0
    ),
    r"`norm` of a block with residual=None must be a dictionary with keys among \['attention'.*"
    r"Received keys: \['attention_output'\]": lambda: ka.TransformerBlock(
        8, 2, norm={"attention_output": "rms"}
    ),
    r"`norm\['attention'\]` must be one of \('layer', 'rms', None\), or a Keras layer\. "
    r"Received: norm\['attention'\]='shared'": lambda: ka.TransformerBlock(
        8, 2, norm={"attention": "shared"}
    ),
    r"`normalize_first=True` is residual='pre'\. Received: .*residual='parallel'": lambda: (
        ka.TransformerBlock(8, 2, normalize_first=True, residual="parallel")
    ),
    r"give them to the layer that replaces it\. Received: attention=.*position=<Rotary": lambda: (
        ka.TransformerBlock(8, 2, attention=ka.MultiHeadAttention(2, 4), position="rotary")
    ),
    r"`intermediate_dim` .* must be None with another\. Received: intermediate_dim=8": lambda: (
        ka.TransformerBlock(8, 2, feed_forward=ka.FeedForward(8))
    ),
    r"`feed_forward` must be a Keras layer, or None\. Received: <built-in function len>": (
        TypeError,
        lambda: ka.TransformerBlock(None, 2, feed_forward=len),
    ),
    r"`blocks` must be a list of `TransformerBlock`s\. Received: blocks=\[\]": (
        TypeError,
        lambda: ka.Encoder([]),
    ),
    r"Tied logits need `embeddings`.* Received: embeddings=None": lambda: ka.Decoder(
        [ka.TransformerBlock(8, 2)], logits=ka.Logits(8)
    ),
    r"`Logits` take a `table` if, and only if, they are tied\. "
    r"Received: tied=False, and a `table`": lambda: ka.Logits(8, tied=False)(
        X, keras.ops.ones((8, 16))
    ),
    r"`cache` must be a list of one dictionary for each block, as a stack of as many blocks "
    r"makes it\. Received: \['dict'\], and 2 blocks": lambda: cached(2, 1),
    r"`cache` must be a list of one dictionary for each block.* and 1 blocks": lambda: cached(1, 2),
    r"`context` must be a list of one dictionary for each block.* and 1 blocks": lambda: cached(
        1, 2, "context"
    ),
    "`types` are given to a layer that was made without `types`": lambda: encoder()(
        SYMBOLS, SYMBOLS
    ),
    r"`types` are of `embeddings`, and the stack was made without.* types.shape=\(2, "
    r"3\)": lambda: ka.Encoder([ka.TransformerBlock(8, 2)])(X, IDS),
    "`types` are of `embeddings`": lambda: ka.Encoder([ka.TransformerBlock(8, 2)])(
        keras.Input(X.shape[1:]), SYMBOLS
    ),
    "Lengths of the mask and of `key` must be equal. Received: mask=4, key=3": (
        ValueError,
        lambda: encoder()(SYMBOLS, attention_mask=keras.Input((3, 4), dtype="bool")),
        lambda: decoder()(SYMBOLS, attention_mask=keras.Input((3, 4), dtype="bool")),
    ),
    "Lengths of `query` and its segment_ids must be equal. "
    "Received: query=3, segment_ids=4": lambda: encoder()(
        SYMBOLS, segment_ids=keras.Input((4,), dtype="int32")
    ),
    "A block takes a `context` if, and only if,": lambda: decoder()(SYMBOLS, keras.Input((5, 8))),
    r"`types` are given to a layer that was made without `types`\. "
    r"Received: types\.shape=\(2, 3\)": lambda: ka.Embeddings(tokens())(IDS, IDS),
    r"`short_factors` must be None with scaling=None\. Received: short_factors=\[1\.0\]": lambda: (
        positions.Rotary(short_factors=[1.0])
    ),
    r"`short_factors` and `long_factors` must be of one length\. Received: 2 and 1": lambda: (
        longrope(long_factors=[1.0])
    ),
    r"`short_factors` and `long_factors` must be 4 numbers each.* Received: 2": lambda: (
        longrope().frequencies(8)
    ),
    r"`prompt` must have rows of one length: pad .* left.* "
    r"Received: rows of lengths \[3, 1\]": lambda: start([[1, 2, 3], [4]]),
    r"`prompt` must be integers \(batch, positions\)\. Received dtype <U11": (
        TypeError,
        lambda: start("The weather"),
    ),
    r"`prompt` must have 2 axes, \(batch, positions\)\. Received: prompt\.shape=\(2,\)": lambda: (
        start([1, 2])
    ),
    r"`prompt` must have a token\. Received: prompt\.shape=\(1, 0\)": lambda: start([[]]),
    r"Lengths of `prompt` and its mask must be equal\. Received: prompt=2, mask=1": lambda: start(
        [[1, 2]], mask=[[True]]
    ),
    r"Batch sizes of `prompt` and its mask must be equal\. Received: prompt=1, mask=2": lambda: (
        start([[1, 2]], mask=[[True, True]] * 2)
    ),
    r"`mask` must have 2 axes, \(batch, positions\)\. Received: mask\.shape=\(1, 2, 2\)": lambda: (
        start([[1, 2]], mask=np.ones((1, 2, 2), "bool"))
    ),
    r"must be real: pad on the left\. Received: mask\[1\]=\[True, False\]": lambda: start(
        [[1, 2], [1, 0]], mask=[[True, True], [True, False]]
    ),
    r"must fit into the 5 positions of the model\. "
    r"Received: a prompt of 3 tokens and max_tokens=4": lambda: start(
        [[1, 2, 3]], 4, positions=ka.LearnedPositionEmbedding(5)
    ),
    r"`\.h5` has functional models alone, and no Encoder: .* "
    r"Received: filepath='model\.h5'": lambda: ka.Encoder([ka.TransformerBlock(8, 2)]).save(
        "model.h5"
    ),
    r"Batch sizes must be equal\. Received: source=2, prompt=1": lambda: translated(
        [[1, 2], [3, 4]], [[1]]
    ),
}
