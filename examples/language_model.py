"""Learns to go on with a text: trains a decoder-only Transformer on it, and generates from it.

    python -m examples.language_model [--data FILE] [--tokens characters|subwords] ...
    python -m examples.language_model generate DIR "prompt"

--data is a UTF-8 text file, with .gz or without. Without it the text is tiny_shakespeare of
TensorFlow Datasets, and if that is unavailable, a small synthetic sample. The first 90 % of the
characters are trained on, and the others measured. With --pretrained the model and its tokens come
from a folder of Hugging Face's format. An interrupted run resumes by the same command.
"""

import itertools
import math
import sys

import numpy as np

from examples import shared
from examples.later import keras, texts, training
from examples.later import keras_attention as ka
from examples.shared import UsageError, at_least

PROGRAM = "examples.language_model"
NAMES = "layers", "heads", "dim", "dropout", "context", "batch_size", "steps", "measure_every"
NAMES += "learning_rate", "warmup_steps"
VALUES = {
    "default": (6, 6, 192, 0.1, 128, 32, 2000, 250, 2e-3, 100),
    "nanogpt": (4, 4, 128, 0.0, 64, 12, 2000, 250, 1e-3, 100),  # of its README, for a CPU
    "small": (2, 2, 64, 0.0, 32, 16, 100, 50, 2e-3, 20),
    "pretrained": (None, None, None, None, 128, 8, 500, 100, 5e-5, 50),
}
PRESETS = {name: dict(zip(NAMES, values, strict=True)) for name, values in VALUES.items()}
POSITIONS = "rotary", "learned", "sin-cos", "alibi"
SAMPLE = shared.DATA / "dialogues.txt"


def load_text(path=None, use_sample=False):
    """A text and its name, from a file, TensorFlow Datasets or the sample."""

    def tiny_shakespeare():
        split = shared.tensorflow_dataset("tiny_shakespeare", "raw.githubusercontent.com")
        parts = [split(name)["text"] for name in ("train", "validation", "test")]
        text = b"".join(itertools.chain(*parts)).decode()
        return text, "tiny_shakespeare (TensorFlow Datasets)"

    def sample():
        return shared.read_text(SAMPLE), "embedded sample (made-up dialogues)"

    if path is None:
        advice = "--data is for other texts."
        return shared.or_sample(tiny_shakespeare, sample, use_sample, "tiny_shakespeare", advice)
    text = shared.read_text(path)
    if not text.strip():
        raise UsageError(f"{path} is empty.")
    return text, f"{path.name} (file)"


def encode(tokenizer, text, size=2**20):
    """The token numbers of a text, so many characters of which are read at a time."""
    parts = [text[start : start + size] for start in range(0, len(text), size)]
    rows = [texts.encode(tokenizer, [part])[0] for part in parts]
    return np.concatenate([np.zeros(0, "int32"), *rows])


def windows(numbers, context, starts):
    """Windows (n, context) that start at some tokens, and the tokens after each of theirs."""
    found = numbers[starts[:, None] + np.arange(context + 1)]
    return found[:, :-1], found[:, 1:]


def spread(numbers, context, most, rows=1):
    """Disjoint windows that cover a text, or about `most` of its tokens; a multiple of `rows`."""
    starts = np.arange(0, len(numbers) - context, context)
    count = -(-min(len(starts), max(1, most // context)) // rows) * rows
    return windows(numbers, context, starts[np.arange(count) * len(starts) // count])


def build(vocabulary_size, context, layers, heads, dim, dropout, positions):
    """A decoder of pre-norm blocks, whose logits are tied to the embedding."""
    multiple = heads * (2 if positions == "rotary" else 1)
    if dim % multiple:
        raise UsageError(f"--dim {dim} must be a multiple of {multiple}, for {heads} --heads.")
    options = {"dropout": dropout, "activation": "gelu", "residual": "pre", "causal": True}
    blocks, of_block = [], {"rotary": ka.positions.Rotary, "alibi": ka.positions.ALiBi}
    for n in range(layers):
        options |= {"name": f"block_{n}", "position": of_block.get(positions, lambda: None)()}
        blocks.append(ka.TransformerBlock(4 * dim, heads, use_bias=False, **options))
    table = ka.ScaledEmbedding(vocabulary_size, dim)
    added = ka.SinCosPositionEmbedding() if positions == "sin-cos" else None
    if positions == "learned":
        added = ka.LearnedPositionEmbedding(context)
    embeddings = ka.Embeddings(table, added, dropout=dropout)
    norm, logits = keras.layers.LayerNormalization(), ka.Logits(vocabulary_size)
    model = ka.Decoder(blocks, embeddings, final_norm=norm, logits=logits)
    model.build((None, None))
    return model


def compile_model(model, steps, learning_rate, warmup_steps, jit=False):
    """AdamW as nanoGPT has it: a warmup, and a cosine to a tenth of the highest rate."""
    warmup = min(warmup_steps, max(1, steps // 4))  # Where all is short, so is the warmup.
    rate = training.warmup_and_cosine(learning_rate, steps, warmup, alpha=0.1)
    optimizer = keras.optimizers.AdamW(rate, weight_decay=0.1, beta_2=0.99, global_clipnorm=1.0)
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta", "scale"])
    loss = ka.losses.SmoothedCrossentropy(0.0, ignore_class=None)
    model.compile(optimizer, loss, jit_compile=jit or keras.backend.backend() == "jax")


def make(run, options, text, trained):
    """A new model and its tokenizer, or those of a folder."""
    training.prepare(options)
    if folder := options.pretrained:
        model, tokenizer = texts.load_pretrained(folder, options.context, "--context")
        if not isinstance(model, ka.Decoder) or model.logits is None:
            raise UsageError(f"--pretrained {folder} has no decoder with logits of tokens.")
        return model, texts.tokenizer_of(run, lambda: tokenizer)
    if options.tokens == "characters":
        tokenizer = texts.tokenizer_of(run, lambda: texts.characters(text))
    else:
        learned = "bpe", [trained], options.vocabulary_size
        tokenizer = texts.tokenizer_of(run, lambda: texts.train_tokenizer(*learned))
    sizes = {name: getattr(options, name) for name in (*NAMES[:5], "positions")}
    return build(tokenizer.get_vocab_size(), **sizes), tokenizer


def fit(run, options, text, name):
    """Trains a model on a text, and writes what is known of it."""
    split, context, devices = int(0.9 * len(text)), options.context, options.devices
    parts = {"train": text[:split], "validation": text[split:]}
    lengths = {part: len(written) for part, written in parts.items()}
    run.begin({"text": shared.checksum([text])}, dataset=name, characters=lengths)
    model, tokenizer = make(run, options, text, parts["train"])
    compile_model(model, options.steps, options.learning_rate, options.warmup_steps, options.jit)
    trained, held_out = (encode(tokenizer, written) for written in parts.values())
    if (few := min(len(trained), len(held_out))) <= context:
        raise UsageError(f"A part of the text has {few} tokens, not more than --context {context}.")
    print(f"{model.count_params():,} weights, {len(trained):,} tokens to train on", flush=True)
    # An epoch is the steps between two measurements, on windows at random places.
    size = options.measure_every, options.batch_size
    batches = training.Batches(
        draw=lambda rng: list(rng.integers(len(trained) - context, size=size)),
        arrays=lambda starts: windows(trained, context, starts),
        seed=options.seed,
        devices=devices,
    )
    rows, measured = len(batches.batches[0]), spread(held_out, context, 2**15, devices)
    how = training.resuming(run, batches, options.steps // options.measure_every)
    model.fit(batches, validation_data=measured, validation_batch_size=rows, **how)
    given, wanted = spread(held_out, context, 2**21, devices)
    loss = model.evaluate(given, wanted, batch_size=rows, verbose=0)
    run.write(shared.MODEL, lambda path: model.save(path, include_optimizer=False))
    found = {"validation_loss": loss, "validation_perplexity": math.exp(loss)}
    found["validation_loss_per_character"] = loss * len(held_out) / lengths["validation"]
    run.finish(**found, validation_tokens=wanted.size)


def load(folder, *prompts):
    """The model of a finished run, its tokenizer and its context."""
    figures, model = shared.load_run(folder, PROGRAM, prompts)
    if not isinstance(model, ka.Decoder):
        raise UsageError(f"{folder} has a {type(model).__name__}, not a model of this program.")
    return model, texts.load_tokenizer(folder), figures["settings"]["context"]


def next_tokens(model, context, known, seed, temperature, top_k):
    """Yields token numbers after those known; at temperature 0 the likeliest.

    When the caches have `context` tokens, the later half of them is read again, so that a token
    sees from half of `context` to all of it.
    """
    half, how = context // 2, {"method": "greedy"}
    for window in itertools.count():
        if temperature:
            how = {"method": "sample", "temperature": temperature, "top_k": top_k}
            how["seed"] = seed + (window << 32)  # Other random numbers in each window.
        # The last token of a window is read in the next one.
        for tokens, _ in model.stream([known[-half:]], context - half + 1, **how):
            known = [*known, int(tokens[0])]
            yield known[-1]


def generate(model, tokenizer, context, prompt, length=500, temperature=0.8, top_k=None, seed=0):
    """Yields the text of `length` tokens after a prompt, each piece as soon as it is drawn."""
    from tokenizers.decoders import DecodeStream

    try:
        numbers = encode(tokenizer, prompt).tolist()
    except Exception:  # The package says no more than that a character is no token.
        unknown = "".join(sorted(set(prompt) - set(tokenizer.get_vocab())))
        raise UsageError(f"The model has never seen these characters: {unknown!r}.") from None
    if not numbers:
        raise UsageError(f"The prompt {prompt!r} has no tokens.")
    drawn = next_tokens(model, context, numbers, seed, temperature, top_k)
    # A character whose bytes are several tokens comes with the last of them.
    stream = DecodeStream(ids=numbers[-16:])
    return (stream.step(tokenizer, number) or "" for number in itertools.islice(drawn, length))


def train(argv):
    """Trains a model, or goes on with an interrupted run, and prints how good it is."""
    parser = shared.command_line(PROGRAM, __doc__)
    shared.add_source(parser, "--data", "a text file")
    parser.add_argument("--preset", choices=[*PRESETS][:-1], help="small is a quick try")
    parser.add_argument("--tokens", choices=["characters", "subwords"])
    parser.add_argument("--vocabulary-size", type=at_least(300), metavar="N", help="of subwords")
    parser.add_argument("--pretrained", metavar="FOLDER", help="of a model, to be trained further")
    parser.add_argument("--positions", choices=POSITIONS)
    kinds = {"context": at_least(2), "dropout": shared.fraction, "learning_rate": shared.positive}
    for name in NAMES:
        option, kind = name.replace("_", "-"), kinds.get(name, at_least(1))
        parser.add_argument(f"--{option}", type=kind, metavar="N", help="default: the preset's")
    shared.add_training_options(parser, "runs/language-model")
    given = parser.parse_known_args(argv)[0]
    for name in ("preset", "tokens", "vocabulary_size", "positions", *NAMES[:4]):
        if given.pretrained and getattr(given, name) is not None:
            raise UsageError(f"--{name} cannot be given with --pretrained.".replace("_", "-"))
    if given.vocabulary_size and given.tokens != "subwords":
        raise UsageError("--vocabulary-size is for --tokens subwords.")
    defaults = PRESETS["pretrained" if given.pretrained else given.preset or "default"]
    every = min(defaults["measure_every"], given.steps or math.inf)
    parser.set_defaults(**defaults | {"measure_every": every})
    if given.tokens == "subwords":
        parser.set_defaults(vocabulary_size=1000)
    if not given.pretrained:
        parser.set_defaults(tokens="characters", positions="rotary")
    options = shared.parse(parser, argv)
    if options.steps % options.measure_every:
        raise UsageError(f"--steps must be a multiple of --measure-every {options.measure_every}.")
    settings = vars(options) | {"output": None, "preset": None}
    settings |= {"data": options.data and "given", "sample": options.sample or None}
    settings["pretrained"] = options.pretrained and texts.pretrained_checksum(options.pretrained)
    with shared.Run(options.output, PROGRAM, settings) as run:
        if not run.finished:
            text, name = load_text(options.data, options.sample)
            with training.devices(options.devices):
                fit(run, options, text, name)
        for name in ("dataset", "validation_loss", "validation_loss_per_character"):
            print(f"{name}: {run.figures[name]}")


def print_generated(argv):
    """Prints a prompt, and each token after it as soon as it is drawn."""
    parser = shared.command_line(f"{PROGRAM} generate", print_generated.__doc__)
    parser.add_argument("folder", metavar="DIR", help="of a finished run")
    parser.add_argument("prompt", help="what to go on with")
    parser.add_argument("--length", type=at_least(1), default=500, metavar="N", help="of tokens")
    kind = shared.number(float, "at least 0", lambda value: 0 <= value < math.inf)
    parser.add_argument("--temperature", type=kind, default=0.8, metavar="T", help="0: likeliest")
    parser.add_argument("--top-k", type=at_least(1), metavar="N", help="draw from the N likeliest")
    parser.add_argument("--seed", type=at_least(0), default=0, metavar="N")
    options = vars(shared.parse(parser, argv))
    # An argument that is not UTF-8 reaches Python as surrogates, which no tokenizer takes.
    prompt = options["prompt"] = options["prompt"].encode("utf-8", "replace").decode("utf-8")
    keras.config.disable_interactive_logging()  # No messages of compilation amid the text.
    pieces = generate(*load(options.pop("folder"), prompt), **options)
    for piece in itertools.chain([prompt], pieces, ["\n"]):
        print(piece, end="", flush=True)


main = shared.program(train, generate=print_generated)

if __name__ == "__main__":
    sys.exit(main())
