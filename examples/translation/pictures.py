"""Pictures of a run: the losses over the epochs, and what a translation looked at."""

from matplotlib.figure import Figure


def draw_curves(path, figures):
    """The losses over the epochs.

    Args:
        path: the file to write.
        figures: the contents of `figures.json`.
    """
    epochs = figures["epochs"]
    numbers = [epoch["epoch"] for epoch in epochs]
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for name, label in (("train_loss", "train (smoothed)"), ("validation_loss", "validation")):
        axes.plot(numbers, [epoch[name] for epoch in epochs], marker=".", label=label)
    axes.set(title=figures["dataset"], xlabel="epoch", ylabel="loss of a subword")
    axes.legend()
    figure.savefig(path, dpi=100, format="png")


def draw_alignment(path, source, target, weights):
    """How much each subword of a translation looked at each of the sentence.

    Args:
        path: the file to write.
        source: S subwords.
        target: T subwords.
        weights: (T, S).
    """
    size = (2 + 0.35 * len(source), 1.5 + 0.3 * len(target))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(weights, vmin=0, vmax=1, cmap="Blues", aspect="auto")
    axes.set_xticks(range(len(source)), source, rotation=90)
    axes.set_yticks(range(len(target)), target)
    axes.set(xlabel="sentence", ylabel="translation")
    figure.colorbar(image, ax=axes, label="weight")
    figure.savefig(path, dpi=100, format="png")
