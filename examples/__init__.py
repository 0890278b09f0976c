"""Programs that train and use the layers: `python -m examples.NAME`."""
