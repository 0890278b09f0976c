"""Figures as a table and as a plot."""

COLUMNS = ("row", "work", "ours", "other", "ours / other")


def header():
    return f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}"


def line(result):
    """A row as a line of the table."""

    def side(who):
        found = result.get(who)
        if found is None:
            return ""
        if "error" in found:
            return found["error"].replace("|", "/")
        time_taken = f"{found['ms']:.4g} ms"
        return f"{found['GB']:.3f} GB, {time_taken}" if "GB" in found else time_taken

    ratio = "differs" if result["differs"] else result["ratio"] and f"{result['ratio']:.3g}"
    cells = result["name"], result["work"], side("ours"), side("other"), ratio or ""
    return f"| {' | '.join(cells)} |"


def failed(results):
    """Whether a side of ours failed, or two sides differ that should compute the same."""
    return any("error" in row.get("ours", {}) or row["differs"] for row in results)


def length_of(point):
    return int(point["name"].removeprefix("over-"))


def plot(report, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    points = [row for row in report["rows"] if row["name"].startswith("over-")]
    figure, panels = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for panel, key, label in zip(panels, ("ms", "GB"), ("milliseconds", "GB"), strict=True):
        for who, name in (("ours", "keras_attention"), ("other", "keras.layers")):
            shown = [(length_of(p), p[who][key]) for p in points if key in p.get(who, {})]
            if shown:
                panel.plot(*zip(*shown, strict=True), "o-", label=name)
        panel.set(xscale="log", yscale="log", xlabel="T", ylabel=label)
        panel.set_xticks([*map(length_of, points)], [str(length_of(p)) for p in points])
        panel.minorticks_off()
        panel.legend()
    small = " (small: means nothing)" if report["small"] else ""
    figure.suptitle(
        "Training step, padding mask, causal, dropout 0.1, D256 H4, "
        f"{report['backend']}, {report['machine']['device']}{small}"
    )
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
