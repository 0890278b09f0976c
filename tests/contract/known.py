"""Faults that are known: (relation, place, entry) and why. One that is mended is an error here."""

KNOWN: dict[tuple[str, str, str], str] = {}
