"""Translates sentences: attention models trained on pairs of them, from the data to BLEU.

    python -m examples.translation [--data-dir multi30k] [--model transformer|bahdanau|luong] ...
    python -m examples.translation translate DIR "sentence" ...

--data-dir is a folder with train.en.gz, train.de.gz, val.* and test_2016_flickr.* (or test.*), one
sentence a line; without it see `pairs`. The same command resumes an interrupted run.
"""

import sys
from pathlib import Path

import numpy as np

from examples import pairs, shared
from examples.later import keras, texts, training
from examples.later import keras_attention as ka
from examples.shared import UsageError, at_least

PROGRAM = "examples.translation"
START, STOP = np.array([2, 3], "int32")  # 0 is padding, and 1 an unknown token
LENGTHS = np.array([12, 16, 20, 24, 32, 64])  # A program is compiled for each.
POSITIONS = "shaw", "rotary", "sin-cos"
NAMES = "epochs", "batch_tokens", "dropout", "learning_rate", "warmup", "schedule", "positions"
VALUES = {"transformer": (10, 1024, 0.1, 3e-3, 1000, "cosine", "shaw")}
VALUES["bahdanau"] = VALUES["luong"] = (15, 2048, 0.2, 2e-3, 500, "inverse-sqrt", None)
DEFAULTS = {model: dict(zip(NAMES, values, strict=True)) for model, values in VALUES.items()}


def batches(tokenizer, sides, options):
    """Pairs of like lengths, with about as many tokens in each batch; without the longest."""
    sides = [texts.encode(tokenizer, side) for side in sides]
    lengths = 1 + np.array([[len(row) for row in side] for side in sides]).max(axis=0)
    padded = LENGTHS[np.searchsorted(LENGTHS[:-1], lengths)]
    kept = np.flatnonzero(lengths <= LENGTHS[-1])
    if not len(kept):
        raise UsageError(f"All pairs are longer than {LENGTHS[-1]} subwords.")

    def draw(rng):
        order, found = rng.permutation(kept), []
        order = order[np.argsort(padded[order], kind="stable")]
        while len(order):
            # What is left over of a length fills up a batch of the next one.
            longest = padded[order[: options.batch_tokens // padded[order[0]]]].max()
            found.append(order[: options.batch_tokens // longest])
            order = order[len(found[-1]) :]
        return [found[index] for index in rng.permutation(len(found))]

    def arrays(rows):
        ends = [[np.append(side[row], STOP) for row in rows] for side in sides]
        starts = [np.append(START, sides[1][row]) for row in rows]
        source, wanted, given = (texts.pad(x, padded[rows].max()) for x in (*ends, starts))
        return (source, given), wanted

    more = {"seed": options.seed, "devices": options.devices}
    return training.Batches(draw, arrays, lambda rows: padded[rows].max(), **more)


def transformer(size, layers, dim, intermediate_dim, num_heads, dropout, positions):
    """Blocks with one table of subwords (Vaswani et al. 2017), from (B, S), (B, T) to logits."""
    added = ka.SinCosPositionEmbedding() if positions == "sin-cos" else None
    tokens = ka.ScaledEmbedding(size, dim, mask_zero=True)
    embeddings = ka.Embeddings(tokens, added, dropout=dropout)

    def parts(name, **options):
        options |= {"dropout": dropout, "normalize_first": True}
        blocks = []
        for n in range(layers):
            position = {"shaw": ka.positions.Shaw(16), "rotary": "rotary"}.get(positions)
            options |= {"name": f"{name}_{n}", "position": position}
            blocks.append(ka.TransformerBlock(intermediate_dim, num_heads, **options))
        return blocks, embeddings, keras.layers.LayerNormalization(name=f"{name}_norm")

    encoder = ka.Encoder(*parts("encoder"))
    logits = ka.Logits(size, kernel_initializer="zeros")  # Their kernel is the table.
    decoder = ka.Decoder(*parts("decoder", causal=True, cross_attention=True), logits)
    model = ka.EncoderDecoder(encoder, decoder)
    model.build([(None, None), (None, None)])
    return model


def recurrent(size, mode, dim, units, dropout):
    """Gated recurrent units with attention: Bahdanau et al. 2015 or Luong et al. 2015."""
    source, target = (keras.Input((None,), dtype="int32", name=x) for x in ("source", "target"))
    embedding = ka.ScaledEmbedding(size, dim, mask_zero=True, name="embedding")
    drop = keras.layers.Dropout(dropout, name="dropout")
    gru = keras.layers.GRU(units // 2, return_sequences=True, return_state=True)
    encoded, *states = keras.layers.Bidirectional(gru, name="encoder")(drop(embedding(source)))
    states = keras.layers.Concatenate(name="states")(states)
    state = keras.layers.Dense(units, activation="tanh", name="bridge")(states)
    score = ka.scores.Additive(units) if mode == "bahdanau" else "general"
    options = {"mode": mode, "attention_dim": units, "return_attention_scores": True}
    cell = ka.AttentionCell(keras.layers.GRUCell(units), score, **options)
    decoder = ka.AttentionRNN(cell, return_sequences=True, name="decoder")
    x, _ = decoder(drop(embedding(target)), drop(encoded), initial_state=[state])
    x = keras.layers.Dense(dim, name="output")(drop(x))
    return keras.Model([source, target], embedding(x, reverse=True))


def build(size, options):
    """The model of the options for so many tokens."""
    training.prepare(options)
    if options.model != "transformer":
        sizes = (64, 64) if options.small else (128, 256)
        return recurrent(size, options.model, *sizes, options.dropout)
    sizes = (1, 64, 128, 2) if options.small else (4, 128, 256, 4)
    return transformer(size, *sizes, options.dropout, options.positions)


def optimizer(options, steps):
    """Adam with a moving mean of the weights. Of a short run that and the warmup are short."""
    rate, warmup = options.learning_rate, min(options.warmup, max(1, steps // 4))
    schedule = training.warmup_and_cosine(rate, steps, warmup)
    if options.schedule == "inverse-sqrt":
        schedule = ka.schedules.InverseSquareRoot(1, warmup, scale=rate * warmup**0.5)
    mean = {"use_ema": True, "ema_momentum": 1 - 1 / min(500, max(2, steps // 10))}
    return keras.optimizers.Adam(schedule, beta_2=0.98, epsilon=1e-9, global_clipnorm=1.0, **mean)


def steps(model):
    """`start` and `step` of a recurrent model, as those of an `EncoderDecoder`."""
    names = "encoder", "bridge", "decoder", "output", "embedding"
    encoder, bridge, decoder, output, embedding = map(model.get_layer, names)
    encode = keras.Model(model.inputs[0], [encoder.output[0], bridge.output])

    def start(source, prompt, length):
        encoded, state = encode(source)
        states = keras.tree.flatten(decoder.cell.start_states(encoded, [state], source != 0))
        return prompt[:, -1], states[:-3], states[-3:]  # The last: keys, values and mask.

    def step(tokens, cache, memory):
        x, states = decoder.cell(embedding(tokens[:, None])[:, 0], [[*cache, *memory]])
        x, _ = decoder.cell.split_outputs(x)
        return embedding(output(x), reverse=True), keras.tree.flatten(states)[:-3]

    return start, step


def translator(model, tokenizer, beams, rows=64):
    """A function from sentences to translations, by beam search; one beam is greedy."""
    options = {"num_beams": beams, "num_return": None, "stop_tokens": [int(STOP)]}

    def search(source):
        first, most = keras.ops.full_like(source[:, :1], START), source.shape[1] * 3 // 2 + 8
        if isinstance(model, ka.EncoderDecoder):
            return model.generate(source, first, most, "beam_search", **options)
        start, step = steps(model)
        given = start(source, first, most)
        return ka.generation.beam_search(step, *given, max_tokens=most, **options)

    if not isinstance(model, ka.EncoderDecoder):
        search = ka.generation.compiled(search, model)

    def translate(sentences):
        sources = [np.append(row, STOP) for row in texts.encode(tokenizer, sentences)]
        found, order = {}, sorted(range(len(sources)), key=lambda index: len(sources[index]))
        while order:
            part, order = order[:rows], order[rows:]
            # Empty rows, so that there is one program for each length.
            empty = [sources[0][:0]] * (min(rows, len(sources)) - len(part))
            read = [sources[index] for index in part] + empty
            tokens = keras.ops.convert_to_numpy(search(texts.pad(read, multiple=16)).tokens)
            found |= zip(part, tokenizer.decode_batch(tokens.tolist()), strict=False)
        return [found[index] for index in range(len(sources))]

    return translate


def draw_attention(path, model, tokenizer, sentence, translation):
    """What the subwords of a translation attended to: the mean over layers and heads."""
    source, target = texts.encode(tokenizer, [sentence, translation])
    inputs = [np.append(source, STOP)[None], np.append(START, target)[None]]
    if isinstance(model, ka.EncoderDecoder):
        scores = ka.visualization.collect_attention(model, inputs)
        scores = [x[0] for name, x in scores.items() if name.endswith("cross_attention")]
        weights = np.mean(scores, axis=(0, 1))
    else:
        weights = keras.Model(model.inputs, model.get_layer("decoder").output[1])(inputs)[0, 0]
    words = ([*map(tokenizer.id_to_token, row), "[STOP]"] for row in (target, source))
    figure = ka.visualization.plot_attention(weights, *words)
    figure.savefig(path, dpi=100, format=path.suffix[1:] or "png")


def train(argv):
    """Trains a model and measures its translations, unless that is done."""
    parser = shared.command_line(PROGRAM, __doc__)
    parser.add_argument("--model", choices=DEFAULTS, default="transformer")
    shared.add_source(parser, "--data-dir", "a folder of pairs")
    parser.add_argument("--small", action="store_true", help="a small model, for a quick try")
    parser.add_argument("--schedule", choices=["inverse-sqrt", "cosine"], help="of learning rates")
    parser.add_argument("--positions", choices=POSITIONS, help="of the transformer")
    shared.add_options(
        parser,
        ("source", str, None, "language; by default en, or pt of TensorFlow Datasets"),
        ("target", str, None, "language; by default de, or en of TensorFlow Datasets"),
        ("epochs", at_least(1), None, "rounds over the pairs"),
        ("batch-tokens", at_least(64), None, "subwords of a batch, padding included"),
        ("vocabulary-size", at_least(400), 6000, "subwords of both languages together, at most"),
        ("dropout", shared.fraction, None, "rate of dropout"),
        ("learning-rate", shared.positive, None, "the highest"),
        ("limit", at_least(2), None, "pairs of each part, at most"),
        ("beams", at_least(1), 4, "of the search for a translation"),
        ("model-parallel", at_least(1), 1, "how many devices share the weights, on JAX"),
    )
    shared.add_training_options(parser, None)
    model = parser.parse_known_args(argv)[0].model
    parser.set_defaults(output=Path(f"runs/translation-{model}"), **DEFAULTS[model])
    options = shared.parse(parser, argv)
    if options.positions and options.model != "transformer":
        raise UsageError(f"--positions is for the transformer. --model is {options.model}.")
    jax = keras.backend.backend() == "jax"
    if (n := options.devices) % (m := options.model_parallel) or (m > 1 and not jax):
        raise UsageError(f"--model-parallel {m} is for JAX, and must divide the --devices {n}.")
    if options.sample and (options.source or options.target):
        raise UsageError("--source and --target are not for --sample, from English to German.")
    settings = {**vars(options), "data_dir": bool(options.data_dir), "output": None}
    with shared.Run(options.output, PROGRAM, settings) as run:
        if not run.finished:
            fit(run, options)
        names = "test_bleu", "test_greedy_bleu", "validation_bleu", "bleu_signature"
        print(f"{options.output}:", *(f"{name} {run.figures[name]}" for name in names), sep="\n  ")


def fit(run, options):
    """Trains on the pairs of the first part, and translates the others."""
    import sacrebleu

    facts, parts = pairs.load(options.data_dir, options.source, options.target, options.sample)
    parts = pairs.limited(parts, options.limit, options.seed)
    run.begin(pairs.summary(parts), **facts)

    sentences, special = parts["train"][0] + parts["train"][1], ["[START]", "[STOP]"]
    learned = "unigram", sentences, options.vocabulary_size, special
    tokenizer = texts.tokenizer_of(run, lambda: texts.train_tokenizer(*learned))
    trained, validation = (batches(tokenizer, parts[x], options) for x in ("train", "validation"))

    size = tokenizer.get_vocab_size()

    def share(devices):
        mesh = np.reshape(devices, (-1, options.model_parallel))
        mesh = keras.distribution.DeviceMesh(mesh.shape, ["batch", "model"], mesh)
        layout = ka.distribution.layout_map(mesh, build(size, options))
        keras.utils.clear_session()  # The next model's weights have the same names.
        return keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch")

    with training.devices(options.devices, share if options.model_parallel > 1 else None):
        model, adam = build(size, options), optimizer(options, options.epochs * len(trained))
        model.compile(adam, ka.losses.SmoothedCrossentropy(), jit_compile=options.jit)
        # The mean of the weights is what is measured, and what the model has in the end.
        mean = keras.callbacks.SwapEMAWeights()
        how = training.resuming(run, trained, options.epochs, mean)
        model.fit(trained, validation_data=validation, **how)
    run.write(shared.MODEL, model.save)
    figures, bleu = {}, sacrebleu.BLEU()
    for kind, beams in (("_greedy", 1), ("", options.beams)):
        if kind or beams > 1:
            translate = translator(model, tokenizer, beams)
        for part in ("validation", "test"):
            print(f"Translating the {part} sentences with --beams {beams} ...", flush=True)
            found = translate(parts[part][0])
            figures[f"{part}{kind}_bleu"] = bleu.corpus_score(found, [parts[part][1]]).score
    run.write("test.txt", lambda path: path.write_text("\n".join([*found, ""]), encoding="utf-8"))
    first = parts["test"][0][0], found[0]
    run.write("alignment.png", lambda path: draw_attention(path, model, tokenizer, *first))
    run.finish(**figures, bleu_signature=str(bleu.get_signature()))


def translate(argv):
    """Prints a line for each sentence, an empty one where it is not translated."""
    parser = shared.command_line(f"{PROGRAM} translate", translate.__doc__)
    parser.add_argument("directory", type=Path, metavar="DIR", help="of a finished run")
    parser.add_argument("sentences", nargs="+", metavar="sentence")
    parser.add_argument("--beams", type=at_least(1), default=4, help="of the search; default: 4")
    parser.add_argument("--picture", type=Path, help="draw what the first translation attended to")
    options = shared.parse(parser, argv)
    _, model = shared.load_run(options.directory, PROGRAM, options.sentences)
    tokenizer = texts.load_tokenizer(options.directory)
    # An argument that is not UTF-8 reaches Python as surrogates, which no tokenizer takes.
    given = [x.encode("utf-8", "replace").decode() for x in options.sentences]
    known = [x for x in given if any(map(str.isalnum, tokenizer.decode(tokenizer.encode(x).ids)))]
    found = dict(zip(known, translator(model, tokenizer, options.beams)(known), strict=True))
    for text in given:
        if text not in found:
            print(f"{text!r} has no words that the model has seen.", file=sys.stderr)
        print(found.get(text, ""))
    if options.picture and known:
        try:
            draw_attention(options.picture, model, tokenizer, known[0], found[known[0]])
        except ValueError as error:  # of Matplotlib, which says what suffixes it can write
            raise UsageError(f"--picture {options.picture}: {error}") from None


main = shared.program(train, translate=translate)

if __name__ == "__main__":
    sys.exit(main())
