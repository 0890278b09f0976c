"""What the tests of several examples share."""

import json


def figures(output):
    """What the run in a folder has written down."""
    return json.loads((output / "figures.json").read_text(encoding="utf-8"))
