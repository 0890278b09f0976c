"""Pictures of a run: the losses over the steps."""

from matplotlib.figure import Figure


def draw_curves(path, figures):
    """The losses over the steps.

    Args:
        path: the file to write.
        figures: what `figures.json` says.
    """
    epochs = figures["epochs"]
    steps = [epoch["steps"] for epoch in epochs]
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for name in ("train", "validation"):
        axes.plot(steps, [epoch[f"{name}_loss"] for epoch in epochs], marker=".", label=name)
    axes.set(title=figures["dataset"], xlabel="step", ylabel="loss of a token")
    axes.legend()
    figure.savefig(path, dpi=100, format="png")
