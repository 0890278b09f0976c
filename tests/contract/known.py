"""Faults that are known: (relation, place, entry) and why. One that is mended is an error here."""

import keras

ROUNDED = "float64 is rounded to float32"
LANDMARKS = "landmarks of padded rows are scored at their places"
KNOWN: dict[tuple[str, str, str], str] = {
    (relation, place, "NystromAttention-Location"): LANDMARKS
    for relation, place in (
        ("padding", "alone"),
        ("tokens", "alone"),
        ("padding", "stack"),
        ("padding", "context"),
    )
}
if keras.config.backend() != "jax":
    KNOWN["padding", "block", "NystromAttention-Location"] = LANDMARKS
    KNOWN |= {
        ("gradients", place, f"position-{name}"): ROUNDED
        for name in ("FIRE", "GridRelativeBias", "Kerple", "RelativeBias")
        for place in ("alone", "block", "stack", "context")
    }
if keras.config.backend() == "tensorflow":
    KNOWN |= {
        ("gradients", "cell", f"position-{name}"): ROUNDED
        for name in ("FIRE", "GridRelativeBias", "Kerple", "RelativeBias")
    }
