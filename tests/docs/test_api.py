"""What is public is added to and never taken away, as CHANGELOG.md records."""

import pathlib
import re

import pytest

from tests import api_snapshot
from tests.api_snapshot import arguments_of, name_of, read

CHANGELOG = pathlib.Path(__file__).parents[2] / "CHANGELOG.md"
RELEASES = sorted(
    (path for path in api_snapshot.FOLDER.glob("*.txt") if path != api_snapshot.NEXT),
    key=lambda path: tuple(map(int, path.stem.split("."))),
)


def by_name(lines):
    return {name_of(line): line for line in lines}


def missing(old, new):
    """What a program that was written for `old` would not find in `new`."""
    new = by_name(new)
    for name, line in by_name(old).items():
        if name not in new:
            yield f"{name} is gone"
            continue
        if "(" not in line:
            if new[name] != line:
                yield f"{line} became {new[name]}"
            continue
        # An argument may have another name now, if the class still takes the former one.
        was = {
            new.get(f"{name}[{argument!r}]", argument).split(" = ")[-1]: default
            for argument, default in arguments_of(line).items()
        }
        now = arguments_of(new[name])
        for argument, default in was.items():
            # A name that `**kwargs` took may be spelled out now.
            if argument in ("**kwargs", "*"):
                continue
            if now.get(argument) != default:
                yield f"{name}: `{argument}` was ({default}) and is ({now.get(argument)})"
        # What was given by its position still is.
        positional = list(was)
        positional = positional[: next((i for i, a in enumerate(was) if a[0] == "*"), len(was))]
        if list(now)[: len(positional)] != positional:
            yield f"{name}: the order of its arguments was {positional}"
        for argument, default in now.items():
            if argument not in was and not default and argument[0] != "*":
                yield f"{name}: `{argument}` is new and has no default"


def unmentioned(old, new, text):
    """Lines that are new or changed, and for which `text` says none of the names."""
    old = by_name(old)
    for name, line in by_name(new).items():
        same = "(" in line and name in old and arguments_of(old[name]) == arguments_of(line)
        if same or old.get(name) == line:
            continue
        # Of `p.scores.Dot.call`, one of "Dot" and "call"; the name of the module is not enough.
        names = set(re.findall(r"[A-Z]\w*|\w+(?=\W*$)", name)) - {"BUILTIN"}
        if name in old:
            names |= set(arguments_of(line)) - set(arguments_of(old[name]))
        if not any(re.search(rf"\b{re.escape(n)}\b", text) for n in names - {"self"}):
            yield line


def changes_since(release):
    """The part of CHANGELOG.md above the heading of a release."""
    text = CHANGELOG.read_text(encoding="utf-8")
    heading = re.search(rf"^## {re.escape(release)}\b", text, re.MULTILINE)
    assert heading, f"CHANGELOG.md has no heading for {release}"
    return text[: heading.start()]


def test_the_snapshot_is_what_is_public():
    stored, found = read(api_snapshot.NEXT), api_snapshot.snapshot()
    changed = [f"- {line}" for line in stored if line not in found]
    changed += [f"+ {line}" for line in found if line not in stored]
    assert not changed, (
        "What is public has changed. Say so in CHANGELOG.md, run `python -m tests.api_snapshot`, "
        "and commit both:\n" + "\n".join(changed)
    )


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.stem)
def test_nothing_of_a_release_is_gone(release):
    found = list(missing(read(release), read(api_snapshot.NEXT)))
    assert not found, f"Since {release.stem}:\n" + "\n".join(found)


def test_what_is_new_is_in_the_changelog():
    last = RELEASES[-1]
    found = list(unmentioned(read(last), read(api_snapshot.NEXT), changes_since(last.stem)))
    assert not found, (
        f"CHANGELOG.md, above {last.stem}, names neither these nor their new arguments:\n"
        + "\n".join(found)
    )


OLD = ["p.f(a, b=1)", "p.g(x, *, y=(1, 2), **kwargs)", "p.B['one'] = One", "p.value"]


@pytest.mark.parametrize(
    ("new", "said"),
    [
        (OLD[1:], "p.f is gone"),
        (["p.f(a)", *OLD[1:]], "`b` was (1) and is (None)"),
        (["p.f(a, b=2)", *OLD[1:]], "`b` was (1) and is (2)"),
        (["p.f(b=1, a)", *OLD[1:]], "the order of its arguments was ['a', 'b']"),
        (["p.f(a, c=0, b=1)", *OLD[1:]], "the order of its arguments was ['a', 'b']"),
        (["p.f(a, b=1, *, c)", *OLD[1:]], "`c` is new and has no default"),
        ([*OLD[:2], "p.B['one'] = Two", "p.value"], "p.B['one'] = One became p.B['one'] = Two"),
    ],
)
def test_what_is_gone_is_found(new, said):
    assert any(said in line for line in missing(OLD, new)), list(missing(OLD, new))


def test_an_argument_may_be_renamed_if_the_former_name_is_kept():
    new = ["p.f(a, c=1)", "p.f['b'] = c", *OLD[1:]]
    assert not list(missing(OLD, new))
    assert list(missing(OLD, ["p.f(a, c=2)", *new[1:]])) == ["p.f: `c` was (1) and is (2)"]
    assert list(missing(new, [new[0], *OLD[1:]])) == ["p.f['b'] is gone"]
    assert list(unmentioned(OLD, new, "nothing")) == new[:2]
    assert not list(unmentioned(OLD, new, "b is c"))


def test_what_is_added_is_not_gone():
    new = ["p.f(a, b=1, c=2, **kwargs)", "p.g(x, *, y=(1, 2), z=0)", *OLD[2:], "p.h()"]
    assert not list(missing(OLD, new))
    assert list(unmentioned(OLD, new, "f takes c, and h is new.")) == [new[1]]
    assert not list(unmentioned(OLD, new, "f takes c, g takes z, and h is new."))
