"""The command line: which rows, measured once each, as a table and a file."""

import fnmatch
import pathlib
import re

from benchmarks import attention, runner
from benchmarks.attention.measuring import measured
from benchmarks.attention.report import failed, header, line, plot
from benchmarks.attention.rows import rows

# Rows that run the same code as others, at sizes that --small makes alike.
ALIKE = re.compile("medium-|long-(forward|model)|.*-forward-xla|(?!masked).*-memory")


def chosen(options, parser):
    """The rows that the command line specifies."""
    every, picked = rows(options.small)["table"], {}
    if options.rows is None:
        return [row for name, row in every.items() if not (options.small and ALIKE.match(name))]
    for pattern in filter(None, options.rows.split(",")):
        names = fnmatch.filter(every, pattern)
        if not names:
            parser.error(f"no row is named {pattern!r}; see --list")
        picked |= {name: every[name] for name in names}
    return list(picked.values())


def main():
    parser = runner.parser(attention.__doc__, ())
    parser.set_defaults(rows=None)
    parser.add_argument("--list", action="store_true", help="the names of the rows, and no figure")
    parser.add_argument(
        "--keras-too", action="store_true", help="Keras even where it takes over 13 GB"
    )
    parser.add_argument(
        "--plot",
        type=pathlib.Path,
        help="measure time and memory over T, and draw them here (only this: --rows '')",
    )
    options = runner.parsed(parser)
    picked = chosen(options, parser)
    if options.list:
        print("\n".join(f"{row.name:32} {row.work}" for row in picked))
        return 0
    if options.plot:
        picked += rows(options.small)["over"].values()
    report = runner.report((measured(row, options) for row in picked), options, line, header())
    if options.plot:
        plot(report, options.plot)
    return int(failed(report["rows"]))
