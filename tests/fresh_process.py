"""A process that loads `.keras` files and calls the models, without the packages of the extras.

`python -m tests.fresh_process` reads names of folders, one a line, and answers
each with a line of JSON; `Reader` starts it. It imports nothing that wrote the files.
"""

import json
import os
import subprocess
import sys
import traceback

import numpy as np

EXTRAS = ("safetensors", "tokenizers", "transformers", "torch")


class Reader:
    """The process, which has the same backend."""

    def __init__(self):
        import keras

        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Threads of PyTorch would wait for one another longer than they compute.
            env=os.environ | {"KERAS_BACKEND": keras.config.backend(), "OMP_NUM_THREADS": "1"},
        )

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._process.kill()
        self._process.communicate()

    def check(self, model, folder, inputs, **given):
        """Saves a model in `folder`; there it is the same. Returns the largest difference."""
        import keras

        model.save(folder / "model.keras")
        arrays = inputs if isinstance(inputs, list) else [inputs]
        named = {f"input {n}": x for n, x in enumerate(arrays)}
        np.savez(folder / "given.npz", **named, **given)
        self._process.stdin.write(f"{folder}\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        assert "error" not in answer, answer["error"]
        assert answer == {"metadata": model.metadata, "weights": len(model.weights)}
        expected = np.asarray(keras.ops.convert_to_numpy(model(inputs, **given)))
        largest = float(np.abs(np.load(folder / "found.npy") - expected).max())
        assert largest <= 1e-6
        return largest


class NotInstalled:
    """Where Python looks for modules first: the extras are not there."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in EXTRAS and name != os.environ["KERAS_BACKEND"]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def answer(folder):
    """Calls the model of a folder, whose output is left there."""
    import keras

    import keras_attention  # noqa: F401
    from keras_attention.kernels.tiles import strategies

    model = keras.saving.load_model(f"{folder}/model.keras")
    with np.load(f"{folder}/given.npz") as file:
        given = dict(file)
    inputs = [given.pop(name) for name in sorted(given) if name.startswith("input ")]
    with strategies.using(few=0):  # as in tests/conftest.py
        found = model(inputs if len(inputs) > 1 else inputs[0], **given)
    np.save(f"{folder}/found.npy", keras.ops.convert_to_numpy(found))
    return {"metadata": model.metadata, "weights": len(model.weights)}


def main():
    sys.meta_path.insert(0, NotInstalled)
    for line in sys.stdin:
        try:
            found = answer(line.rstrip("\n"))
        except Exception:
            found = {"error": traceback.format_exc()}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
