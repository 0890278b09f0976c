"""MkDocs hook: what Markdown in the repository writes another way than MkDocs reads it."""

import re

# A second word says which tests run a block, if any: `no-run`, or the name of a backend.
MARKED = re.compile(r"^(\s*```+python) \S+$", re.MULTILINE)
CODE = re.compile(r"<code>[^<]*</code>")


def on_page_markdown(markdown, page, config, files):
    """Blocks of Python that are not run, as Python."""
    return MARKED.sub(r"\1", markdown)


def on_page_content(content, page, config, files):
    """Code whose pipes a table had to escape, without the escapes."""
    return CODE.sub(lambda code: code[0].replace(r"\|", "|"), content)
