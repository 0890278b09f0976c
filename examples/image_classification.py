"""Classifies images by a compact Transformer, and draws what it looked at over them.

    python -m examples.image_classification [--data NAME or FOLDER] [--epochs N] ...
    python -m examples.image_classification predict DIR [FILE ...] [--picture FILE]

--data is a name of tensorflow_datasets, such as cifar10, or a folder with a folder of images for
each class. By default it is cifar10, or, if that is unavailable, the digits of scikit-learn, real
images of 8 by 8 pixels that are in its wheel. Images are cut into patches, which attend to one
another; a learned query weighs them. An interrupted run resumes by the same command.
"""

import sys
from pathlib import Path

import numpy as np

from examples import shared
from examples.later import keras, training
from examples.later import keras_attention as ka
from examples.shared import UsageError, at_least

PROGRAM = "examples.image_classification"
DIGITS, DEFAULT = "digits", "cifar10"
HOST = "www.tensorflow.org"
SUFFIXES = ".bmp", ".gif", ".jpeg", ".jpg", ".png", ".webp"


def load_images(name=None, size=None):
    """Images (n, H, W, C) of 0 to 255 and labels (n,), to train and to test, classes, and a name.

    `name` is a folder, a name of `tensorflow_datasets`, "digits", or None for what can be had.
    Images of a folder are resized to `size` pixels, or to those of the first.
    """
    if name is not None and Path(name).is_dir():
        return of_folder(Path(name), size)
    if name == DIGITS:
        return digits()
    if name is None:
        advice = "--data is for other images: a name of tensorflow_datasets, or a folder."
        return shared.or_sample(lambda: downloaded(DEFAULT), digits, False, DEFAULT, advice)
    try:
        return downloaded(name)
    except Exception as error:  # Missing packages, networks, disks, columns, … : no such images.
        raise UsageError(
            f"--data {name} is no folder of images, and TensorFlow Datasets has no images and "
            f"labels of that name here: {shared.one_line(error)}"
        ) from None


def downloaded(name):
    """The images of TensorFlow Datasets. Raises whatever keeps them from being had."""
    columns = shared.tensorflow_dataset(name, HOST)
    parts = [columns(split) for split in ("train", "test")]
    classes = [str(n) for n in range(int(parts[0]["label"].max()) + 1)]
    return *((rows["image"], rows["label"].astype("int64")) for rows in parts), classes, name


def split(images, labels, classes, name, seed=0):
    """A fifth to test, the same in all runs."""
    order = np.random.default_rng(seed).permutation(len(images))
    parts = order[len(order) // 5 :], order[: len(order) // 5]
    return (*((images[part], labels[part]) for part in parts), classes, name)


def digits():
    """The digits that scikit-learn has in its wheel, of 8 by 8 pixels."""
    from sklearn.datasets import load_digits

    found = load_digits()
    images = np.round(found.images * (255 / 16))[..., None].astype("uint8")
    return split(images, found.target.astype("int64"), [str(n) for n in range(10)], DIGITS)


def read_image(path, shape):
    """The pixels of a file, resized to a shape (H, W, C)."""
    from PIL import Image, UnidentifiedImageError

    height, width, channels = shape
    try:
        options = {"color_mode": "grayscale" if channels == 1 else "rgb"}
        if None not in (height, width):
            options |= {"target_size": (height, width), "interpolation": "bicubic"}
        image = keras.utils.load_img(path, **options)
        return keras.utils.img_to_array(image, "channels_last", "uint8")
    except UnidentifiedImageError:  # whose message has an address instead of the name
        raise UsageError(f"{path} cannot be read as an image: its format is unknown") from None
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise UsageError(f"{path} cannot be read as an image: {shared.one_line(error)}") from None


def of_folder(folder, size=None):
    """The images of a folder that has a folder of them for each class."""
    from sklearn.datasets import load_files

    suffixes = [*SUFFIXES, *map(str.upper, SUFFIXES)]
    found = load_files(folder, load_content=False, shuffle=False, allowed_extensions=suffixes)
    files, classes = found.filenames, found.target_names
    used, labels = np.unique(found.target, return_inverse=True)
    classes = [classes[n] for n in used]  # Others have no images.
    if len(used) < 2 or len(files) < 10:
        raise UsageError(
            f"--data {folder} must have at least two folders of images, a class each, and ten "
            f"images. It has {len(files)} in {len(classes)} folders."
        )
    size = size or min(read_image(files[0], (None, None, 3)).shape[:2])
    images = np.stack([read_image(path, (size, size, 3)) for path in files])
    return split(images, labels, classes, str(folder.resolve()))


def warped(images, draws, options):
    """Images that are rotated, scaled, shifted and mirrored, by draws (n, 5) from -1 to 1."""
    count, height, width, _ = images.shape
    size = np.array([height, width])[:, None]
    angle, scale = options.rotate * np.pi / 180 * draws[:, 0], 1 + options.scale * draws[:, 1]
    sine, cosine = scale * np.sin(angle), scale * np.cos(angle)
    across = np.where(options.mirror & (draws[:, 4] > 0), -1, 1)
    turn = np.array([[cosine, -sine * across], [sine, cosine * across]]).transpose(2, 0, 1)
    pixels = np.indices((height, width)).reshape(2, -1) - (size - 1) / 2
    at = turn @ pixels + (size - 1) / 2 + options.shift * size * draws[:, 2:4, None]
    first = np.floor(at).astype(int)
    part, found, row = at - first, 0, np.arange(count)[:, None]
    # The edge goes on beyond it.
    for down, right in np.ndindex(2, 2):
        corner = np.array([[down], [right]])
        y, x = (first + corner).clip(0, size - 1).transpose(1, 0, 2)
        share = np.abs(1 - down - part[:, 0]) * np.abs(1 - right - part[:, 1])
        found = found + share[..., None] * images[row, y, x]
    return found.reshape(images.shape).astype("float32")


def build(shape, classes, options):
    """A model from images (B, H, W, C) of 0 to 255 to logits (B, classes)."""
    patch = options.patch_size or max(2, min(shape[:2]) // 8)
    grid = shape[0] // patch, shape[1] // patch
    if 0 in grid:
        raise UsageError(f"--patch-size {patch} is larger than the images, {shape[0]}x{shape[1]}.")
    images = keras.Input(shape)
    x = keras.layers.Rescaling(1 / 127.5, -1.0)(images)
    # What is beyond the last whole patch is left out.
    bottom, right = shape[0] - patch * grid[0], shape[1] - patch * grid[1]
    x = keras.layers.Cropping2D(((0, bottom), (0, right)), data_format="channels_last")(x)
    for features in (options.dim // 2, options.dim):
        stem = {"padding": "same", "data_format": "channels_last", "activation": "gelu"}
        x = keras.layers.Conv2D(features, 3, **stem)(x)
    x = ka.PatchEmbedding(patch, options.dim, data_format="channels_last", name="patches")(x)
    x = ka.LearnedGridEmbedding(grid, name="positions")(x)
    x = keras.layers.Dropout(options.dropout)(x)
    parts = {"dropout": options.dropout, "residual": "pre", "activation": "gelu"}
    for n in range(options.layers):
        x = ka.TransformerBlock(2 * options.dim, 4, name=f"block_{n}", **parts)(x)
    x = keras.layers.LayerNormalization()(x)
    x, weights = ka.AttentionPooling(name="pooling")(x, return_attention_scores=True)
    x = keras.layers.Dropout(options.dropout)(x)
    logits = keras.layers.Dense(len(classes), dtype="float32", name="logits")(x)
    return keras.Model(images, {"logits": logits, "weights": weights})


def fit(run, data, options):
    """Trains a model, and measures it on the images that it has not seen."""
    (images, labels), tested, classes, name = data
    if options.validation:
        # Never the images that are tested at the end: to choose options by.
        (images, labels), tested, *_ = split(images, labels, classes, name, seed=1)
    parts = [images, labels, *tested]
    run.begin(
        {"images": shared.checksum(np.ascontiguousarray(part).tobytes() for part in parts)},
        dataset=name,
        classes=classes,
    )
    training.prepare(options)
    steps, draws = -(-len(images) // options.batch_size), {}

    def draw(rng):
        draws["warp"] = rng.uniform(-1, 1, (len(images), 5))
        # As sharp as those that are tested: interpolation blurs the others.
        draws["warp"][rng.random(len(images)) < options.unwarped, :4] = 0
        return np.array_split(rng.permutation(len(images)), steps)

    def arrays(rows):
        wanted = np.eye(len(classes), dtype="float32")[labels[rows]]
        return warped(images[rows], draws["warp"][rows], options), wanted

    with training.devices(options.devices):
        model = build(images.shape[1:], classes, options)
        trained = keras.Model(model.input, model.output["logits"])
        batches = training.Batches(draw, arrays, seed=options.seed, devices=options.devices)
        total = options.epochs * steps
        rate = keras.optimizers.schedules.CosineDecay(
            0.0, total, warmup_target=options.learning_rate, warmup_steps=total // 10
        )
        adam = keras.optimizers.AdamW(rate, weight_decay=0.05, global_clipnorm=1.0)
        loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)
        trained.compile(adam, loss, metrics=["accuracy"], jit_compile=options.jit)
        trained.fit(batches, **training.resuming(run, batches, options.epochs))
    found = probabilities(model, tested[0])[0].argmax(axis=-1)
    run.write(shared.MODEL, model.save)
    run.finish(test_accuracy=float(np.mean(found == tested[1])), tested=len(found))


def probabilities(model, images):
    """The probabilities (n, classes), and the weights (n, rows, columns) of the patches."""
    found = model.predict(images.astype("float32"), batch_size=256, verbose=0)
    grid = model.get_layer("positions").grid
    weights = found["weights"].astype("float32").reshape(len(images), *grid)
    return keras.ops.convert_to_numpy(keras.ops.softmax(found["logits"])), weights


def train(argv):
    """Trains a model, unless that is done, and prints how many images it classifies rightly."""
    parser = shared.command_line(PROGRAM, __doc__)
    degrees = shared.number(float, "at least 0 and below 90", lambda value: 0 <= value < 90)
    shared.add_options(
        parser,
        ("data", str, None, f"a name, {DIGITS} for one, or a folder: see above"),
        (
            "size",
            at_least(1),
            None,
            "side of a folder's images; by default the first one's",
        ),
        ("patch-size", at_least(1), None, "pixels of a patch; by default an eighth of the image"),
        ("layers", at_least(1), 2, "blocks of attention"),
        ("dim", at_least(1), 64, "features"),
        ("epochs", at_least(1), 60, "rounds over the images"),
        ("batch-size", at_least(1), 64, "images of a step"),
        ("dropout", shared.fraction, 0.1, "rate of dropout"),
        ("rotate", degrees, 10.0, "how far training images are rotated at most"),
        ("scale", shared.fraction, 0.1, "how much larger or smaller they are"),
        ("shift", shared.fraction, 0.1, "how far they are moved, as a part of their size"),
        ("unwarped", shared.fraction, 0.3, "the part of them that is left as it is"),
        ("learning-rate", shared.positive, 2e-3, "the highest"),
    )
    parser.add_argument("--mirror", action="store_true", help="mirror half of the training images")
    parser.add_argument("--validation", action="store_true", help="test a part of the training set")
    shared.add_training_options(parser, "runs/images")
    options = shared.parse(parser, argv)
    if options.dim % 4:
        raise UsageError(f"--dim must be a multiple of 4, for as many heads: {options.dim} is not.")
    data = load_images(options.data, options.size)
    settings = vars(options) | {"output": None}
    with shared.Run(options.output, PROGRAM, settings) as run:
        if not run.finished:
            fit(run, data, options)
        count, name = run.figures["tested"], run.figures["dataset"]
        print(f"accuracy: {run.figures['test_accuracy']:.4f} of {count} images of {name}")


def predict(argv):
    """Prints the class of images, a line for each, and draws what the model looked at."""
    parser = shared.command_line(f"{PROGRAM} predict", predict.__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR", help="the --output of a finished run")
    parser.add_argument("files", nargs="*", metavar="FILE", help="images; default: ten tested ones")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw what was looked at")
    options = shared.parse(parser, argv)
    figures, model = shared.load_run(options.folder, PROGRAM, options.files)
    shape, classes = model.input_shape[1:], figures["classes"]
    if options.files:
        names = options.files
        images = np.stack([read_image(path, shape) for path in names])
    else:
        _, (images, labels), *_ = load_images(figures["dataset"], figures["settings"]["size"])
        images, names = images[:10], [classes[label] for label in labels[:10]]
    found, weights = probabilities(model, images)
    titles = [f"{classes[row.argmax()]} ({row.max():.2f})" for row in found]
    for name, title in zip(names, titles, strict=True):
        print(f"{name}: {title}")
    if options.picture:
        figure = ka.visualization.overlay_attention(images, weights, titles)
        try:
            figure.savefig(options.picture)
        except (OSError, ValueError) as error:
            raise UsageError(f"--picture {options.picture} cannot be written: {error}") from None


main = shared.program(train, predict=predict)

if __name__ == "__main__":
    sys.exit(main())
