"""Fonts of matplotlib that can render given words."""

from matplotlib import font_manager, rcParams
from matplotlib.ft2font import FT2Font


def families(words):
    """Names of fonts, first that of the user's settings, then those that cover missing letters."""
    wanted = list(rcParams["font.family"])
    first = font_manager.findfont(font_manager.FontProperties(family=wanted))
    missing = {ord(letter) for word in words for letter in word} - _letters(first)
    if not missing:
        return wanted
    # Noto has a font for each script.
    fonts = sorted(font_manager.fontManager.ttflist, key=lambda font: "Noto Sans" not in font.name)
    for font in fonts:
        if not missing:
            break
        if font.style != "normal" or "Last Resort" in font.name or _plain(font.weight) != "normal":
            continue
        found = missing & _letters(font.fname)
        if found:
            wanted.append(font.name)
            missing -= found
    return wanted


def _plain(weight):
    return "normal" if weight in (400, "normal", "regular", "book") else weight


def _letters(path):
    try:
        return set(FT2Font(path).get_charmap())
    except (OSError, RuntimeError):
        return set()
