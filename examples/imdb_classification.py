"""Is a movie review positive? Trains attention models on IMDB, and labels new texts.

    python -m examples.imdb_classification [--model ngrams|transformer|post] [--data-dir aclImdb] …
    python -m examples.imdb_classification --pretrained FOLDER [--lora RANK] …
    python -m examples.imdb_classification predict DIR "text" …

KERAS_BACKEND is tensorflow, jax or torch. Without --data-dir the reviews come from TensorFlow
Datasets, and if they are unavailable, from a small synthetic sample, and the program says so. The
folder --output gets model.keras, tokenizer.json and figures.json. If it is interrupted, the same
command resumes after the last finished epoch. With --pretrained the model and its tokens come from
a folder of Hugging Face's format.
"""

import argparse
import sys
from pathlib import Path

import keras
import numpy as np

import keras_attention
from examples import imdb_ngrams, imdb_reviews, shared, texts
from keras_attention.visualization import collect_attention

PROGRAM = "examples.imdb_classification"
DEFAULT = "transformer"
# What each model is trained with, where the command line does not say otherwise.
RECIPES = {
    "transformer": dict(vocabulary_size=30_000, max_length=512, batch_size=128, epochs=1),
    "post": dict(vocabulary_size=20_000, max_length=80, batch_size=32, epochs=2),
    "ngrams": dict(vocabulary_size=100_000, max_length=1024, batch_size=128, epochs=3),
    "pretrained": dict(vocabulary_size=None, max_length=256, batch_size=16, epochs=3),
}
# Beside words these read n-grams of 1, 2 and 3 words: so many of each at most.
NGRAMS = {"transformer": 100_000, "ngrams": None}

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


def transformer(ids, size, ngrams, length):
    """A block on words and the n-grams that end at each, and a query that sums them up."""
    # N-grams that are not known add nothing: training reviews have fewer of them than others.
    of_words = keras.layers.Embedding(size, 64, name="words")
    of_ngrams = keras.layers.Embedding(ngrams, 64, embeddings_initializer="zeros", name="ngrams")
    ngrams = keras.ops.where(ids[..., 1:, None] > 0, of_ngrams(ids[..., 1:]), 0)
    parts = of_words(ids[..., 0]), ngrams[:, :, 0], ngrams[:, :, 1], ngrams[:, :, 2]
    x = keras.layers.Add()([keras.layers.Dropout(0.3, (None, None, 1))(part) for part in parts])
    x = keras.layers.Dropout(0.2)(keras_attention.LearnedPositionEmbedding(length)(x))
    mask = keras.ops.not_equal(ids[..., 0], 0)
    x = keras_attention.TransformerBlock(128, 4, residual="pre")(x, mask=mask)
    x = keras_attention.AttentionPooling(name="attention")(x, mask=mask)
    return keras.layers.Dropout(0.5)(keras.layers.LayerNormalization()(x))


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
    shape = (None, 4) if settings["model"] == "transformer" else (None,)
    ids = keras.Input(shape, dtype="int32", name="ids")
    if folder_model:
        x = keras.layers.Dropout(0.1)(texts.summary(ids, folder_model, settings["lora"]))
    elif settings["model"] == "transformer":
        x = transformer(ids, size, ngrams, settings["max_length"])
    else:
        x = post(ids, size, settings["model"] == "post-positions")
    # In float32 always: bfloat16 cannot tell 0.996 from 1.
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
    full = source != imdb_reviews.SAMPLE and train_set.is_full() and test_set.is_full()
    sets = {"train": train_set, "test": test_set}
    if options.validation:
        sets["train"], sets["validation"] = train_set.split(options.validation, seed)
    keras.utils.set_random_seed(seed)
    model = tokenizer = None
    if folder := options.pretrained:  # Before anything is written: it may be wrong.
        model, tokenizer = texts.load_pretrained(folder, settings["max_length"], "--max-length")
    facts = {"dataset": source, "full_imdb": full and not options.validation}
    facts["sizes"] = {name: len(found) for name, found in sets.items()}
    run.begin({"data": [found.checksum() for found in sets.values()]}, **facts)
    labels = sets["train"].labels
    learn = sets["train"].texts, settings["model"], settings["vocabulary_size"]
    tokenizer = texts.tokenizer_of(run, lambda: tokenizer or learn_tokenizer(*learn))
    rows = {name: encode(tokenizer, found.texts, settings) for name, found in sets.items()}
    steps = settings["epochs"] * -(-len(rows["train"]) // settings["batch_size"])
    size, ngrams, optimizer = tokenizer.get_vocab_size(), 0, keras.optimizers.Adam()
    if settings["model"] in NGRAMS:
        rows, ngrams = imdb_ngrams.number(run, rows, labels, size, NGRAMS[settings["model"]])
    classifier = build(settings, size, ngrams, model)
    if settings["model"] == "ngrams":
        imdb_ngrams.set_ratios(classifier, rows["train"], labels)
        optimizer = imdb_ngrams.optimizer(steps)
    elif settings["model"] == "transformer":
        imdb_ngrams.begin_with_ratios(classifier, rows["train"], labels)
        # With a larger epsilon than Adam's own, rare n-grams stay nearer to where they start.
        optimizer = keras.optimizers.Adam(texts.warmup_and_cosine(1.5e-3, steps, 0.5), epsilon=1e-5)
    elif model:
        optimizer = texts.fine_tuning(settings["learning_rate"], steps)
    jit = options.jit or keras.backend.backend() == "jax"
    classifier.compile(optimizer, "binary_crossentropy", metrics=["accuracy"], jit_compile=jit)
    how = settings["batch_size"], lambda some: pad(some, settings), seed, options.devices
    batches = {
        name: texts.batches_by_length(rows[name], found.labels[:, None], *how, name == "train")
        for name, found in sets.items()
    }
    classifier.fit(
        batches["train"],
        validation_data=batches.get("validation", batches["test"]),
        epochs=settings["epochs"],
        initial_epoch=len(run.epochs),
        shuffle=False,
        verbose=shared.on_terminal(),
        callbacks=[shared.Epochs(run, batches["train"], adapters=bool(options.lora))],
    )
    loss, accuracy = classifier.evaluate(batches["test"], verbose=0)
    run.write(shared.MODEL, keras.Model(classifier.input, classifier.output).save)
    run.finish(test_loss=loss, test_accuracy=accuracy)


# Prediction


def predict(folder, reviews):
    """Prints what the model of a run says of texts, and which of their words it attended to."""
    figures, classifier = shared.load_run(folder, PROGRAM, reviews)
    settings, tokenizer = figures["settings"], texts.load_tokenizer(folder)
    learned = imdb_ngrams.load(folder) if settings["model"] in NGRAMS else None
    for review in reviews:
        review = " ".join(review.encode("utf-8", "replace").decode("utf-8").split())
        (row,) = encode(tokenizer, [review], settings)
        words = [clean(review)[a:b].lower() for a, b in tokenizer.encode(clean(review)).offsets]
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


def command(argv):
    """Trains, or predicts."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(f"python -m {PROGRAM}", None, __doc__, formatter_class=form)
    if argv[:1] == ["predict"]:
        parser.add_argument("folder", type=Path, metavar="DIR", help="a finished run's --output")
        parser.add_argument("texts", nargs="+", metavar="text")
        options = parser.parse_args(argv[1:])
        return predict(options.folder, options.texts)
    option = parser.add_argument
    option("--model", choices=("best", "ngrams", "transformer", "post"), help=f"default: {DEFAULT}")
    option("--positions", action="store_true", help="of --model post")
    option("--pretrained", metavar="FOLDER", help="train the model of a folder further")
    option("--lora", type=shared.at_least(1), metavar="RANK", help="by adapters of this rank")
    option("--learning-rate", type=shared.positive, metavar="RATE", help="of --pretrained")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--data-dir", metavar="DIR", help="an unpacked aclImdb folder")
    source.add_argument("--sample", action="store_true", help="synthetic reviews, not IMDB")
    for name in ("epochs", "batch-size", "max-length", "vocabulary-size"):
        least = shared.at_least(3 if name == "vocabulary-size" else 1)
        option(f"--{name}", type=least, metavar="N", help="default: the model's")
    option("--limit", type=shared.at_least(2), metavar="N", help="train on N, and test on N")
    help = "measure epochs on so much of the training reviews, and the test set only at the end"
    option("--validation", type=shared.fraction, default=0.0, metavar="FRACTION", help=help)
    shared.add_training_options(parser)
    options = parser.parse_args(argv)
    if options.positions and options.model != "post":
        parser.error("--positions is for --model post")
    if options.pretrained and (options.model or options.vocabulary_size):
        parser.error("--model and --vocabulary-size are not for --pretrained, which has both")
    if not options.pretrained and (options.lora or options.learning_rate):
        parser.error("--lora and --learning-rate are for --pretrained")
    return start(options)


def start(options):
    """Reads the reviews, trains, and prints the result."""
    name = "pretrained" if options.pretrained else options.model or DEFAULT
    name += "-positions" if options.positions else ""
    settings = {"model": {"best": "ngrams"}.get(name, name)}
    settings |= RECIPES[settings["model"].removesuffix("-positions")]
    if options.limit and options.positions:
        settings["epochs"] = 3  # They are larger than new word vectors: it learns slowly at first.
    settings |= {key: vars(options)[key] for key in RECIPES["post"] if vars(options)[key]}
    given = ("seed", "limit", "validation", "jit", "mixed_precision")
    settings |= {key: vars(options)[key] for key in given}
    settings["data_source"] = imdb_reviews.asked_for(options.data_dir, options.sample)
    if options.pretrained:
        rate = options.learning_rate or (5e-4 if options.lora else 2e-5)
        settings |= {"pretrained": options.pretrained, "lora": options.lora, "learning_rate": rate}
    output = options.output or Path(f"runs/imdb-{name}")
    with shared.Run(output, PROGRAM, settings) as run:
        if run.finished:
            print(f"The run in {output} is finished already.")
        else:
            if options.pretrained:
                run.settings["weights"] = texts.pretrained_checksum(options.pretrained)
            if options.mixed_precision:
                keras.config.set_dtype_policy("mixed_bfloat16")
            *data, warning = imdb_reviews.load(options.data_dir, options.sample)
            if warning:
                shared.shout(warning)
            with shared.devices(options.devices):
                train(run, *data, options)
    print(f"test accuracy {run.figures['test_accuracy']:.4f} after {settings['epochs']} epochs")
    sizes = "{train:,} training and {test:,} test reviews".format(**run.figures["sizes"])
    print(f"on {run.figures['dataset']}: {sizes}\nin {output}")


def main(argv=None):
    """Runs the program and returns its exit status: 0, 2 for a user's mistake, 130 for Ctrl-C."""
    return shared.exit_status(command, argv)


if __name__ == "__main__":
    sys.exit(main())
