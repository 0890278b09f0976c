"""Programs that train and use the layers: `python -m examples.NAME`."""

# It imports Keras, without the lines that its libraries print then.
import examples.shared  # noqa: F401
