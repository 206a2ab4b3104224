"""``make book``: the pages of the checkout as a static site that opens from disk."""

from __future__ import annotations

import gc
import io
import shutil
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import docutils_namespace, patch_docutils

from common.book import STATIC, explorer, sources
from common.catalog import catalog
from common.report import traces


class BookError(RuntimeError):
    """A warning of Sphinx's, which names page and line."""


def build(to: Path, work: Path) -> int:
    """Build the book into ``to``, by way of ``work``; returns the number of its pages. Raises BookError where Sphinx
    warns, ValueError for a link that leads nowhere."""
    source = work / "source"
    if source.exists():
        shutil.rmtree(source)
    traced = traces.fitting()
    sources.stage(source, catalog.ROOT, {sources.EXPLORE: explorer.index(traced)}, explorer.above(traced))
    said, warned = io.StringIO(), io.StringIO()
    # the trees of all pages live until the end
    gc.set_threshold(100_000, 50, 50)
    with patch_docutils(), docutils_namespace():
        app = Sphinx(
            str(source), None, str(to), str(work / "doctrees"), "html", _settings(), said,
            warned, freshenv=False, parallel=2,
        )  # fmt: skip
        app.build()
    if warned.getvalue():
        raise BookError(warned.getvalue().strip())
    explorer.write(to, traced)
    return len(app.env.found_docs)


def _settings() -> dict[str, object]:
    paths = {step.name: path.relative_to(catalog.ROOT).with_suffix(".code") for path, step in sources.steps().items()}
    return {
        "project": "GPU kernels in Python, one optimisation at a time",
        "author": "",
        "extensions": ["myst_parser", "common.book.book"],
        "source_suffix": {".md": "markdown"},
        "html_theme": "furo",
        "html_title": "GPU kernels in Python",
        "html_static_path": [str(STATIC)],
        "html_js_files": ["elements.js", "book.js"],
        "html_css_files": ["book.css"],
        "html_show_sphinx": False,
        "html_show_copyright": False,
        "html_copy_source": False,
        "html_show_sourcelink": False,
        "html_show_search_summary": False,  # from disk a page may not read another
        "html_permalinks_icon": "#",
        "myst_heading_anchors": 4,
        "myst_enable_extensions": ["dollarmath"],
        "myst_disable_syntax": ["myst_line_comment", "myst_block_break"],  # a line may begin with %
        "pygments_style": "a11y-high-contrast-light",
        "highlight_language": "none",
        "suppress_warnings": ["myst.header", "myst.xref_missing"],  # tests look at all links
        "nitpicky": True,
        "workbook_steps": {name: path.as_posix() for name, path in paths.items()},
    }


class Mentions(SphinxPostTransform):  # type: ignore[misc]
    """Link every step that is named as code."""

    default_priority = 900

    def run(self, **_: Any) -> None:
        here = self.env.docname
        # the head of a table is what its column is sorted by
        outer = [one for kind in (nodes.reference, nodes.title, nodes.thead) for one in self.document.findall(kind)]
        inside = {literal for one in outer for literal in one.findall(nodes.literal)}
        for literal in list(self.document.findall(nodes.literal)):
            place = self.config.workbook_steps.get(literal.astext())
            if place is None or place == here or literal in inside:
                continue
            uri = self.app.builder.get_relative_uri(here, place)
            literal.replace_self(nodes.reference("", "", literal.deepcopy(), internal=True, refuri=uri))


def _levels(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """The theme's headings in the navigation are told without their level."""
    tree = context.get("furo_navigation_tree", "")
    context["furo_navigation_tree"] = tree.replace(' role="heading"', ' role="heading" aria-level="2"')


def setup(app: Sphinx) -> dict[str, bool]:
    """What Sphinx calls."""
    app.add_config_value("workbook_steps", {}, "env")
    app.connect("html-page-context", _levels, priority=900)  # after the theme's
    app.add_post_transform(Mentions)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
