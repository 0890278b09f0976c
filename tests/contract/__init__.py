"""Relations that hold for every layer, model and slot of the package, in every place."""
