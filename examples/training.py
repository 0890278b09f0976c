"""How the examples train: batches, resuming after an interruption, devices."""

import contextlib
import shutil
import sys
import time

import keras
import numpy as np

from examples.later import quiet
from examples.shared import UsageError, one_line


def prepare(options):
    """Sets the seed of all random numbers, and the precision."""
    with quiet(), contextlib.suppress(ImportError):
        import tensorflow  # noqa: F401 - Keras does so in `fit` on any backend, where it is there.
    keras.utils.set_random_seed(options.seed)
    keras.config.set_dtype_policy("mixed_bfloat16" if options.mixed_precision else "float32")


def warmup_and_cosine(rate, steps, warmup, alpha=0.0):
    """A rate that rises linearly for some of the steps, and then falls to `alpha` of it."""
    return keras.optimizers.schedules.CosineDecay(
        rate / warmup, max(1, steps - warmup), alpha, warmup_target=rate, warmup_steps=warmup
    )


def fine_tuning(rate, steps):
    """Adam with decoupled weight decay and a linear warmup, followed by a cosine to 0."""
    rate = warmup_and_cosine(rate, steps, max(1, round(0.06 * steps)))
    made = keras.optimizers.AdamW(rate, weight_decay=0.01, global_clipnorm=1.0)
    made.exclude_from_weight_decay(var_names=["bias", "gamma", "beta", "scale"])
    return made


class Batches(keras.utils.PyDataset):
    """The batches of an epoch, whose order depends on the seed and the epoch alone.

    Args:
        draw: from a NumPy generator to a list of arrays of indices, one for each batch.
        arrays: from such indices to what `fit` takes.
        lengths: from such indices to the lengths of these arrays, where batches differ in them.
        seed, devices: of the order; how many share a batch, whose rows are repeated if need be.
    """

    def __init__(self, draw, arrays, lengths=None, seed=0, devices=1):
        super().__init__()
        self.draw, self.arrays, self.lengths = draw, arrays, lengths
        self.seed, self.devices = seed, devices
        self.start(0)

    def start(self, epoch):
        """Draws the batches of an epoch, counted from 0."""
        batches = self.draw(np.random.default_rng((self.seed, epoch)))
        self.batches = [np.resize(b, -(-len(b) // self.devices) * self.devices) for b in batches]
        if self.lengths:
            # On TensorFlow, Keras takes for constant what the first two batches have in common.
            lengths = np.array([self.lengths(batch) for batch in self.batches])
            differ = (lengths != lengths[0]).reshape(len(lengths), -1).sum(axis=1)
            self.batches.insert(1, self.batches.pop(int(differ.argmax())))

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self.arrays(self.batches[index])


def batches_by_length(rows, labels, size, pad, seed=0, devices=1, shuffle=True, pool=50):
    """`Batches` of padded rows of about the same length, in any order, and their labels."""
    lengths = np.array([len(row) for row in rows])

    def draw(rng):
        # `pool` batches are drawn, and their rows sorted: with them goes most of the padding.
        order = rng.permutation(len(rows)) if shuffle else np.arange(len(rows))
        found, drawn = [], pool * size if shuffle else len(rows)
        for start in range(0, len(rows), drawn):
            some = order[start : start + drawn]
            some = some[np.argsort(lengths[some], kind="stable")]
            found += [some[i : i + size] for i in range(0, len(some), size)]
        return [found[i] for i in rng.permutation(len(found))] if shuffle else found

    def arrays(indices):
        return pad([rows[i] for i in indices]), labels[indices]

    def length(indices):
        longest = rows[indices[np.argmax(lengths[indices])]]
        return pad([longest]).shape[1]

    return Batches(draw, arrays, length, seed, devices)


def resuming(run, batches, epochs, *callbacks, adapters=False):
    """Arguments of `fit`: for so many epochs, of which an interrupted run has had some."""
    return {
        "epochs": epochs,
        "initial_epoch": len(run.epochs),
        "shuffle": False,
        "verbose": on_terminal(),
        "callbacks": [*callbacks, Epochs(run, batches, adapters)],
    }


def on_terminal():
    """The `verbose` of `fit`: Keras's bar on a terminal, and nothing elsewhere."""
    return int(sys.stdout.isatty())


class Epochs(keras.callbacks.Callback):
    """Saves a run after each epoch, and goes on after the last one as if it had never ended.

    Keras's `BackupAndRestore` writes two files, one after the other. Here each epoch has a folder
    of them, which counts once `figures.json` has the epoch. Order and dropout depend on the seed
    and the epoch alone. Where output is no terminal, and has no bar, it prints a line a minute.

    `batches` may be `Batches`, drawn anew for each epoch. With `adapters` (LoRA) it saves what is
    trained, and nothing else: Keras would merge them into kernels, and train others on.
    """

    def __init__(self, run, batches=None, adapters=False):
        super().__init__()
        self.run, self.batches, self.adapters = run, batches, adapters

    def on_train_begin(self, logs=None):
        if not self.run.epochs:
            return
        folder = self.run.path / f"backup-{len(self.run.epochs)}"
        try:
            list(folder.iterdir())  # Keras would begin anew where it finds nothing.
            self._restore(folder)
        except (OSError, ValueError, KeyError) as error:
            raise UsageError(f"{folder} is damaged: {one_line(error)}") from None

    def on_epoch_begin(self, epoch, logs=None):
        rng = np.random.default_rng((self.run.settings["seed"], epoch, 1))
        seed = int(rng.integers(2**31))
        if keras.backend.backend() == "torch":  # TensorFlow would optimize its graphs anew.
            keras.utils.set_random_seed(seed)
        for variable in self.model.variables:
            if variable.name == "seed_generator_state":
                variable.assign(rng.integers(2**31, size=variable.shape))
        if self.batches:
            self.batches.start(epoch)
        self.number, self.begun = epoch + 1, time.perf_counter()
        self.shown = self.begun

    def on_train_batch_end(self, batch, logs=None):
        if not on_terminal() and time.perf_counter() - self.shown >= 60:
            self.shown = time.perf_counter()
            self.show(f"epoch {self.number}, step {batch + 1}/{self.params['steps']}", logs)

    def on_epoch_end(self, epoch, logs=None):
        figures = {name: float(value) for name, value in logs.items()}
        seconds = round(time.perf_counter() - self.begun, 2)
        self._save(self.run.path / f"backup-{self.number}", epoch)
        self.run.finish_epoch(epoch=self.number, seconds=seconds, **figures)
        shutil.rmtree(self.run.path / f"backup-{epoch}", ignore_errors=True)
        if not on_terminal():
            self.show(f"epoch {self.number}, {seconds:.1f} s", logs)

    def show(self, label, logs):
        """Prints how far training is."""
        found = (f"{name} {float(value):.4f}" for name, value in logs.items())
        print(f"{label}: {', '.join(found)}", flush=True)

    def _keras(self, folder):
        backup = keras.callbacks.BackupAndRestore(str(folder))
        backup.set_model(self.model)
        return backup

    def _trained(self):
        self.model.optimizer.build(self.model.trainable_variables)
        return [*self.model.trainable_variables, *self.model.optimizer.variables]

    def _save(self, folder, epoch):
        if not self.adapters:
            return self._keras(folder).on_epoch_end(epoch)
        folder.mkdir(exist_ok=True)
        np.savez(folder / "trained.npz", *map(keras.ops.convert_to_numpy, self._trained()))

    def _restore(self, folder):
        if not self.adapters:
            return self._keras(folder).on_train_begin()
        with np.load(folder / "trained.npz") as arrays:
            for variable, name in zip(self._trained(), arrays.files, strict=True):
                variable.assign(arrays[name])


@contextlib.contextmanager
def devices(count, share=None):
    """In this block models are made for so many devices, which share each batch.

    On JAX, `share` may give another `keras.distribution` from a list of `devices`.
    """
    if count == 1:
        yield
        return
    if keras.backend.backend() == "torch":
        raise UsageError("--devices is for JAX and TensorFlow: docs/scaling.md is on PyTorch.")
    if tensorflow := keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        listed = tf.config.list_logical_devices
        names = [device.name for device in listed("GPU") or listed("CPU")]
    else:
        names = keras.distribution.list_devices()
    if len(names) < count:
        found = f"{len(names)}: {', '.join(names)}. docs/scaling.md has virtual ones on a CPU."
        raise UsageError(f"--devices {count} needs as many devices, and there are {found}")
    if tensorflow:
        made = tf.distribute.MirroredStrategy(names[:count])
    else:
        made = (share or keras.distribution.DataParallel)(devices=names[:count])
    with made.scope():
        yield
