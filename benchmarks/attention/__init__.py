"""Time and memory of attention, ours against Keras's: `python -m benchmarks.attention`.

One run measures a list of rows (`--list` names them, `--rows` chooses) on the backend that
KERAS_BACKEND names, and prints them as a Markdown table.

- "forward" is a layer compiled as the backend does (tf.function, jax.jit; PyTorch runs eagerly,
  without gradients). "training step" is the gradient of sum(output²) by the input and all weights,
  compiled likewise. With "XLA", TensorFlow compiles with `jit_compile=True`; JAX always does, and
  PyTorch does not have it. "two-block model" is `train_on_batch` of a Keras model, with SGD and the
  mean squared error. Numbers are float32 unless a row says otherwise.
- Time: both sides have the same weights and inputs, are compiled and warmed up, and then take
  turns, a burst of calls each, so that a machine that slows down slows both. Quoted are medians of
  wall-clock time and the ratio of these medians. With dropout off, the two must also agree.
- Memory: the peak growth of a separate process over its peak once it had run the same on a short
  sequence: of resident memory, or on a GPU of the memory in use there. GB are 10⁹ bytes. Compiling
  counts where the backend compiles anew for a new length. The milliseconds of these rows are those
  of that process, the two sides one after the other, not in turns: a rough guide.

Figures of a machine that others share are noisy: the JSON file has quartiles and CPU time beside
each median.

`--small` shrinks everything, and runs one row of each kind, only to see that it runs: its figures
mean nothing. A GPU has rows of its own, of `benchmarks.gpu`.
"""
