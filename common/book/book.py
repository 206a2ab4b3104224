"""``make book``: the pages of the checkout, and one for each file of code, as a static site that opens from disk."""

from __future__ import annotations

import gc
import io
import os
import re
import shutil
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import docutils_namespace, patch_docutils

from common.book import STATIC, explorer
from common.catalog import catalog
from common.report import traces

PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "lessons/**/*.md", "results/*.md")
PICTURES = (".png", ".svg", ".jpg")
CODE = (".py", ".toml", ".json", ".txt")
EXPLORE = Path("explore/index.md")
Pages = Mapping[Path, str]  # Markdown by place
_LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json"}
# fenced code, which stays as it is, or a link
_PART = re.compile(
    r"^[ \t]*(?P<fence>`{3,}|~{3,}).*?(?:^[ \t]*(?P=fence)[`~]*[ \t]*$|\Z)"
    r"|(?<!\\)(?P<image>!?)\[(?P<words>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^()\s]+)\)",
    re.MULTILINE | re.DOTALL,
)


class BookError(RuntimeError):
    """A warning of Sphinx's, which names page and line."""


def build(to: Path, work: Path) -> int:
    """Build the book into ``to``, by way of ``work``; returns the number of its pages. Raises BookError where Sphinx
    warns, ValueError for a link that leads nowhere."""
    source = work / "source"
    if source.exists():
        shutil.rmtree(source)
    traced = traces.fitting()
    stage(source, catalog.ROOT, {EXPLORE: explorer.index(traced)}, explorer.above(traced))
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
    paths = {step.name: path.relative_to(catalog.ROOT).with_suffix(".code") for path, step in steps().items()}
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


# --- what it is built from ---


@lru_cache
def steps() -> dict[Path, catalog.Step]:
    """All steps and experiments by path."""
    return {step.path: step for step in catalog.everything()}


def stage(to: Path, root: Path = catalog.ROOT, made: Pages | None = None, above: Pages | None = None) -> None:
    """Write all sources of the book under ``to``. ``made``: pages that are no file of the checkout; ``above``: what
    stands above a step's code. Raises ValueError for a link that leads nowhere, with page and line."""
    pages = sorted(path for pattern in PAGES for path in root.glob(pattern))
    wanted: set[Path] = {path.relative_to(root) for path in steps()}
    texts = {_place(path.relative_to(root)): _turned(path, root, wanted) for path in pages}
    texts |= made or {}
    for place, contents in _contents(sorted(texts)).items():
        texts[place] += contents
    for path in wanted:
        texts[_code_place(path)] = _code_page(path, root, (above or {}).get(root / path, ""))
    for place, text in texts.items():
        (to / place).parent.mkdir(parents=True, exist_ok=True)
        (to / place).write_text(text, encoding="utf-8")
    for path in (*root.glob("lessons/*/figures/**/*"), *root.glob("results/charts/**/*")):
        if path.suffix in PICTURES:
            target = to / path.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


def _place(page: Path) -> Path:
    """Where a page of the checkout goes."""
    return page.with_name("index.md") if page.name == "README.md" else page.with_suffix(".md")


def _code_place(path: Path) -> Path:
    return path.with_suffix(".code.md") if path.suffix == ".py" else path.with_name(f"{path.name}.code.md")


def _turned(page: Path, root: Path, wanted: set[Path]) -> str:
    """The page's text with its links turned; ``wanted`` gets the files of code that they lead to."""
    here = _place(page.relative_to(root)).parent

    def turned(match: re.Match[str]) -> str:
        image, words, target = match["image"], match["words"], match["target"]
        if match["fence"] or "://" in target or target.startswith(("#", "mailto:")):
            return match[0]
        name, _, anchor = target.partition("#")
        path = Path(os.path.normpath(page.parent / name))
        if not path.exists() or not path.is_relative_to(root):
            line = match.string.count("\n", 0, match.start()) + 1
            raise ValueError(f"{page.relative_to(root)}:{line}: link to {target!r}: there is no such file")
        path = path.relative_to(root)
        if path.suffix in CODE and not image:
            wanted.add(path)
            path = _code_place(path)
        elif path.suffix not in PICTURES:
            path = path / "README.md" if (root / path).is_dir() else path
            if path.suffix != ".md" or not (root / path).exists():
                return words  # a notebook, or a folder without a page: named, not linked
            path = _place(path)
        return f"{image}[{words}]({_up(here, path)}{'#' + anchor if anchor else ''})"

    return _PART.sub(turned, page.read_text(encoding="utf-8"))


def _up(here: Path, path: Path) -> str:
    return Path(os.path.relpath(path, here)).as_posix()


def _contents(places: list[Path]) -> dict[Path, str]:
    """By page, the hidden tables of contents that make the navigation."""
    lessons = [place for place in places if place.parts[0] == "lessons" and place.name == "index.md"]
    others = [one for one in places if one.parts[0] == "lessons" and len(one.parts) == 2 and one.name != "index.md"]
    tables = {
        Path("index.md"): _tree("Lessons", lessons)
        + _tree("To look up", others + [EXPLORE] * (EXPLORE in places))
        + _tree("Records", [place for place in places if place.parts[0] == "results"])
        + _tree("The project", [p for p in places if len(p.parts) == 1 and p.name != "index.md"])
    }
    for index in lessons:
        inner = [place for place in places if place.is_relative_to(index.parent) and place != index]
        own = [step.path.relative_to(catalog.ROOT) for step in steps().values() if not step.experiment]
        code = [_code_place(path) for path in own if path.parent == index.parent]
        tables[index] = _tree("", [*inner, *code], index.parent)
    return tables


def _tree(caption: str, places: list[Path], here: Path = Path()) -> str:
    if not places:
        return ""
    lines = "\n".join(_up(here, place.with_suffix("")) for place in places)
    said = f":caption: {caption}\n" if caption else ""
    return f"\n```{{toctree}}\n:hidden:\n{said}\n{lines}\n```\n"


def _code_page(path: Path, root: Path, above: str) -> str:
    """A page that shows a file: what it is, the step that it grew from, and its text in colours."""
    step = steps().get(root / path)
    said = f"`{path.as_posix()}`"
    if step:
        lesson = _up(path.parent, Path("lessons") / step.lesson / "index.md")
        said += f", a step of [lesson {step.lesson[:2]}]({lesson})"
        if before := step.builds_on or step.predecessor:
            said += f". It grew from `{before}`: `make diff TO={step.name}` shows what is new"
        said += "."
    orphan = "" if step and not step.experiment else "---\norphan: true\n---\n"
    title = path.stem if path.suffix == ".py" else path.name
    code = (root / path).read_text(encoding="utf-8")
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall(r"`+", code) or [""]))  # longer than those in it
    code = f"{fence}{_LANGUAGES.get(path.suffix, 'text')}\n{code.rstrip()}\n{fence}"
    return f"{orphan}# {title}\n\n{said}\n{above}\n{code}\n"
