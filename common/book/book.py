"""``make book``: the pages of the checkout as a static site that opens from disk, its links looked at."""

from __future__ import annotations

import html
import io
import posixpath
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace, patch_docutils

from common.book import STATIC, explorer, scripts, sources, story
from common.catalog import catalog, store
from common.machine_code import codegen
from common.records import records
from common.report import traces

# Within a tag alone: what stands in text has its quotes escaped, and a script's its backslashes before them.
_ATTRIBUTE = re.compile(r'\s(id|name|href|src|poster)="([^"]*)"')


class BookError(RuntimeError):
    """The book could not be built as it should: a warning of Sphinx's, which names page and line."""


def build(to: Path, work: Path, root: Path = catalog.ROOT) -> int:
    """Build the book into ``to``, by way of ``work``; returns the number of its pages.

    Raises BookError where Sphinx warns, ValueError for a link that leads nowhere.
    """
    source = work / "source"
    if source.exists():
        shutil.rmtree(source)
    traced = traces.fitting()
    made = {sources.EXPLORE: explorer.index(traced), sources.STORY: story.page()}
    sources.stage(source, root, made, explorer.above(traced))
    generated = work / "static"
    store.write(generated / scripts.RECORDS, scripts.records_script(records.all_records()))
    said, warned = io.StringIO(), io.StringIO()
    # the trees of all pages live until the end
    with codegen.uncollected(), patch_docutils(), docutils_namespace():
        app = Sphinx(
            str(source), None, str(to), str(work / "doctrees"), "html", _settings(root, traced, generated), said,
            warned, freshenv=False, parallel=2,
        )  # fmt: skip
        app.build()
    if warned.getvalue():
        raise BookError(warned.getvalue().strip())
    scripts.write_texts(to)
    explorer.write(to, traced)
    lost = broken_links(to)
    if lost:
        raise BookError("\n".join(lost))
    return len(app.env.found_docs)


def _settings(root: Path, traced: Iterable[str], generated: Path) -> dict[str, object]:
    glossary = scripts.glossary((root / "lessons" / "GLOSSARY.md").read_text(encoding="utf-8"))
    paths = {step.name: step.path.relative_to(root) for step in sources.steps().values()}
    return {
        "project": "GPU kernels in Python, one optimisation at a time",
        "author": "",
        "extensions": ["myst_parser", "common.book.extension"],
        "source_suffix": {".md": "markdown"},
        "html_theme": "furo",
        "html_title": "GPU kernels in Python",
        "html_static_path": [str(STATIC), str(generated)],
        "html_js_files": [scripts.RECORDS, "book.js"],
        "html_css_files": ["book.css"],
        "html_show_sphinx": False,
        "html_show_copyright": False,
        "html_copy_source": False,
        "html_show_sourcelink": False,
        "html_show_search_summary": False,  # from disk a page may not read another: book.js shows scripts.TEXTS
        "html_permalinks_icon": "#",
        "myst_heading_anchors": 4,
        "myst_enable_extensions": ["dollarmath"],
        "myst_disable_syntax": ["myst_line_comment", "myst_block_break"],  # a line may begin with %
        "pygments_style": "a11y-high-contrast-light",
        "highlight_language": "none",
        "suppress_warnings": ["myst.header", "myst.xref_missing"],  # broken_links looks at what was built
        "nitpicky": True,
        "workbook_steps": {name: path.with_suffix(".code").as_posix() for name, path in paths.items()},
        "workbook_traced": {name: f"{explorer.FOLDER}/{name}.html" for name in traced},
        "workbook_terms": {term: anchor for term, (anchor, _) in glossary.items()},
        "workbook_glossary": "lessons/GLOSSARY",
    }


def broken_links(folder: Path) -> list[str]:
    """One line for each link that leads nowhere: page, target, why. Addresses in the network are not looked at."""
    places: dict[str, set[str]] = {}
    links: dict[str, list[str]] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        found = _ATTRIBUTE.findall(path.read_text(encoding="utf-8")) if path.suffix == ".html" else []
        places[name] = {html.unescape(value) for attribute, value in found if attribute in ("id", "name")}
        links[name] = list(dict.fromkeys(value for attribute, value in found if attribute not in ("id", "name")))
    return [
        f"{page}: {target}: {why}"
        for page, targets in links.items()
        for target in targets
        if (why := _wrong(places, page, html.unescape(target)))
    ]


def _wrong(places: Mapping[str, set[str]], page: str, target: str) -> str:
    """What is wrong with a page's link, or ""; ``places`` has those of every page, and every other file."""
    parts = urlsplit(target)
    if parts.scheme or parts.netloc:
        return ""
    path = posixpath.join(posixpath.dirname(page), unquote(parts.path)) if parts.path else page
    name = posixpath.normpath(path)
    if name.startswith(("../", "/")):
        return "outside the book"
    name = name if name in places else posixpath.normpath(f"{name}/index.html")
    if name not in places:
        return "no such file"
    if parts.fragment and name.endswith(".html") and unquote(parts.fragment) not in places[name]:
        return "no such place on that page"
    return ""
