"""The command line: which rows, measured once each, as a table and a file."""

import argparse
import fnmatch
import json
import pathlib
import re
import sys

from benchmarks import attention
from benchmarks.attention.backends import gpu
from benchmarks.attention.measuring import ROUNDS, grown, measured, series
from benchmarks.attention.report import header, line, plot, preamble, saved_by_a_block, surroundings
from benchmarks.attention.rows import rows

# Rows that run the same code as others, at sizes that --small makes alike.
ALIKE = re.compile(
    "medium-|long-(forward|model)|.*-forward-xla|(?!masked).*-memory"
    "|gpu-.*-(8192|32768)|gpu-float32-[^p]|gpu-bfloat16-(causal|window)"
)


def chosen(options, parser):
    """The rows that the command line specifies."""
    groups = rows(options.small)
    if options.rows is None and options.small:
        named = {**groups["cpu"], **groups["gpu"]}
        return [row for name, row in named.items() if not ALIKE.match(name)]
    if options.rows is None:
        return list(groups["gpu" if options.gpu else "cpu"].values())
    every, picked = {**groups["cpu"], **groups["gpu"]}, {}
    for pattern in filter(None, options.rows.split(",")):
        names = fnmatch.filter(every, pattern)
        if not names:
            parser.error(f"no row is named {pattern!r}; see --list")
        picked |= {name: every[name] for name in names}
    return list(picked.values())


def arguments():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.attention", description=attention.__doc__.splitlines()[0]
    )
    parser.add_argument("--rows", metavar="NAME,...", help="only these; * and ? are wildcards")
    parser.add_argument("--list", action="store_true", help="the names of the rows, and no figure")
    parser.add_argument("--gpu", action="store_true", help="the rows for a GPU instead")
    parser.add_argument("--repeats", type=int, default=21, help="bursts of each side of a row")
    parser.add_argument(
        "--seconds",
        type=float,
        default=30,
        help=f"stop a row's bursts after this long, but not before {ROUNDS}",
    )
    parser.add_argument(
        "--keras-too", action="store_true", help="Keras even where it takes over 13 GB"
    )
    parser.add_argument("--small", action="store_true", help="tiny sizes, to see that it runs")
    parser.add_argument(
        "--output", type=pathlib.Path, help="a JSON file for the figures; Markdown goes beside it"
    )
    parser.add_argument(
        "--plot",
        type=pathlib.Path,
        help="measure time and memory over T, and draw them here (only this: --rows '')",
    )
    parser.add_argument(
        "--measure", nargs=2, metavar=("ROW", "WHO"), help="one side of one row, as JSON"
    )
    options = parser.parse_args()
    if options.small:
        options.repeats, options.seconds = 2, 0.2
    return options, parser


def main():
    options, parser = arguments()
    if options.measure:
        name, who = options.measure
        every = {k: row for group in rows(options.small).values() for k, row in group.items()}
        print(json.dumps(grown(*every[name].sides[who])))
        return 0
    picked = chosen(options, parser)
    if options.list:
        print("\n".join(f"{row.name:32} {row.work}" for row in picked))
        return 0
    if options.gpu and not gpu():
        print("No GPU was found: these rows run on the CPU.", file=sys.stderr)
    report = surroundings(options)
    lines = [preamble(report), "", header()]
    print("\n".join(lines), flush=True)
    report["rows"] = []
    for row in picked:
        report["rows"].append(measured(row, options))
        lines.append(line(report["rows"][-1]))
        print(lines[-1], flush=True)
    notes = list(saved_by_a_block(report["rows"]))
    if notes:
        lines += ["", *notes]
        print("", *notes, sep="\n", flush=True)
    if options.plot:
        report["series"] = series(options)
        plot(report, options.plot)
    if options.output:
        options.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        options.output.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    failed = (
        "error" in row.get("ours", {}) or row["reached"] == "differs" for row in report["rows"]
    )
    return int(any(failed))
