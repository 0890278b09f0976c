"""Whole published Transformers, ours against others': `python -m benchmarks.models`.

Random weights, since time does not depend on them. Two sides take turns in one run:

- `gpt2-training`, `bert-training`: a step of Adam on models of GPT-2's and BERT-base's size,
  against KerasHub's, compiled as Keras chooses, with dropout 0.1.
- `gpt2-greedy`, `gpt2-greedy-rows`: tokens after one prompt or several, against KerasHub's
  `generate`.
- `gpt2-static-cache`: the same against `transformers` on PyTorch with its static cache, whichever
  backend ours runs on.
- `chat-first`, `chat-tokens`, `chat-rows`: `generate` of both, of a small model: the first token of
  a prompt of 64, and 32 tokens after it, of one prompt and of eight, with the cache that
  `transformers` has by default.
- `chat-stream`: the same by `stream`, against our `generate`.
- `cache-1024` to `cache-4096`: 32 tokens after so many, of a cache in int8 against bfloat16.
- `language-model`: a step of `examples.language_model --preset nanogpt`, against KerasHub's layers.
- `language-model-torch`: the same without dropout and its optimizer's schedule, against PyTorch's
  own layers, run eagerly.
"""

import dataclasses
import functools

import keras
import numpy as np

import keras_attention as ka
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

    def tokens(self, length, batch=None):
        shape = batch or self.batch, length
        return np.random.default_rng(0).integers(1, self.vocabulary, shape).astype("int32")


GPT2 = Size()
BERT = Size(vocabulary=30522, longest=512)
CHAT = Size(6, 256, 8, 8000, longest=256, dropout=0.0)
NANO = Size(4, 128, 4, 65, longest=64, batch=12, length=64, dropout=0.0)
SMALL = {"layers": 1, "dim": 16, "heads": 2, "vocabulary": 50, "longest": 16}
PROMPT, TOKENS = 32, 64

# Training steps


def step(model, inputs, targets, jit, optimizer=None):
    """A function that makes one training step."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer or keras.optimizers.Adam(1e-4), loss, jit_compile=jit)
    return lambda: model.train_on_batch(inputs, targets)


def parts(size, types=None, norm=None, **options):
    """Our blocks and embeddings of one size."""
    sizes = size.intermediate_dim, size.heads
    blocks = [
        ka.TransformerBlock(*sizes, dropout=size.dropout, name=f"block_{n}", **options)
        for n in range(size.layers)
    ]
    tables = (
        ka.ScaledEmbedding(size.vocabulary, size.dim),
        ka.LearnedPositionEmbedding(size.longest),
    )
    return blocks, ka.Embeddings(*tables, dropout=size.dropout, types=types, norm=norm)


def language_model(size, activation="gelu_tanh"):
    """Our decoder of GPT-2's kind."""
    made = parts(size, activation=activation, causal=True, residual="pre")
    norm, logits = keras.layers.LayerNormalization(epsilon=1e-5), ka.Logits(size.vocabulary)
    model = ka.Decoder(*made, final_norm=norm, logits=logits)
    model.build((None, None))
    return model


def hub_backbone(kind, size):
    """KerasHub's GPT-2 or BERT, without a head."""
    from keras_hub import models

    sizes = {"num_layers": size.layers, "num_heads": size.heads, "hidden_dim": size.dim}
    sizes |= {"intermediate_dim": size.intermediate_dim, "dropout": size.dropout}
    sizes |= {"vocabulary_size": size.vocabulary, "max_sequence_length": size.longest}
    return getattr(models, f"{kind}Backbone")(**sizes)


def hub_language_model(size):
    import keras_hub

    return keras_hub.models.GPT2CausalLM(hub_backbone("GPT2", size), preprocessor=None)


def hub_nano(size):
    """The example's model as it would be written with KerasHub's layers."""
    import keras_hub

    ids = keras.Input((size.length,), dtype="int32")
    embedding = keras_hub.layers.TokenAndPositionEmbedding(size.vocabulary, size.longest, size.dim)
    h = embedding(ids)
    options = {"dropout": size.dropout, "activation": "gelu", "normalize_first": True}
    for _ in range(size.layers):
        sizes = size.intermediate_dim, size.heads
        h = keras_hub.layers.TransformerDecoder(*sizes, **options)(h)
    h = keras.layers.LayerNormalization()(h)
    return keras.Model(ids, embedding.token_embedding(h, reverse=True))


def with_padding(tokens):
    return {"token_ids": tokens, "padding_mask": np.ones_like(tokens)}


def batch(size):
    """Tokens, and those that follow them."""
    tokens = size.tokens(size.length + 1)
    return tokens[:, :-1], tokens[:, 1:]


def language_models(size, jit):
    """The steps of our GPT-2 and of KerasHub's."""
    x, y = batch(size)
    hub = step(hub_language_model(size), with_padding(x), y, jit)
    return step(language_model(size), x, y, jit), hub


def nano(size, jit):
    """The steps of our example's model and of KerasHub's layers."""
    models = language_model(size, "gelu"), hub_nano(size)
    return [step(model, *batch(size), jit) for model in models]


def nano_and_torch(size, jit):
    """The steps of our example's model and of PyTorch's layers."""
    return step(language_model(size, "gelu"), *batch(size), jit), torch_step(size)


def classifiers(size, jit):
    """The steps of our BERT and of KerasHub's, each with a classifier of the first token."""
    x, y = size.tokens(size.length), np.arange(size.batch) % 2
    ids, types = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")
    mask = keras.Input((None,), dtype="bool")
    types_table = keras.layers.Embedding(2, size.dim)
    norm = keras.layers.LayerNormalization(epsilon=1e-12)
    encoder = ka.Encoder(*parts(size, types_table, norm, activation="gelu"))
    states = encoder(ids, types=types, mask=mask)
    pooled = keras.layers.Dense(size.dim, activation="tanh")(states[:, 0])
    ours = keras.Model([ids, types, mask], keras.layers.Dense(2)(pooled))
    hub = hub_backbone("Bert", size)
    hub = keras.Model(hub.input, keras.layers.Dense(2)(hub.output["pooled_output"]))
    given = {**with_padding(x), "segment_ids": np.zeros_like(x)}
    ours = step(ours, [x, np.zeros_like(x), np.ones_like(x, dtype="bool")], y, jit)
    return ours, step(hub, given, y, jit)


def torch_step(size):
    """A step of the same model of PyTorch's layers."""
    import torch

    nn = torch.nn
    sizes = size.dim, size.heads, size.intermediate_dim, size.dropout
    block = nn.TransformerEncoderLayer(*sizes, "gelu", batch_first=True, norm_first=True)
    norm = nn.LayerNorm(size.dim)
    body = nn.TransformerEncoder(block, size.layers, norm, enable_nested_tensor=False)
    words = nn.Embedding(size.vocabulary, size.dim)
    places = nn.Embedding(size.longest, size.dim)
    mask = nn.Transformer.generate_square_subsequent_mask(size.length)
    optimizer = torch.optim.Adam([*nn.ModuleList([body, words, places]).parameters()], 1e-4)
    tokens, labels = (torch.tensor(part, dtype=torch.int64) for part in batch(size))

    def one():
        x = words(tokens) + places.weight[: size.length]
        logits = body(x, mask, is_causal=True) @ words.weight.T
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return one


# Greedy search


def search(model, inputs, count, beams=None):
    """A function that writes so many tokens after what `model.start` takes."""

    def found(*inputs):
        start = model.start(*inputs, count)
        if beams is None:
            return generation.greedy(model.step, *start, max_tokens=count).tokens
        given = {"num_beams": beams, "max_tokens": count}
        return generation.beam_search(model.step, *start, **given).tokens

    run = generation.compiled(found, model)
    return lambda: ops.convert_to_numpy(run(*inputs))


def hub_search(size, prompt, count):
    model = hub_language_model(size)
    model.compile(sampler="greedy")
    ids = np.pad(prompt, ((0, 0), (0, count)))
    mask = np.arange(ids.shape[1]) < prompt.shape[1]
    given = {"token_ids": ids, "padding_mask": np.broadcast_to(mask, ids.shape).astype("int32")}
    return lambda: model.generate(given, stop_token_ids=None)


def static_cache_search(size, prompt, count, **cache):
    """Greedy search of `transformers`, with a static cache unless `cache` says otherwise."""
    import torch
    import transformers

    sizes = {"n_layer": size.layers, "n_head": size.heads, "n_embd": size.dim}
    sizes |= {"vocab_size": size.vocabulary, "n_positions": size.longest}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).eval()
    ids = torch.tensor(prompt, dtype=torch.int64)
    given = {"attention_mask": torch.ones_like(ids), "cache_implementation": "static", **cache}
    given |= {"do_sample": False, "min_new_tokens": count, "max_new_tokens": count}
    return torch.no_grad()(lambda: model.generate(ids, pad_token_id=0, **given))


def searches(other, prompts=1):
    """A function that makes both sides of a row, which go on after the same prompts."""

    def both(size, jit):
        count, length = (4, 4) if size.layers == 1 else (TOKENS, PROMPT)
        prompt = size.tokens(length, prompts)
        return search(language_model(size), [prompt], count), other(size, prompt, count)

    return both


def chats(count, prompts=1):
    """The same by `generate` of both models."""

    def both(size, jit):
        prompt = size.tokens(4 if size.layers == 1 else 64, prompts)
        model, most = language_model(size), min(count, size.longest - prompt.shape[1])
        other = static_cache_search(size, prompt, most, cache_implementation="dynamic")
        return lambda: ops.convert_to_numpy(model.generate(prompt, most).tokens), other

    return both


def streams(size, jit):
    """The tokens of ours as they are drawn, and all at once."""
    generate, _ = chats(32)(size, jit)
    model, prompt = language_model(size), size.tokens(4 if size.layers == 1 else 64, 1)
    return lambda: list(model.stream(prompt, min(32, size.longest - prompt.shape[1]))), generate


def caches(length, size, jit):
    """Steps after a prompt that has been read, of caches in int8 and in bfloat16."""
    count, length = (4, 4) if size.layers == 1 else (32, length)
    model = language_model(dataclasses.replace(size, longest=length + count))
    given = {"max_tokens": count}
    run = generation.compiled(
        lambda *start: generation.greedy(model.step, *start, **given).tokens, model
    )

    def steps(dtype):
        start = model.start(size.tokens(length, 1), count, cache_dtype=dtype)
        return lambda: ops.convert_to_numpy(run(*start))

    return steps("int8"), steps("bfloat16")


# What each row is, against what, and what makes its two sides.
ROWS = {
    "gpt2-training": ("GPT-2, training step, B4 T128, dropout 0.1", "KerasHub", language_models),
    "bert-training": ("BERT, training step, B4 T128, dropout 0.1", "KerasHub", classifiers),
    "gpt2-greedy": ("GPT-2, 64 tokens after 32, greedy", "KerasHub", searches(hub_search)),
    "gpt2-greedy-rows": ("the same of 8 prompts at once", "KerasHub", searches(hub_search, 8)),
    "gpt2-static-cache": (
        *("GPT-2, 64 tokens after 32", "`transformers`, static cache"),
        searches(static_cache_search),
    ),
    "chat-first": ("first token after 64", "`transformers`", chats(1)),
    "chat-tokens": ("32 tokens after 64", "`transformers`", chats(32)),
    "chat-rows": ("32 tokens of each of 8 prompts", "`transformers`", chats(32, 8)),
    "chat-stream": ("32 tokens after 64, streamed", "`generate`", streams),
    **{
        f"cache-{n}": (f"32 tokens after {n}, int8", "bfloat16", functools.partial(caches, n))
        for n in (1024, 2048, 4096)
    },
    "language-model": ("nanoGPT, training step, B12 T64", "KerasHub", nano),
    "language-model-torch": ("nanoGPT, training step, B12 T64", "PyTorch, eager", nano_and_torch),
}
SIZES = {"bert": BERT, "gpt2": GPT2, "chat": CHAT, "cache": CHAT, "language": NANO}


def sides(name, options):
    (work, other, both), size = ROWS[name], SIZES[name.split("-")[0]]
    if options.small:
        size = dataclasses.replace(size, **SMALL, batch=2, length=4)
    return f"{work}, against {other}", *both(size, options.jit or "auto")


def main():
    jit = {"--jit": runner.flag("compile training steps with XLA")}
    options = runner.parsed(__doc__, jit, ROWS)
    sizes = {"gpt2": GPT2, "language-model": NANO, "chat": CHAT}
    sizes = {name: dataclasses.asdict(size) for name, size in sizes.items()}
    runner.turns(sides, options, sizes=sizes, jit=options.jit)


if __name__ == "__main__":
    main()
