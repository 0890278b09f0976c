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
    "a block without any attention": (
        lambda: ka.TransformerBlock(8, 2, self_attention=False),
        ValueError,
        r"has cross_attention=True.* Received: cross_attention=False, and \[\]",
    ),
    "a causal block without self-attention": (
        lambda: ka.TransformerBlock(
            8, 2, causal=True, cross_attention=True, self_attention=False, position="rotary"
        ),
        ValueError,
        r"Received: cross_attention=True, and \['position', 'causal'\]",
    ),
    "pairs of a block without self-attention": (
        lambda: across()(X, X, segment_ids=np.zeros((1, 3))),
        ValueError,
        "are of the self-attention, and this block has self_attention=False",
    ),
    "a cache of a block without self-attention": (
        lambda: across(built=True).make_cache(1, 4),
        ValueError,
        r"has no cache of its own tokens.* Received: a block with self_attention=False",
    ),
    "queries for inputs without features": (
        lambda: ka.LearnedQueries(2)(keras.Input((None, None))),
        ValueError,
        r"unless `dim` is given\. Received: x\.shape=\(None, None, None\)",
    ),
    # layers/slot_attention
    "slots of other features": (
        lambda: ka.SlotAttention(2, 4, 8)(X, np.zeros((2, 2, 5), "float32")),
        ValueError,
        r"`slots` \(B, K, 4\)\. Received: x\.shape=\(2, 3, 4\), slots\.shape=\(2, 2, 5\)",
    ),
    "elements without features": (
        lambda: ka.SlotAttention(2, 4, 8)(keras.Input((None, None))),
        ValueError,
        r"`x` must be \(B, S, D\) with a known D.*x\.shape=\(None, None, None\)",
    ),
    "slots of more rows": (
        lambda: ka.SlotAttention(2, 4, 8)(X, np.zeros((1, 2, 4), "float32")),
        ValueError,
        "Batch sizes must be equal. Received: x=2, slots=1",
    ),
    "first slots of an unknown kind": (
        lambda: ka.SlotAttention(2, 4, 8, initial="zeros"),
        ValueError,
        "`initial` must be one of",
    ),
    "a source and a target that are no list": (
        lambda: translator()(IDS, IDS),
        ValueError,
        r"called with one list, `model\(\[source, target\]\)`",
    ),
    "symbols of a source and a target that are no list": (
        lambda: translator()(*[keras.Input((None,), dtype="int32")] * 2),
        ValueError,
        r"called with one list, `model\(\[source, target\]\)`",
    ),
    "dynamic positions beyond their length": (
        lambda: switching("dynamic").start(IDS, max_tokens=7),
        ValueError,
        r"A cache of several blocks with scaling='dynamic' must have at most "
        r"`original_max_length`=8 tokens.* Received: 9 tokens",
    ),
    "longrope beyond its length in a stack of vectors": (
        lambda: unembedded().make_cache(2, 9),
        ValueError,
        r"'longrope' reads all tokens again, which needs embeddings.* Received: 9 tokens",
    ),
    "types of tokens that may be read again": (
        typed,
        ValueError,
        r"takes tokens, their mask and a context alone\. Received also: types",
    ),
    "more experts for a token than there are": (
        lambda: ka.MixtureOfExperts(4, 5, 8),
        ValueError,
        r"`top_k` must be at most `num_experts`\. Received: top_k=5, num_experts=4",
    ),
    "groups of one expert": (
        lambda: ka.MixtureOfExperts(4, 2, 8, num_groups=4, top_groups=2),
        ValueError,
        r"`num_groups` must divide `num_experts` into groups of at least 2, of which `top_groups` "
        r".*Received: num_experts=4, top_k=2, num_groups=4, top_groups=2",
    ),
    "a bound of experts that are not gated": (
        lambda: ka.MixtureOfExperts(4, 2, 8, limit=7.0),
        ValueError,
        r"`limit` and `offset` are of gated experts\. "
        r"Received: gated=False, limit=7\.0, offset=0\.0",
    ),
    "a norm of a branch that a block does not have": (
        lambda: ka.TransformerBlock(8, 2, norm={"attention_output": "rms"}),
        ValueError,
        r"`norm` of a block with residual=None must be a dictionary with keys among \['attention'.*"
        r"Received keys: \['attention_output'\]",
    ),
    "a norm of a branch by another name": (
        lambda: ka.TransformerBlock(8, 2, norm={"attention": "shared"}),
        ValueError,
        r"`norm\['attention'\]` must be one of \('layer', 'rms', None\), or a Keras layer\. "
        r"Received: norm\['attention'\]='shared'",
    ),
    "two residuals": (
        lambda: ka.TransformerBlock(8, 2, normalize_first=True, residual="parallel"),
        ValueError,
        r"`normalize_first=True` is residual='pre'\. Received: .*residual='parallel'",
    ),
    "a position of an attention of one's own": (
        lambda: ka.TransformerBlock(8, 2, attention=ka.MultiHeadAttention(2, 4), position="rotary"),
        ValueError,
        r"give them to the layer that replaces it\. Received: attention=.*position=<Rotary",
    ),
    "a size of a feed-forward network of one's own": (
        lambda: ka.TransformerBlock(8, 2, feed_forward=ka.FeedForward(8)),
        ValueError,
        r"`intermediate_dim` .* must be None with another\. Received: intermediate_dim=8",
    ),
    "a feed-forward network that is no layer": (
        lambda: ka.TransformerBlock(None, 2, feed_forward=len),
        TypeError,
        r"`feed_forward` must be a Keras layer, or None\. Received: <built-in function len>",
    ),
    "no blocks": (
        lambda: ka.Encoder([]),
        TypeError,
        r"`blocks` must be a list of `TransformerBlock`s\. Received: blocks=\[\]",
    ),
    "tied logits without a table": (
        lambda: ka.Decoder([ka.TransformerBlock(8, 2)], logits=ka.Logits(8)),
        ValueError,
        r"Tied logits need `embeddings`.* Received: embeddings=None",
    ),
    "a table for logits that are not tied": (
        lambda: ka.Logits(8, tied=False)(X, keras.ops.ones((8, 16))),
        ValueError,
        r"`Logits` take a `table` if, and only if, they are tied\. "
        r"Received: tied=False, and a `table`",
    ),
    "caches of fewer blocks": (
        lambda: cached(2, 1),
        ValueError,
        r"`cache` must be a list of one dictionary for each block, as a stack of as many blocks "
        r"makes it\. Received: \['dict'\], and 2 blocks",
    ),
    "caches of more blocks": (
        lambda: cached(1, 2),
        ValueError,
        r"`cache` must be a list of one dictionary for each block.* and 1 blocks",
    ),
    "no caches": (
        lambda: cached(1, 0),
        ValueError,
        r"`cache` must be a list of one dictionary for each block.* Received: \[\], and 1 blocks",
    ),
    "the cache of a block for a stack": (
        lambda: decoder()(IDS, cache=ka.TransformerBlock(8, 2, causal=True)),
        ValueError,
        r"`cache` must be a list of one dictionary .* Received: TransformerBlock, and 1 blocks",
    ),
    "contexts of more blocks": (
        lambda: cached(1, 2, "context"),
        ValueError,
        r"`context` must be a list of one dictionary for each block.* and 1 blocks",
    ),
    "types of symbolic tokens that nothing embeds": (
        lambda: encoder()(SYMBOLS, SYMBOLS),
        ValueError,
        "`types` are given to a layer that was made without `types`",
    ),
    "types of vectors": (
        lambda: ka.Encoder([ka.TransformerBlock(8, 2)])(X, IDS),
        ValueError,
        r"`types` are of `embeddings`, and the stack was made without.* types.shape=\(2, 3\)",
    ),
    "types of symbolic vectors": (
        lambda: ka.Encoder([ka.TransformerBlock(8, 2)])(keras.Input(X.shape[1:]), SYMBOLS),
        ValueError,
        "`types` are of `embeddings`",
    ),
    "an attention mask of another size in a model of an encoder": (
        lambda: encoder()(SYMBOLS, attention_mask=keras.Input((3, 4), dtype="bool")),
        ValueError,
        "Lengths of the mask and of `key` must be equal. Received: mask=4, key=3",
    ),
    "an attention mask of another size in a model of a decoder": (
        lambda: decoder()(SYMBOLS, attention_mask=keras.Input((3, 4), dtype="bool")),
        ValueError,
        "Lengths of the mask and of `key` must be equal. Received: mask=4, key=3",
    ),
    "numbers of texts of another size in a model of an encoder": (
        lambda: encoder()(SYMBOLS, segment_ids=keras.Input((4,), dtype="int32")),
        ValueError,
        "Lengths of `query` and its segment_ids must be equal. Received: query=3, segment_ids=4",
    ),
    "positions of another size in a model of a decoder": (
        lambda: decoder()(SYMBOLS, positions=keras.Input((4,), dtype="int32")),
        ValueError,
        "Lengths of `query` and its positions must be equal. Received: query=3, positions=4",
    ),
    "a context in a model of a decoder that takes none": (
        lambda: decoder()(SYMBOLS, keras.Input((5, 8))),
        ValueError,
        "A block takes a `context` if, and only if,",
    ),
    "types of tokens that nothing embeds": (
        lambda: ka.Embeddings(tokens())(IDS, IDS),
        ValueError,
        r"`types` are given to a layer that was made without `types`\. "
        r"Received: types\.shape=\(2, 3\)",
    ),
    "factors of pairs without longrope": (
        lambda: positions.Rotary(short_factors=[1.0]),
        ValueError,
        r"`short_factors` must be None with scaling=None\. Received: short_factors=\[1\.0\]",
    ),
    "as many long factors as not short ones": (
        lambda: longrope(long_factors=[1.0]),
        ValueError,
        r"`short_factors` and `long_factors` must be of one length\. Received: 2 and 1",
    ),
    "factors of other pairs": (
        lambda: longrope().frequencies(8),
        ValueError,
        r"`short_factors` and `long_factors` must be 4 numbers each.* Received: 2",
    ),
    "prompts of several lengths": (
        lambda: start([[1, 2, 3], [4]]),
        ValueError,
        r"`prompt` must have rows of one length: pad .* left.* Received: rows of lengths \[3, 1\]",
    ),
    "a prompt that is no tokens": (
        lambda: start("The weather"),
        TypeError,
        r"`prompt` must be integers \(batch, positions\)\. Received dtype <U11",
    ),
    "a prompt without rows": (
        lambda: start([1, 2]),
        ValueError,
        r"`prompt` must have 2 axes, \(batch, positions\)\. Received: prompt\.shape=\(2,\)",
    ),
    "a prompt without tokens": (
        lambda: start([[]]),
        ValueError,
        r"`prompt` must have a token\. Received: prompt\.shape=\(1, 0\)",
    ),
    "a mask of another prompt": (
        lambda: start([[1, 2]], mask=[[True]]),
        ValueError,
        r"Lengths of `prompt` and its mask must be equal\. Received: prompt=2, mask=1",
    ),
    "a mask of another number of prompts": (
        lambda: start([[1, 2]], mask=[[True, True]] * 2),
        ValueError,
        r"Batch sizes of `prompt` and its mask must be equal\. Received: prompt=1, mask=2",
    ),
    "a mask of pairs for a prompt": (
        lambda: start([[1, 2]], mask=np.ones((1, 2, 2), "bool")),
        ValueError,
        r"`mask` must have 2 axes, \(batch, positions\)\. Received: mask\.shape=\(1, 2, 2\)",
    ),
    "a prompt that is padded on the right": (
        lambda: start([[1, 2], [1, 0]], mask=[[True, True], [True, False]]),
        ValueError,
        r"must be real: pad on the left\. Received: mask\[1\]=\[True, False\]",
    ),
    "a text that is longer than a table of positions": (
        lambda: start([[1, 2, 3]], 4, positions=ka.LearnedPositionEmbedding(5)),
        ValueError,
        r"must fit into the 5 positions of the model\. "
        r"Received: a prompt of 3 tokens and max_tokens=4",
    ),
    "a model in an .h5 file": (
        lambda: ka.Encoder([ka.TransformerBlock(8, 2)]).save("model.h5"),
        ValueError,
        r"`\.h5` has functional models alone, and no Encoder: .* Received: filepath='model\.h5'",
    ),
    "one prompt for two sources": (
        lambda: translated([[1, 2], [3, 4]], [[1]]),
        ValueError,
        r"Batch sizes must be equal\. Received: source=2, prompt=1",
    ),
}
