"""Is a movie review positive? Trains attention models on IMDB, and labels new texts.

    python -m examples.imdb_classification [--model attention|wide|ngrams|post] [--data-dir DIR] ...
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

import numpy as np

from examples import imdb_models, imdb_reviews, imdb_words, shared
from examples.later import imdb_ngrams, keras, keras_attention, texts, training
from examples.shared import at_least

PROGRAM = "examples.imdb_classification"
DEFAULT = "attention"
# Former names, which the files of runs may have.
FORMER = {"best": "ngrams", "transformer": "wide"}
# What each model is trained with, where the command line does not say otherwise.
RECIPES = {
    "attention": dict(vocabulary_size=30_000, max_length=512, batch_size=64, epochs=3),
    "wide": dict(vocabulary_size=100_000, max_length=512, batch_size=128, epochs=1),
    "post": dict(vocabulary_size=20_000, max_length=80, batch_size=32, epochs=2),
    "ngrams": dict(vocabulary_size=100_000, max_length=1024, batch_size=128, epochs=3),
    "pretrained": dict(vocabulary_size=None, max_length=256, batch_size=16, epochs=3),
}

# A picture of what a test review's words add to the logit, and about how many words it has.
PICTURE, SHOWN = "words.png", 40

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


def one_line(review):
    """A review in one line, of letters that can be printed."""
    return " ".join(clean(review.encode("utf-8", "replace").decode("utf-8")).split())


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
    longest = max(map(len, rows))
    several = min(128, max(16, 1 << (longest - 1).bit_length()))
    return texts.pad(rows, min(-(-longest // several) * several, settings["max_length"]))


# Training


def train(run, source, train_set, test_set, options):
    """Trains a model, or resumes it, and writes what the run is for.

    With --validation each epoch is measured on held-out training reviews. Nothing is chosen by
    them: the model that is kept is the last.
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
    size, ngrams = tokenizer.get_vocab_size(), 0
    optimizer, loss = keras.optimizers.Adam(), "binary_crossentropy"
    if settings["model"] in imdb_models.NGRAMS:
        rows, ngrams = imdb_ngrams.number(run, rows, size)
    classifier = imdb_models.build(settings, size, ngrams, model)
    if ngrams:
        imdb_ngrams.set_ratios(classifier, rows["train"], labels)
    if settings["model"] == "ngrams":
        optimizer = imdb_ngrams.optimizer(steps)
    elif settings["model"] == "attention":
        # The epsilon, above Adam's own, keeps words of few reviews from large steps.
        rate = training.warmup_and_cosine(2e-3, steps, max(1, round(steps / 10)))
        optimizer = keras.optimizers.Adam(rate, epsilon=1e-5)
        loss = keras.losses.BinaryCrossentropy(label_smoothing=0.1)
    elif settings["model"] == "wide":
        # Few steps are larger. The epsilon, above Adam's own, keeps rare n-grams nearer to 0.
        peak, warmup = min(5e-3, 0.294 / steps), max(1, round(steps / 2))
        rate = training.warmup_and_cosine(peak, steps, warmup)
        optimizer = keras.optimizers.Adam(rate, epsilon=1e-5)
    elif model:
        optimizer = training.fine_tuning(settings["learning_rate"], steps)
    classifier.compile(optimizer, loss, metrics=["accuracy"], jit_compile=options.jit)
    how = settings["batch_size"], lambda some: pad(some, settings), seed, options.devices
    batches = {
        name: training.batches_by_length(rows[name], found.labels[:, None], *how, name == "train")
        for name, found in sets.items()
    }
    how = training.resuming(run, batches["train"], settings["epochs"], adapters=bool(options.lora))
    classifier.fit(batches["train"], validation_data=batches.get("validation"), **how)
    loss, accuracy = classifier.evaluate(batches["test"], verbose=0)
    run.write(shared.MODEL, keras.Model(classifier.input, classifier.output).save)
    if settings["model"] == "attention":
        lengths = [abs(len(row) - SHOWN) for row in rows["test"]]
        shown = test_set.texts[int(np.argmin(lengths))]
        probability, names, shares, _ = read(classifier, tokenizer, settings, None, shown)
        title = f"{verdict(probability)}: what each word adds to the logit"
        run.write(PICTURE, lambda path: imdb_words.draw(path, names, shares, title))
    run.finish(test_loss=loss, test_accuracy=accuracy)


# Prediction


def read(classifier, tokenizer, settings, learned, review):
    """What a model says of a review: the probability of "positive", the words, and their shares.

    Shares are what the words add to the logit, of the model `attention`, and the bias; of others
    weights, and None. Nothing at all where the model knows no word.
    """
    review = one_line(review)
    (row,) = encode(tokenizer, [review], settings)
    words = [review[a:b].lower() for a, b in tokenizer.encode(review).offsets]
    known = (settings["model"] == "pretrained") | (row != UNKNOWN)
    words = list(zip(kept(words, settings), known.tolist(), strict=False))
    if not any(known and any(map(str.isalnum, word)) for word, known in words):
        return None
    if learned:
        row = imdb_ngrams.add_numbers(row, learned, tokenizer.get_vocab_size())
    numbers = pad([row], settings)
    probability = float(classifier.predict_on_batch(numbers)[0, 0])
    names = [word if known else f"{word} (unknown)" for word, known in words]
    shares = bias = None
    if settings["model"] == "attention":
        shares, bias = imdb_models.contributions(classifier, numbers)
    elif settings["model"] != "pretrained":
        shares = imdb_models.weights(classifier, numbers)
    return probability, names, None if shares is None else shares[: len(names)], bias


def verdict(probability):
    """The label, and how sure the model is of it."""
    label, sure = ("positive", probability), ("negative", 1 - probability)
    return "{}, {:.1%} sure".format(*max(label, sure, key=lambda pair: pair[1]))


def predict(argv):
    """Prints what the model of a run says of texts, and what each of their words adds to it."""
    parser = shared.command_line(f"{PROGRAM} predict", predict.__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR", help="a finished run's --output")
    parser.add_argument("texts", nargs="+", metavar="text")
    parser.add_argument("--page", type=Path, metavar="FILE", help="an HTML page of the last text")
    options = parser.parse_args(argv)
    figures, classifier = shared.load_run(options.folder, PROGRAM, options.texts)
    settings, tokenizer = figures["settings"], texts.load_tokenizer(options.folder)
    settings["model"] = FORMER.get(settings["model"], settings["model"])
    ngrams = settings["model"] in imdb_models.NGRAMS
    learned = imdb_ngrams.load(options.folder) if ngrams else None
    for review in options.texts:
        found = read(classifier, tokenizer, settings, learned, review)
        start = f'"{one_line(review)[:60]}"'
        if not found:
            print(f"no label: {start}\n    it has no words that the model knows")
            continue
        probability, names, shares, bias = found
        print(f"{verdict(probability)}: {start}")
        if bias is not None:
            print(f"    for positive: {imdb_words.signed(names, shares, 1)}")
            print(f"    for negative: {imdb_words.signed(names, shares, -1)}")
            print(
                f"    {shares.sum():+.2f} from words {bias:+.2f} = logit {shares.sum() + bias:+.2f}"
            )
        elif shares is not None:
            print(f"    attended most: {imdb_words.percentages(names, shares)}")
        if options.page and shares is not None:
            page = keras_attention.visualization.attention_html
            page(shares[None], None, names, options.page, verdict(probability))


# The command line


def settings_of(options):
    """What the results of a command line depend on: the model's recipe, but for what is given."""
    name = "pretrained" if options.pretrained else options.model or DEFAULT
    name = FORMER.get(name, name)
    given = {key: value for key, value in vars(options).items() if value is not None}
    settings = {**vars(options), **RECIPES[name], **given, "model": name}
    if settings.pop("positions"):
        settings["model"] += "-positions"
        if options.limit and not options.epochs:
            settings["epochs"] = 3  # They are larger than new words' vectors: it learns slowly.
    if options.pretrained and not options.learning_rate:
        settings["learning_rate"] = 5e-4 if options.lora else 2e-5
    # Of these only whether they were given: what was read, `figures.json` says as "dataset".
    settings["data_dir"] = bool(options.data_dir)
    settings["weights"] = options.pretrained and texts.pretrained_checksum(options.pretrained)
    return settings | dict.fromkeys(["output", "devices", "pretrained"])


def python():
    """The interpreter of this process, as it can be typed here."""
    path, here = Path(sys.executable), Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def command(argv):
    """Trains a model, unless that is done, and prints how many test reviews it labels rightly."""
    parser = shared.command_line(PROGRAM, __doc__)
    models = "attention", "wide", "ngrams", "post", *FORMER
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
        (
            "validation",
            shared.fraction,
            0.0,
            "the part of training reviews to measure epochs on",
        ),
    )
    shared.add_training_options(parser, None)
    options = shared.parse(parser, argv)
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
    if (output / PICTURE).exists():
        print(f"{output / PICTURE} shows what the words of a test review add to the logit.")
    print(f'Ask it:\n    {python()} -m {PROGRAM} predict {output} "A wonderful movie."')


main = shared.program(command, predict=predict)

if __name__ == "__main__":
    sys.exit(main())
