"""``make book``: the pages of the checkout as a static site that opens from disk, without network."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterable
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace, patch_docutils

from common.book import STATIC, charts, explorations, links, sources, story, texts
from common.catalog import catalog, store
from common.machine_code import codegen
from common.records import records
from common.report import traces


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
    made = {sources.EXPLORE: explorations.index(traced), sources.STORY: story.page()}
    sources.stage(source, root, made, explorations.above(traced))
    generated = work / "static"
    store.write(generated / charts.FILE, charts.script(records.all_records()))
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
    texts.write(to)
    explorations.write(to, traced)
    lost = links.broken(to)
    if lost:
        raise BookError("\n".join(lost))
    return len(app.env.found_docs)


def _settings(root: Path, traced: Iterable[str], generated: Path) -> dict[str, object]:
    glossary = texts.glossary((root / "lessons" / "GLOSSARY.md").read_text(encoding="utf-8"))
    paths = {step.name: step.path.relative_to(root) for step in sources.steps().values()}
    return {
        "project": "GPU kernels in Python, one optimisation at a time",
        "author": "",
        "extensions": ["myst_parser", "common.book.extension"],
        "source_suffix": {".md": "markdown"},
        "html_theme": "furo",
        "html_title": "GPU kernels in Python",
        "html_static_path": [str(STATIC), str(generated)],
        "html_js_files": [charts.FILE, "book.js"],
        "html_css_files": ["book.css"],
        "html_show_sphinx": False,
        "html_show_copyright": False,
        "html_copy_source": False,
        "html_show_sourcelink": False,
        "html_show_search_summary": False,  # a page from disk may not read another: book.js shows it from texts.FILE
        "html_permalinks_icon": "#",
        "myst_heading_anchors": 4,
        "myst_enable_extensions": ["dollarmath"],
        "myst_disable_syntax": ["myst_line_comment", "myst_block_break"],  # a line may begin with %
        "pygments_style": "a11y-high-contrast-light",
        "highlight_language": "none",
        "suppress_warnings": ["myst.header", "myst.xref_missing"],  # links.broken looks at what was built
        "nitpicky": True,
        "workbook_steps": {name: path.with_suffix(".code").as_posix() for name, path in paths.items()},
        "workbook_traced": {name: f"{explorations.FOLDER}/{name}.html" for name in traced},
        "workbook_terms": {term: anchor for term, (anchor, _) in glossary.items()},
        "workbook_glossary": "lessons/GLOSSARY",
    }
