"""Is a movie review positive? Trains attention models on IMDB, and labels new texts.

    python -m examples.imdb_classification [--model ngrams|transformer|post] [--data-dir DIR] ...
    python -m examples.imdb_classification --pretrained FOLDER [--lora RANK] ...
    python -m examples.imdb_classification predict DIR "text" ...

KERAS_BACKEND is tensorflow, jax or torch. Without --data-dir the reviews come from TensorFlow
Datasets, and if they are unavailable, from a small synthetic sample, and the program says so. The
folder --output gets model.keras, tokenizer.json and figures.json. If it is interrupted, the same
command resumes after the last finished epoch. With --pretrained the model and its tokens come from
a folder of Hugging Face's format.
"""

import sys
from pathlib import Path

import keras
import numpy as np

import keras_attention
from examples import imdb_ngrams, imdb_reviews, shared, texts, training
from examples.shared import at_least
from keras_attention.visualization import collect_attention

PROGRAM = "examples.imdb_classification"
DEFAULT = "transformer"
# What each model is trained with, where the command line does not say otherwise.
RECIPES = {
    "transformer": dict(vocabulary_size=100_000, max_length=512, batch_size=128, epochs=1),
    "post": dict(vocabulary_size=20_000, max_length=80, batch_size=32, epochs=2),
    "ngrams": dict(vocabulary_size=100_000, max_length=1024, batch_size=128, epochs=3),
    "pretrained": dict(vocabulary_size=None, max_length=256, batch_size=16, epochs=3),
}
NGRAMS = "transformer", "ngrams"  # Beside words these read n-grams of 1, 2 and 3 words.

# Tokens: 0 is padding, 1 an unknown word, and then come the words by frequency.

UNKNOWN = 1
WORD = r"\w+(?:['’]\w+)*"
WORD_OR_MARK = rf"{WORD}|[.!?]+|[^\w\s]"


def learn_tokenizer(reviews, model, size):
    """A tokenizer of the most frequent words; but for the post's model, marks are words too."""
    word, least = (WORD, 1) if model.startswith("post") else (WORD_OR_MARK, 2)
    how = {"word": word, "lowercase": True, "min_frequency": least}
    return texts.train_tokenizer("words", map(clean, reviews), size, **how)


def clean(text):
    """A review without breaks of lines."""
    return text.replace("<br />", " ")


def kept(tokens, settings):
    """The tokens of a review that a model reads: those at both ends, or, in the post, the last."""
    cut = len(tokens) - settings["max_length"]
    first = 0 if settings["model"].startswith("post") else settings["max_length"] // 2
    return [*tokens[:first], *tokens[first + cut :]] if cut > 0 else tokens


def encode(tokenizer, reviews, settings):
    """A row of numbers for each review."""
    whole = settings["model"] == "pretrained"  # It has tokens of beginning and end, and one 0.
    rows = texts.encode(tokenizer, map(clean, reviews), special=whole)
    rows = [kept(row.tolist(), settings) or [0 if whole else UNKNOWN] for row in rows]
    return [np.array(row, "int32") + whole for row in rows]


def pad(rows, settings):
    """Rows as one array, of few different lengths, so that there are few programs to compile."""
    return texts.pad(rows, min(-(-max(map(len, rows)) // 128) * 128, settings["max_length"]))


# Models, from numbers to the probability that a review is positive. All mask padding. `predict`
# shows the weights of the layer named "attention".


def transformer(size, ngrams, length):
    """Wide and deep (Cheng et al. 2016): one query sums up the words of a block and n-grams."""
    ids = keras.Input((None, 4), dtype="int32", name="ids")
    mask = keras.ops.not_equal(ids[..., 0], 0)
    x = keras.layers.Embedding(size, 64, name="words")(ids[..., 0])
    x = keras.layers.Dropout(0.3, (None, None, 1))(x)
    x = keras.layers.Dropout(0.2)(keras_attention.LearnedPositionEmbedding(length)(x))
    x = keras_attention.TransformerBlock(128, 4, residual="pre")(x, mask=mask)
    pooling = keras_attention.AttentionPooling(name="attention")
    x, weights = pooling(x, mask=mask, return_attention_scores=True)
    x = keras.layers.Dropout(0.5)(keras.layers.LayerNormalization()(x))
    deep = keras.layers.Dense(1, dtype="float32", name="deep")(x)
    evidence = imdb_ngrams.evidence(ids[..., 1:], ngrams)
    evidence = keras.ops.matmul(keras.ops.cast(weights[:, 0], "float32"), evidence)
    # Twice, so that weights of n-grams learn faster than others.
    logit = keras.ops.add(deep, imdb_ngrams.total(2 * evidence[:, 0], mask))
    output = keras.layers.Activation("sigmoid", dtype="float32", name="probability")(logit)
    return keras.Model(ids, output, name="classifier")


def post(ids, size, positions):
    """The model of the post "A Brief Reading of 'Attention is All You Need'", with a mask."""
    x = keras.layers.Embedding(size, 128, mask_zero=True, name="embedding")(ids)
    if positions:
        x = keras_attention.SinCosPositionEmbedding(128)(x)
    x = keras_attention.Attention(8, 16, name="attention")([x, x, x])
    x = keras.layers.GlobalAveragePooling1D()(x)
    return keras.layers.Dropout(0.5)(x)


def build(settings, size, ngrams=0, folder_model=None):
    """The classifier of so many words and n-grams, or of the model of a folder."""
    if settings["model"] == "ngrams":
        return imdb_ngrams.build(size, ngrams)
    if settings["model"] == "transformer":
        return transformer(size, ngrams, settings["max_length"])
    ids = keras.Input((None,), dtype="int32", name="ids")
    if folder_model:
        x = keras.layers.Dropout(0.1)(texts.summary(ids, folder_model, settings["lora"]))
    else:
        x = post(ids, size, settings["model"] == "post-positions")
    # In float32: bfloat16 cannot tell 0.996 from 1.
    x = keras.layers.Dense(1, "sigmoid", dtype="float32", name="probability")(x)
    return keras.Model(ids, x, name="classifier")


# Training


def train(run, source, train_set, test_set, options):
    """Trains a model, or resumes it, and writes what the run is for.

    Epochs are measured on the test reviews, as in the post, or with --validation on training ones.
    Nothing is chosen by either: the model that is kept is the last.
    """
    settings, seed = run.settings, options.seed
    train_set, test_set = (found.limited(options.limit, seed) for found in (train_set, test_set))
    sets = {"train": train_set, "test": test_set}
    if options.validation:
        sets["train"], sets["validation"] = train_set.split(options.validation, seed)
    training.prepare(options)
    model = tokenizer = None
    if folder := options.pretrained:  # Before anything is written: it may be wrong.
        model, tokenizer = texts.load_pretrained(folder, settings["max_length"], "--max-length")
    sizes = {name: len(found) for name, found in sets.items()}
    data = [found.checksum() for found in sets.values()]
    run.begin({"data": data}, dataset=source, sizes=sizes)
    labels = sets["train"].labels
    learn = sets["train"].texts, settings["model"], settings["vocabulary_size"]
    tokenizer = texts.tokenizer_of(run, lambda: tokenizer or learn_tokenizer(*learn))
    rows = {name: encode(tokenizer, found.texts, settings) for name, found in sets.items()}
    steps = settings["epochs"] * -(-len(rows["train"]) // settings["batch_size"])
    size, ngrams, optimizer = tokenizer.get_vocab_size(), 0, keras.optimizers.Adam()
    if settings["model"] in NGRAMS:
        rows, ngrams = imdb_ngrams.number(run, rows, size)
    classifier = build(settings, size, ngrams, model)
    if ngrams:
        imdb_ngrams.set_ratios(classifier, rows["train"], labels)
    if settings["model"] == "ngrams":
        optimizer = imdb_ngrams.optimizer(steps)
    elif settings["model"] == "transformer":
        # Few steps are larger. The epsilon, above Adam's own, keeps rare n-grams nearer to 0.
        peak, warmup = min(5e-3, 0.294 / steps), max(1, round(steps / 2))
        rate = training.warmup_and_cosine(peak, steps, warmup)
        optimizer = keras.optimizers.Adam(rate, epsilon=1e-5)
    elif model:
        optimizer = training.fine_tuning(settings["learning_rate"], steps)
    how = {"metrics": ["accuracy"], "jit_compile": options.jit}
    classifier.compile(optimizer, "binary_crossentropy", **how)
    how = settings["batch_size"], lambda some: pad(some, settings), seed, options.devices
    batches = {
        name: training.batches_by_length(rows[name], found.labels[:, None], *how, name == "train")
        for name, found in sets.items()
    }
    measured, adapters = batches.get("validation", batches["test"]), bool(options.lora)
    how = training.resuming(run, batches["train"], settings["epochs"], adapters=adapters)
    classifier.fit(batches["train"], validation_data=measured, **how)
    loss, accuracy = classifier.evaluate(batches["test"], verbose=0)
    run.write(shared.MODEL, keras.Model(classifier.input, classifier.output).save)
    run.finish(test_loss=loss, test_accuracy=accuracy)


# Prediction


def predict(argv):
    """Prints what the model of a run says of texts, and which of their words it attended to."""
    parser = shared.command_line(f"{PROGRAM} predict", predict.__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR", help="a finished run's --output")
    parser.add_argument("texts", nargs="+", metavar="text")
    options = parser.parse_args(argv)
    figures, classifier = shared.load_run(options.folder, PROGRAM, options.texts)
    settings, tokenizer = figures["settings"], texts.load_tokenizer(options.folder)
    learned = imdb_ngrams.load(options.folder) if settings["model"] in NGRAMS else None
    for review in options.texts:
        review = " ".join(clean(review.encode("utf-8", "replace").decode("utf-8")).split())
        (row,) = encode(tokenizer, [review], settings)
        words = [review[a:b].lower() for a, b in tokenizer.encode(review).offsets]
        known = (settings["model"] == "pretrained") | (row != UNKNOWN)
        words = list(zip(kept(words, settings), known.tolist(), strict=False))
        if not any(known and any(map(str.isalnum, word)) for word, known in words):
            print(f'no label  "{review[:60]}"\n    it has no words that the model knows')
            continue
        if learned:
            row = imdb_ngrams.add_numbers(row, learned, tokenizer.get_vocab_size())
        numbers = pad([row], settings)
        probability = float(classifier.predict_on_batch(numbers)[0, 0])
        label = "positive" if probability >= 0.5 else "negative"
        print(f'{label} {probability:.3f}  "{review[:60]}"')
        if settings["model"] != "pretrained":
            print(f"    attended most: {attended(classifier, numbers, words)}")


def attended(classifier, numbers, words):
    """The words with the largest weights, in percentages that sum to 100."""
    scores = collect_attention(classifier, numbers).items()
    (weights,) = (found[0] for name, found in scores if name.startswith("attention"))
    weights = np.asarray(weights, "float32").sum(axis=(0, 1))
    totals = {}
    for (word, known), weight in zip(words, weights / weights.sum(), strict=False):
        name = word if known else f"{word} (unknown)"
        totals[name] = totals.get(name, 0.0) + float(weight)
    ranking = sorted(totals, key=totals.get, reverse=True)
    if len(ranking) > 8:
        ranking[8:], totals["others"] = ["others"], sum(totals[name] for name in ranking[8:])
    return ", ".join(f"{name} {totals[name]:.1%}" for name in ranking)


# The command line


def settings_of(options):
    """What the results of a command line depend on: the model's recipe, but for what is given."""
    name = "pretrained" if options.pretrained else options.model or DEFAULT
    name = {"best": "ngrams"}.get(name, name)
    given = {key: value for key, value in vars(options).items() if value is not None}
    settings = {**vars(options), **RECIPES[name], **given, "model": name}
    if settings.pop("positions"):
        settings["model"] += "-positions"
        if options.limit and not options.epochs:
            settings["epochs"] = 3  # They are larger than new words' vectors: it learns slowly.
    if options.pretrained and not options.learning_rate:
        settings["learning_rate"] = 5e-4 if options.lora else 2e-5
    sources = {bool(options.data_dir): "folder", options.sample: "sample"}
    settings["data_source"] = sources.get(True, "TensorFlow Datasets")
    settings["weights"] = options.pretrained and texts.pretrained_checksum(options.pretrained)
    return settings | dict.fromkeys(["output", "data_dir", "sample", "devices", "pretrained"])


def command(argv):
    """Trains a model, unless that is done, and prints how many test reviews it labels rightly."""
    parser = shared.command_line(PROGRAM, __doc__)
    models = "best", "ngrams", "transformer", "post"
    parser.add_argument("--model", choices=models, help=f"default: {DEFAULT}")
    parser.add_argument("--positions", action="store_true", help="of --model post")
    parser.add_argument("--pretrained", metavar="FOLDER", help="a model to train further")
    shared.add_source(parser, "--data-dir", "an unpacked aclImdb folder")
    shared.add_options(
        parser,
        ("lora", at_least(1), None, "train adapters of this rank alone, of --pretrained"),
        ("learning-rate", shared.positive, None, "of --pretrained"),
        ("epochs", at_least(1), None, "rounds over the reviews; by default, as below, the model's"),
        ("batch-size", at_least(1), None, "reviews of a step"),
        ("max-length", at_least(1), None, "words of a review, at most"),
        ("vocabulary-size", at_least(3), None, "different words, at most"),
        ("limit", at_least(2), None, "training reviews, and test reviews, at most"),
        ("validation", shared.fraction, 0.0, "the part of training reviews to measure epochs on"),
    )
    training.add_training_options(parser, None)
    options = parser.parse_args(argv)
    if options.positions and options.model != "post":
        parser.error("--positions is for --model post")
    if options.pretrained and (options.model or options.vocabulary_size):
        parser.error("--model and --vocabulary-size are not for --pretrained, which has both")
    if not options.pretrained and (options.lora or options.learning_rate):
        parser.error("--lora and --learning-rate are for --pretrained")
    settings = settings_of(options)
    output = options.output or Path(f"runs/imdb-{settings['model']}")
    with shared.Run(output, PROGRAM, settings) as run:
        if run.finished:
            print(f"The run in {output} is finished already.")
        else:
            data = imdb_reviews.load(options.data_dir, options.sample)
            with training.devices(options.devices):
                train(run, *data, options)
    epochs = f"{settings['epochs']} epoch{'s' * (settings['epochs'] != 1)}"
    print(f"test accuracy {run.figures['test_accuracy']:.4f} after {epochs}")
    sizes = "{train:,} training and {test:,} test reviews".format(**run.figures["sizes"])
    print(f"on {run.figures['dataset']}: {sizes}\nin {output}")


main = shared.program(command, predict=predict)

if __name__ == "__main__":
    sys.exit(main())
