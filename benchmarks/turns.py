"""Rows of two sides that take turns, as a table and a file."""

import json
import statistics

from benchmarks.attention.measuring import in_turns
from benchmarks.attention.report import preamble, surroundings


def add_arguments(parser, names):
    """The options that all programs of such rows have."""
    parser.add_argument("--small", action="store_true", help="tiny sizes, to see that it runs")
    parser.add_argument("--rows", default=",".join(names), help="only these")
    parser.add_argument("--seconds", type=float, default=30, help="for each row")
    parser.add_argument("--repeats", type=int, default=21, help="bursts of each side of a row")
    parser.add_argument("--output", help="a JSON file for the figures")


def chosen(options, names, parser):
    """The names of `--rows`."""
    picked = options.rows.split(",")
    unknown = [name for name in picked if name not in names]
    if unknown:
        parser.error(f"no row is named {unknown[0]!r}; there are {', '.join(names)}")
    return picked


def measure(rows, options, **about):
    """Measures rows and prints them.

    `rows` gives (name, what it is, our side, the other side, the ratio aimed at): sides are
    functions that do the work once, and the ratio is the other's time to ours.
    """
    report = {**surroundings(options), **about, "rows": {}}
    print(preamble(report), "\n", about, "\n")
    print(
        "| row | what | ours | other | other / ours | aim |\n| --- | --- | --- | --- | --- | --- |",
        flush=True,
    )
    for name, what, ours, other, aim in rows:
        samples = in_turns({"ours": ours, "other": other}, options.repeats, options.seconds)
        times = {
            who: statistics.median(wall for wall, _ in found) for who, found in samples.items()
        }
        ratio = times["other"] / times["ours"]
        count = len(samples["ours"])
        report["rows"][name] = {**times, "ratio": ratio, "aim": aim, "samples": count}
        print(
            f"| {name} | {what} | {times['ours']:.4g} ms | {times['other']:.4g} ms "
            f"| {ratio:.3g} | {aim} |",
            flush=True,
        )
    if options.output:
        with open(options.output, "w", encoding="utf-8") as file:
            file.write(json.dumps(report, indent=2) + "\n")
