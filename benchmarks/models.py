"""Whole published Transformers, ours against others': `python -m benchmarks.models`.

Random weights, since time does not depend on them. Two sides take turns in one run:

- `gpt2-training`, `bert-training`: a step of Adam on models of GPT-2's and BERT-base's size,
  against KerasHub's, compiled as Keras chooses, with dropout 0.1.
- `gpt2-greedy`, `gpt2-greedy-rows`: tokens after one prompt or several, against KerasHub's
  `generate`.
- `gpt2-static-cache`: the same against `transformers` on PyTorch with its static cache, whichever
  backend ours runs on.
- `language-model`: a step of `examples.language_model --preset nanogpt`, against KerasHub's layers.
- `language-model-torch`: the same without dropout and its optimizer's schedule, against PyTorch's
  own layers, run eagerly.
"""

import dataclasses

import keras
import numpy as np

import keras_attention
from benchmarks import runner
from keras_attention import generation

ops = keras.ops


@dataclasses.dataclass(frozen=True)
class Size:
    """Sizes of a model and of a batch."""

    layers: int = 12
    dim: int = 768
    heads: int = 12
    vocabulary: int = 50257
    longest: int = 1024
    batch: int = 4
    length: int = 128
    dropout: float = 0.1

    @property
    def intermediate_dim(self):
        return 4 * self.dim


GPT2 = Size()
BERT = Size(vocabulary=30522, longest=512)
NANO = Size(4, 128, 4, 65, longest=64, batch=12, length=64, dropout=0.0)
PROMPT, TOKENS = 32, 64


def tokens_of(size, length, batch=None):
    rng = np.random.default_rng(0)
    return rng.integers(1, size.vocabulary, (batch or size.batch, length)).astype("int32")


def batch_of(size):
    """Tokens, and those that follow them."""
    tokens = tokens_of(size, size.length + 1)
    return tokens[:, :-1], tokens[:, 1:]


def embedded(size, **parts):
    """Embeddings of tokens and learned positions."""
    return keras_attention.Embeddings(
        keras_attention.ScaledEmbedding(size.vocabulary, size.dim),
        keras_attention.LearnedPositionEmbedding(size.longest),
        dropout=size.dropout,
        **parts,
    )


def blocks(size, **options):
    return [
        keras_attention.TransformerBlock(
            size.intermediate_dim, size.heads, dropout=size.dropout, name=f"block_{n}", **options
        )
        for n in range(size.layers)
    ]


def language_model(size, activation="gelu_tanh"):
    """Our decoder of GPT-2's kind."""
    model = keras_attention.Decoder(
        blocks(size, activation=activation, causal=True, residual="pre"),
        embedded(size),
        final_norm=keras.layers.LayerNormalization(epsilon=1e-5),
        logits=keras_attention.Logits(size.vocabulary),
    )
    model.build((None, None))
    return model


def hub_backbone(kind, size):
    """KerasHub's GPT-2 or BERT, without a head."""
    import keras_hub

    return getattr(keras_hub.models, f"{kind}Backbone")(
        vocabulary_size=size.vocabulary,
        num_layers=size.layers,
        num_heads=size.heads,
        hidden_dim=size.dim,
        intermediate_dim=size.intermediate_dim,
        dropout=size.dropout,
        max_sequence_length=size.longest,
    )


def hub_language_model(size):
    import keras_hub

    return keras_hub.models.GPT2CausalLM(hub_backbone("GPT2", size), preprocessor=None)


def step(model, inputs, targets, jit):
    """A function that makes one training step."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-4), loss, jit_compile=jit)
    return lambda: model.train_on_batch(inputs, targets)


def with_padding(tokens):
    return {"token_ids": tokens, "padding_mask": np.ones_like(tokens)}


def language_models(size, jit):
    """The steps of our GPT-2 and of KerasHub's."""
    x, y = batch_of(size)
    hub = hub_language_model(size)
    return step(language_model(size), x, y, jit), step(hub, with_padding(x), y, jit)


def classifiers(size, jit):
    """The steps of our BERT and of KerasHub's, each with a classifier of the first token."""
    x, y = tokens_of(size, size.length), np.arange(size.batch) % 2
    ids, types = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")
    mask = keras.Input((None,), dtype="bool")
    encoder = keras_attention.Encoder(
        blocks(size, activation="gelu"),
        embedded(
            size,
            types=keras.layers.Embedding(2, size.dim),
            norm=keras.layers.LayerNormalization(epsilon=1e-12),
        ),
    )
    states = encoder(ids, types=types, mask=mask)
    pooled = keras.layers.Dense(size.dim, activation="tanh")(states[:, 0])
    ours = keras.Model([ids, types, mask], keras.layers.Dense(2)(pooled))
    hub = hub_backbone("Bert", size)
    pooled = keras.layers.Dense(2)(hub.output["pooled_output"])
    given = {**with_padding(x), "segment_ids": np.zeros_like(x)}
    return (
        step(ours, [x, np.zeros_like(x), np.ones_like(x, dtype="bool")], y, jit),
        step(keras.Model(hub.input, pooled), given, y, jit),
    )


def our_search(size, prompt, count):
    model = language_model(size)

    def found(prompt):
        last, cache = model.start(prompt, count)
        return generation.greedy(model.step, last, cache, max_tokens=count).tokens

    search = generation.compiled(found, model)
    return lambda: ops.convert_to_numpy(search(prompt))


def hub_search(size, prompt, count):
    model = hub_language_model(size)
    model.compile(sampler="greedy")
    length = prompt.shape[1] + count
    ids = np.zeros((len(prompt), length), "int32")
    ids[:, : prompt.shape[1]] = prompt
    given = {"token_ids": ids, "padding_mask": np.arange(length) < prompt.shape[1]}
    given["padding_mask"] = np.broadcast_to(given["padding_mask"], ids.shape).astype("int32")
    return lambda: model.generate(given, stop_token_ids=None)


def static_cache_search(size, prompt, count):
    """Greedy search of `transformers`."""
    import torch
    import transformers

    config = transformers.GPT2Config(
        vocab_size=size.vocabulary,
        n_positions=size.longest,
        n_embd=size.dim,
        n_layer=size.layers,
        n_head=size.heads,
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    ids = torch.tensor(prompt, dtype=torch.int64)

    def search():
        with torch.no_grad():
            return model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                min_new_tokens=count,
                max_new_tokens=count,
                pad_token_id=0,
                cache_implementation="static",
            )

    return search


def nano(size, jit):
    """Our example's model and one of KerasHub's layers as it would be written."""
    import keras_hub

    x, y = batch_of(size)
    ids = keras.Input((size.length,), dtype="int32")
    embedding = keras_hub.layers.TokenAndPositionEmbedding(size.vocabulary, size.longest, size.dim)
    h = embedding(ids)
    for _ in range(size.layers):
        h = keras_hub.layers.TransformerDecoder(
            size.intermediate_dim,
            size.heads,
            dropout=size.dropout,
            activation="gelu",
            normalize_first=True,
        )(h)
    h = keras.layers.LayerNormalization()(h)
    hub = keras.Model(ids, embedding.token_embedding(h, reverse=True))
    return step(language_model(size, "gelu"), x, y, jit), step(hub, x, y, jit)


def torch_step(size):
    """A step of the same model of PyTorch's layers."""
    import torch

    nn = torch.nn
    sizes = size.dim, size.heads, size.intermediate_dim, size.dropout
    body = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(*sizes, "gelu", batch_first=True, norm_first=True),
        size.layers,
        nn.LayerNorm(size.dim),
        enable_nested_tensor=False,
    )
    words = nn.Embedding(size.vocabulary, size.dim)
    places = nn.Embedding(size.longest, size.dim)
    mask = nn.Transformer.generate_square_subsequent_mask(size.length)
    weights = [*body.parameters(), *words.parameters(), *places.parameters()]
    optimizer = torch.optim.Adam(weights, 1e-4)
    tokens = torch.tensor(tokens_of(size, size.length + 1), dtype=torch.int64)

    def one():
        x = words(tokens[:, :-1]) + places.weight[: size.length]
        logits = body(x, mask, is_causal=True) @ words.weight.T
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return one


def nano_and_torch(size, jit):
    return step(language_model(size, "gelu"), *batch_of(size), jit), torch_step(size)


def searches(other, prompts=1):
    """A function that makes both sides of a row of greedy search."""

    def both(size, jit):
        count, length = (4, 4) if size.layers == 1 else (TOKENS, PROMPT)
        prompt = tokens_of(size, length, prompts)
        return our_search(size, prompt, count), other(size, prompt, count)

    return both


# What each row is, and what makes its two sides.
AGAINST = f"{TOKENS} tokens after {PROMPT}, against"
STEP = "a step, B{batch} T{length}, against"
ROWS = {
    "gpt2-training": (f"{STEP} KerasHub", GPT2, language_models),
    "bert-training": (f"{STEP} KerasHub", BERT, classifiers),
    "gpt2-greedy": (f"{AGAINST} KerasHub", GPT2, searches(hub_search)),
    "gpt2-greedy-rows": ("the same of 8 prompts", GPT2, searches(hub_search, prompts=8)),
    "gpt2-static-cache": (
        f"{AGAINST} transformers on PyTorch",
        *(GPT2, searches(static_cache_search)),
    ),
    "language-model": (f"{STEP} KerasHub", NANO, nano),
    "language-model-torch": (f"{STEP} eager PyTorch", NANO, nano_and_torch),
}


def rows(names, options):
    for name in names:
        work, size, sides = ROWS[name]
        if options.small:
            small = {"layers": 1, "dim": 16, "heads": 2, "vocabulary": 50, "longest": 16}
            size = dataclasses.replace(size, **small, batch=2, length=4)
        both = sides(size, options.jit or "auto")
        yield name, work.format(**dataclasses.asdict(size)), *both


def main():
    def about(options):
        sizes = {"gpt2": GPT2, "language-model": NANO}
        sizes = {name: dataclasses.asdict(size) for name, size in sizes.items()}
        return {"sizes": sizes, "jit": options.jit}

    runner.compare(__doc__, ROWS, rows, about, jit="compile training steps with XLA")


if __name__ == "__main__":
    main()
