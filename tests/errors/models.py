"""What is raised by the stacks, and by the options of the blocks that they are made of."""

import keras
import numpy as np

import keras_attention as ka
from keras_attention import positions
from tests.errors.calls import X, block, built, symbol, true, zeros

IDS = np.ones((2, 3), "int32")
SYMBOLS, LAST = keras.Input((3,), dtype="int32"), ka.patterns.SlidingWindow(1, 0)


def embeddings(**options):
    return ka.Embeddings(ka.ScaledEmbedding(8, 4), **options)


def encoder(given=embeddings):
    return ka.Encoder([block()], given and given())


def decoder():
    return ka.Decoder([block(causal=True)], embeddings())


def start(prompt, max_tokens=2, mask=None, positions=None):
    """`start` of a language model."""
    made = embeddings(positions=positions)
    model = ka.Decoder([block(causal=True)], made, logits=ka.Logits(8))
    return model.start(prompt, max_tokens, mask=mask)


def cached(blocks, entries):
    """A call of a decoder with a cache of so many dictionaries."""
    model = built(ka.Decoder([block(causal=True) for _ in range(blocks)], embeddings()), (2, 3))
    return model(IDS, cache=(model.make_cache(2, 3) * entries)[:entries])


def translator():
    """A model of two sequences."""
    made = embeddings()
    reader = ka.Decoder([block(causal=True, cross_attention=True)], made)
    return ka.EncoderDecoder(ka.Encoder([block()], made), reader)


def across(**options):
    """A block that attends to a context alone."""
    return block(cross_attention=True, self_attention=False, **options)


def longrope(**kwargs):
    given = {"original_max_length": 8, "short_factors": [1.0, 1.0], "long_factors": [1.0, 2.0]}
    return positions.Rotary(scaling="longrope", **given | kwargs)


def switching(position, embeds=True):
    """A stack of two blocks whose positions change beyond 8 tokens."""
    blocks = [block(causal=True, position=position) for _ in range(2)]
    model = ka.Decoder(blocks, ka.Embeddings(ka.ScaledEmbedding(8, 8)) if embeds else None)
    return built(model, (None, None) if embeds else (None, None, 8))


def typed():
    """A call with types beside a cache of tokens that may be read again."""
    model = switching(longrope())
    return model(IDS, types=IDS, cache=model.make_cache(2, 9))


def grown(model, before, after):
    return model.grow_cache(model.make_cache(2, before), after)


ROWS = {
    # Blocks
    r"cross_attention=(False, and \[\]|True, and \['position', 'causal'\])": (
        lambda: block(self_attention=False),
        lambda: across(causal=True, position="rotary"),
    ),
    "this block has self_attention=False": lambda: across()(X, X, segment_ids=IDS),
    "Received: global_mask, attention=(None|<Multi)": (
        lambda: across()(X, X, global_mask=IDS > 0),
        lambda: block()(X, global_mask=IDS > 0),
    ),
    "a block with self_attention=False": lambda: built(across(), X.shape, X.shape).make_cache(1, 4),
    r"cross_attention=(False, residual=None|True, residual='parallel')": (
        lambda: block(query_residual=False),
        lambda: across(query_residual=False, residual="parallel"),
    ),
    r"residual=None .*\['attention_output'\]": lambda: block(norm={"attention_output": "rms"}),
    r"norm\['attention'\]='shared'": lambda: block(norm={"attention": "shared"}),
    "residual='parallel'": lambda: block(normalize_first=True, residual="parallel"),
    "position=<Rotary": lambda: block(attention=ka.MultiHeadAttention(2, 4), position="rotary"),
    "intermediate_dim=8": lambda: block(feed_forward=ka.FeedForward(8)),
    "`feed_forward` .*len>": (TypeError, lambda: ka.TransformerBlock(None, 2, feed_forward=len)),
    # Sets and experts
    r"`dim` .*x\.shape=\(None, None, None\)": lambda: ka.LearnedQueries(2)(symbol(None, None)),
    r"\(B, K, 4\).*slots\.shape=\(2, 2, 5\)": lambda: ka.SlotAttention(2, 4, 8)(X, zeros(2, 2, 5)),
    "x=2, slots=1": lambda: ka.SlotAttention(2, 4, 8)(X, zeros(1, 2, 4)),
    "num_experts=4, top_k=5": lambda: ka.MixtureOfExperts(4, 5, 8),
    "groups=4, top_groups=2": lambda: ka.MixtureOfExperts(4, 2, 8, num_groups=4, top_groups=2),
    "use_shared_gate=True, shared_dim=None": lambda: ka.MixtureOfExperts(
        4, 2, 8, use_shared_gate=True
    ),
    "gated=False, limit=7.0, offset=0.0": lambda: ka.MixtureOfExperts(4, 2, 8, limit=7.0),
    # Stacks
    r"model\(\[source": (lambda: translator()(IDS, IDS), lambda: translator()(SYMBOLS, SYMBOLS)),
    r"`blocks` .*blocks=\[\]": (TypeError, lambda: ka.Encoder([])),
    "Tied logits need .*embeddings=None": lambda: ka.Decoder([block()], logits=ka.Logits(8)),
    r"pooling='last' take `x` of .*: x.shape=\(8, 16\)": lambda: ka.Logits(
        8, tied=False, pooling="last"
    )(zeros(8, 16)),
    "a `cache` .* logits with pooling='last'": lambda: ka.Decoder(
        [block(causal=True)],
        ka.Embeddings(ka.ScaledEmbedding(8, 16)),
        logits=ka.Logits(3, tied=False, pooling="last"),
    ).start(np.ones((2, 3), "int32"), 4),
    "tied=False, and a `table`": lambda: ka.Logits(8, tied=False)(X, zeros(8, 16)),
    r"`sources` .*, for blocks with reuse=\[None, 'key_value'\]": (
        lambda: ka.Encoder([block(), block(reuse="key_value")]),
        lambda: ka.Encoder([block(), block(reuse="key_value")], sources=[None, 1]),
        lambda: ka.Encoder([block(position="rotary"), block(reuse="key_value")], sources=[None, 0]),
        lambda: ka.Encoder([block(pattern=LAST), block(reuse="key_value")], sources=[None, 0]),
    ),
    r"`cache` .*\['dict'\], and 2 blocks": lambda: cached(2, 1),
    "`cache` .* and 1 blocks": lambda: cached(1, 2),
    "made without `types`": (lambda: embeddings()(IDS, IDS), lambda: encoder()(SYMBOLS, SYMBOLS)),
    "`types` are of `embeddings`": (
        lambda: encoder(None)(X, IDS),
        lambda: encoder(None)(keras.Input(X.shape[1:]), SYMBOLS),
    ),
    "mask=4, key=3": (
        lambda: encoder()(SYMBOLS, attention_mask=symbol(3, 4, dtype="bool")),
        lambda: decoder()(SYMBOLS, attention_mask=symbol(3, 4, dtype="bool")),
    ),
    "query=3, segment_ids=4": lambda: encoder()(SYMBOLS, segment_ids=symbol(4, dtype="int32")),
    "A block takes a `context` if, and only if": lambda: decoder()(SYMBOLS, symbol(5, 8)),
    "`.h5` .* no Encoder.*filepath='model.h5'": lambda: encoder().save("model.h5"),
    # Positions that depend on the length
    r"short_factors=\[1\.0\]": lambda: positions.Rotary(short_factors=[1.0]),
    "`long_factors` .*Received: 2 and 1": lambda: longrope(long_factors=[1.0]),
    "4 numbers each.*Received: 2": lambda: longrope().frequencies(8),
    "scaling='dynamic' .* 9 tokens": lambda: switching(
        positions.Rotary(scaling="dynamic", original_max_length=8)
    ).start(IDS, max_tokens=7),
    "'longrope' .* needs embeddings": lambda: switching(longrope(), False).make_cache(2, 9),
    "Received also: types": typed,
    "cache to be grown to 9 tokens": lambda: grown(switching(longrope()), 8, 9),
    # Prompts
    r"rows of lengths \[3, 1\]": lambda: start([[1, 2, 3], [4]]),
    "`prompt` must be integers.*<U11": (TypeError, lambda: start("The weather")),
    r"2 axes.*prompt\.shape=\(2,\)": lambda: start([1, 2]),
    r"`prompt` must have a token.*prompt\.shape=\(1, 0\)": lambda: start([[]]),
    "prompt=2, mask=1": lambda: start([[1, 2]], mask=[[True]]),
    "prompt=1, mask=2": lambda: start([[1, 2]], mask=true(2, 2)),
    r"`mask` .*mask\.shape=\(1, 2, 2\)": lambda: start([[1, 2]], mask=true(1, 2, 2)),
    r"mask\[1\]=\[True, False\]": lambda: start([[1, 2]] * 2, mask=[[True, True], [True, False]]),
    "the 5 positions.* after 0 of a cache": lambda: start(
        [[1, 2, 3]], 4, positions=ka.LearnedPositionEmbedding(5)
    ),
    "source=2, prompt=1": lambda: translator().start(IDS, [[1]], max_tokens=2),
}
