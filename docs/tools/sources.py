"""MkDocs hook: a link from a page to a file outside docs/ leads to a page that shows the file.

So the same link works on the site, also without a network, and where Markdown is read in the
repository. A Markdown file is shown as it is, any other as code.
"""

import pathlib
import posixpath
import re

from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).parents[2]
LINK = re.compile(r"(\]\()((?:\.\./)+[^)#\s]+)")
RELATIVE = re.compile(r"(\]\()([^)#\s:]+)(?=[)#])")
LANGUAGES = {".py": "python", ".json": "json", ".yml": "yaml", ".toml": "toml"}
log = get_plugin_logger("sources")


def outside(page, link):
    """The path, from the repository's root, of a file outside docs/ that `link` names, or None."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    return None if path.startswith(("docs/", "..")) else path


def on_files(files, config):
    """The site's files, and a page for each file outside docs/ that a page links to."""
    pages = [file for file in files if file.is_documentation_page()]
    found = [(page.src_uri, path) for page in pages for path in linked(page)]
    for page, path in found:  # It grows by what the shown files link to.
        if files.get_file_from_path(shown_at(path)) is not None:
            continue
        if (ROOT / path).is_file():
            files.append(File.generated(config, shown_at(path), content=shown(path)))
            found += [(path, other) for other in linked_outside(path)]
        else:
            log.warning(f"{page} links to {path}, which is no file")
    return files


def linked(page):
    """The files outside docs/ that a page links to."""
    links = LINK.findall(page.content_string)
    return [path for _, link in links if (path := outside(page.src_uri, link)) is not None]


def linked_outside(path):
    """The files outside docs/ that a Markdown file outside docs/ links to."""
    text = (ROOT / path).read_text(encoding="utf-8") if path.endswith(".md") else ""
    targets = (target_of(path, link) for _, link in RELATIVE.findall(text))
    return [target for target in targets if not target.startswith("docs/")]


def on_page_markdown(markdown, page, config, files):
    """The page with its links leading to those pages."""
    here = page.file.src_uri

    def inside(match):
        path = outside(here, match[2])
        if path is None:
            return match[0]
        return match[1] + posixpath.relpath(shown_at(path), posixpath.dirname(here) or ".")

    return LINK.sub(inside, markdown)


def shown_at(path):
    """Where the site shows the file."""
    return f"source/{path}" if path.endswith(".md") else f"source/{path}.md"


def shown(path):
    """The Markdown that shows the file."""
    text = (ROOT / path).read_text(encoding="utf-8")
    unsearched = f"---\ntitle: {path}\nsearch:\n  exclude: true\n---\n\n"
    if path.endswith(".md"):
        return unsearched + RELATIVE.sub(lambda match: match[1] + moved(path, match[2]), text)
    language = LANGUAGES.get(pathlib.Path(path).suffix, "text")
    return f"{unsearched}# {path}\n\n````{language}\n{text}\n````\n"


def moved(path, link):
    """A link of a Markdown file outside docs/, from the page that shows the file."""
    target = target_of(path, link)
    target = target.removeprefix("docs/") if target.startswith("docs/") else shown_at(target)
    return posixpath.relpath(target, posixpath.dirname(shown_at(path)))


def target_of(path, link):
    """The path, from the repository's root, of what a file links to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
