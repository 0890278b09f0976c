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
- Limit: what the row's matrix products would take at the rate of one large product of the same
  dtype, measured just before the row. Each row's distance to it is "ours / limit". It counts
  projections, scores and weighted sums; a training step as three times the forward pass; causal
  attention as half; a window by the keys that it sees; padding as if it were real. Recomputing
  scores in the backward pass, as a layer that saves memory must, is not counted, nor is reading
  memory, which is what bounds decoding.

Bars and aims are for TensorFlow on two cores of a CPU. On other backends and machines, the same
rows are a report. Figures of a machine that others share are noisy: the JSON file has quartiles and
CPU time beside each median, and a ratio near its bar wants a second run.

`--small` shrinks everything, and runs one row of each kind, only to see that it runs: its figures
mean nothing. A GPU has rows of its own, of `benchmarks.gpu`.
"""
