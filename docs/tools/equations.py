"""MkDocs hook: equations become MathML, which browsers draw themselves: no script, no network."""

import html
import re

import latex2mathml.converter
from mkdocs.plugins import get_plugin_logger

EQUATION = re.compile(
    r'<(span|div) class="arithmatex">(?:\\\(|\\\[)(.*?)(?:\\\)|\\\])</\1>', re.DOTALL
)
# What the converter leaves unchanged where it does not know a command.
UNKNOWN = re.compile(r"<mi>(\\.*?|&)</mi>")
# A word is one name and not so many letters, and bars come in pairs, as high as what they enclose.
WORD = re.compile(r'(?:<mi mathvariant="normal">[A-Za-z]</mi>){2,}')
BARS = re.compile(r"<mo>(&#x0007C;|&#x02016;)</mo>(.*?)<mo>\1</mo>")
log = get_plugin_logger("equations")


def on_page_content(content, page, config, files):
    """The page with its equations as MathML."""

    def mathml(match):
        display = "block" if match[1] == "div" else "inline"
        # The converter knows this environment, which is the same here, by its other name alone.
        latex = html.unescape(match[2]).replace("{aligned}", "{align*}")
        found = latex2mathml.converter.convert(latex, display=display)
        for unknown in UNKNOWN.findall(found):
            log.warning(f"{page.file.src_uri}: {unknown} is unknown in {latex}")
        found = WORD.sub(lambda word: f"<mi>{re.sub('<.*?>', '', word[0])}</mi>", found)
        found = BARS.sub(rf"{_bar('prefix')}\2{_bar('postfix')}", found)
        return found.replace("<mi>&#x0007E;</mi>", "<mo>&#x0223C;</mo>")

    return EQUATION.sub(mathml, content)


def _bar(side):
    return rf'<mo form="{side}" stretchy="false">\1</mo>'
