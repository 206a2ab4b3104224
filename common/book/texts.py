"""The words of pages: what the glossary explains, and the text of every page as a script, for the search."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

from common.catalog import store

FILE = "texts.js"
_ARTICLE = re.compile(r"<article\b.*?</article>", re.DOTALL)
_NO_TEXT = re.compile(
    r'<(script|style|svg|h1)\b.*?</\1>|<a class="headerlink".*?</a>|<sup><a class="microscope.*?</sup>', re.DOTALL
)
_SECTION = re.compile(r'<section\b[^>]*?\bid="([^"]*)"')
_BLOCK = re.compile(r"</?(?:p|h\d|li|td|th|tr|div|section|details|summary|pre|ul|ol|table|br|figcaption)\b[^>]*>")
_TAG = re.compile(r"<[^>]*>")
_ENTRY = re.compile(r'^- <a id="([\w-]+)"></a>(\*\*.*?\*\*)(?: \([^)]*\))?: (.*(?:\n  .*)*)', re.MULTILINE)


def glossary(text: str) -> dict[str, tuple[str, str]]:
    """By each term of the glossary's Markdown, in lower case, its place on that page and what it says there."""
    return {
        name.lower(): (anchor, " ".join(re.sub(r"[`*]", "", said).split()))
        for anchor, names, said in _ENTRY.findall(text)
        for name in re.findall(r"\*\*([^*]+)\*\*", names)
    }


def write(book: Path) -> None:
    """Write the script into the built book: ``window.WORKBOOK_TEXTS``, by page its text and where sections begin.

    A script, since a page that is opened from disk may not read another.
    """
    texts = {}
    for path in sorted(book.rglob("*.html")):
        article = _ARTICLE.search(path.read_text(encoding="utf-8"))
        if article:
            texts[path.relative_to(book).as_posix()] = _text(article[0])
    script = json.dumps(texts, separators=(",", ":"), ensure_ascii=False).replace("</", "<\\/")
    store.write(book / "_static" / FILE, f"window.WORKBOOK_TEXTS = {script};\n")


def _text(article: str) -> tuple[str, dict[str, int]]:
    """The words in one line, and by a section's name the place in them where it begins."""
    text, places = "", {}
    for i, part in enumerate(_SECTION.split(_NO_TEXT.sub("", article))):
        if i % 2:
            places[part] = len(text)
        else:
            # what is left of the tag that the split cut
            words = part.partition(">")[2] if i else part
            said = " ".join(html.unescape(_TAG.sub("", _BLOCK.sub(" ", words))).split())
            text += f"{said} " if said else ""
    return text.rstrip(), places
