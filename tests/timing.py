"""Where the time of a run went: one line at its end, and a limit for each file.

A file's time is that of the processor, of its tests' process and of those that they start, so that
a machine that does something else beside does not change the figure.
"""

import collections
import os
import pathlib

import pytest

SPENT = pytest.StashKey[dict]()
HERE = pathlib.Path(__file__).parent.name


def pytest_addoption(parser):
    parser.addoption(
        "--file-limit",
        type=float,
        metavar="SECONDS",
        help="fail if the tests of a file take more seconds of a processor than this",
    )


def pytest_configure(config):
    config.stash[SPENT] = collections.Counter()
    config.pluginmanager.register(Total(config), "time-of-files")


def processor_seconds():
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    item.stash[SPENT] = processor_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    # Of setup, call and teardown each, since the last report.
    before, item.stash[SPENT] = item.stash[SPENT], processor_seconds()
    report.processor_seconds = item.stash[SPENT] - before
    return report


class Total:
    """Adds up the reports, of this process or of its workers."""

    def __init__(self, config):
        self.config, self.spent, self.folders = config, config.stash[SPENT], set()

    def pytest_runtest_logreport(self, report):
        file = report.nodeid.partition("::")[0]
        self.spent[file] += report.processor_seconds
        if "folder" in report.keywords:
            self.folders.add(file)

    def too_long(self):
        limit = self.config.getoption("--file-limit")
        if limit is None:
            return []
        return [f for f in self.spent if self.spent[f] > limit and f not in self.folders]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session, exitstatus):
        if exitstatus == pytest.ExitCode.OK and self.too_long():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter):
        if not self.spent:
            return
        folders = collections.Counter()
        for file, seconds in self.spent.items():
            path = pathlib.PurePosixPath(file)
            folders[path.parts[1] if path.parts[0] == HERE else file] += seconds
        most = ", ".join(f"{name} {seconds:.0f}" for name, seconds in folders.most_common(8))
        file, seconds = self.spent.most_common(1)[0]
        terminalreporter.write_line(
            f"Processor seconds: {sum(folders.values()):.0f}, of which {most}; "
            f"the longest file is {file}, {seconds:.0f}"
        )
        for file in self.too_long():
            terminalreporter.write_line(
                f"FAILED {file} takes {self.spent[file]:.0f} s, more than --file-limit"
            )
