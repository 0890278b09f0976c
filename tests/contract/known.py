"""Faults that are known: (relation, place, entry) and why. One that is mended is an error here."""

import keras

ROUNDED = "float64 is rounded to float32"
KNOWN: dict[tuple[str, str, str], str] = {}
if keras.config.backend() != "jax":
    KNOWN |= {
        ("gradients", place, f"position-{name}"): ROUNDED
        for name in ("FIRE", "GridRelativeBias", "Kerple", "RelativeBias")
        for place in ("alone", "context")
    }
