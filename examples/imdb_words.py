"""How `imdb_classification` shows what the words of a review add or weigh."""

import numpy as np


def signed(names, shares, sign):
    """The words with the largest contributions of a sign, and what they sum to."""
    totals = {}
    for name, share in zip(names, shares, strict=True):
        totals[name] = totals.get(name, 0.0) + float(share)
    found = {name: total for name, total in totals.items() if sign * total >= 0.005}
    ranking = sorted(found, key=lambda name: -abs(found[name]))
    listed = [f"{name} {found[name]:+.2f}" for name in ranking[:8]]
    rest = sum(found[name] for name in ranking[8:])
    return ", ".join(listed + [f"others {rest:+.2f}"] * bool(ranking[8:])) or "nothing"


def percentages(names, weights):
    """The words with the largest weights, in percentages that sum to 100."""
    totals = {}
    for name, weight in zip(names, weights, strict=False):
        totals[name] = totals.get(name, 0.0) + float(weight)
    ranking = sorted(totals, key=totals.get, reverse=True)
    if len(ranking) > 8:
        ranking[8:], totals["others"] = ["others"], sum(totals[name] for name in ranking[8:])
    return ", ".join(f"{name} {totals[name]:.1%}" for name in ranking)


def draw(path, names, shares, title):
    """Draws a bar for each word, in the order of the text: to the right for "positive"."""
    from matplotlib.figure import Figure

    figure = Figure((5, 1 + 0.17 * len(names)), layout="constrained")
    axes = figure.subplots()
    axes.barh(range(len(names)), shares, color=np.where(shares < 0, "tab:red", "tab:blue"))
    axes.axvline(0, color="black", linewidth=0.5)
    axes.set_yticks(range(len(names)), names, fontsize=7, parse_math=False)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_title(title, fontsize=9)
    figure.savefig(path, dpi=120, format="png")
