"""Programs compiled for an H100 without one: `python -m benchmarks.gpu_programs`.

Layers, blocks, models of the examples and decoding, ours and Keras's, compiled ahead of time for a
GPU that is not here, and what their programs have: temporary memory, calls of libraries, loops,
the bytes that fusions and calls move, and the least time that an H100 needs for that. Nothing runs.
`KERAS_BACKEND` says whose programs: JAX's, or TensorFlow's by their HLO. It needs the extra
`gpu-programs`.
"""

import argparse
import fnmatch
import pathlib
import sys

from benchmarks.gpu_programs import compiler

RESULTS = pathlib.Path(__file__).parents[1] / "results"


def main(argv=None):
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_programs", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--rows", default="*", help="patterns of names, with ; between them, as `*rotary*;plain*`"
    )
    parser.add_argument("--list", action="store_true", help="the names, and nothing else")
    parser.add_argument(
        "--output",
        type=pathlib.Path,
        help="a JSON file whose rows of this backend are replaced, and a page beside it "
        f"(default: {RESULTS.name}/gpu_programs.json if all rows are compiled)",
    )
    parser.add_argument("--text", type=pathlib.Path, help="a folder for the programs' texts")
    options = parser.parse_args(argv)
    compiler.environment()
    try:
        compiler.devices(1)
    except compiler.NotInstalled as error:
        parser.error(str(error))

    import absl.logging
    import keras

    from benchmarks.gpu_programs import report

    if keras.backend.backend() not in ("jax", "tensorflow"):
        parser.error("XLA compiles programs of JAX and of TensorFlow: set KERAS_BACKEND to one.")
    # Keras says of each layer that cuDNN does not take it.
    absl.logging.set_verbosity(absl.logging.FATAL)
    compiler.as_on_a_gpu()

    from benchmarks.gpu_programs.rows import rows

    every = rows()
    patterns = options.rows.split(";")
    chosen = [name for name in every if any(fnmatch.fnmatch(name, one) for one in patterns)]
    if not chosen:
        parser.error(f"no row is named {options.rows!r}; --list shows all names")
    if options.list:
        print("\n".join(every))
        return 0
    output = options.output
    if output is None and len(chosen) == len(every):
        output = RESULTS / "gpu_programs.json"
    found = report.measured([every[name] for name in chosen], options.text)
    if output:
        report.write(found, output)
    return int(any("error" in figures for figures in found.values()))


if __name__ == "__main__":
    sys.exit(main())
