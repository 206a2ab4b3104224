"""``make book``: the pages of the checkout, and one for each file of code, as a static site that opens from disk;
and a trace as a page in one file, which ``trace --html`` writes, too. Sphinx is brought where the site is built.
"""

from __future__ import annotations

import gc
import html
import io
import math
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from string import Template
from typing import Any

import msgspec

from common.catalog import catalog
from common.catalog.catalog import Step
from common.report import traces
from common.report.traces import UNITS, Kept

STATIC = Path(__file__).parent / "static"
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "lessons/**/*.md", "results/*.md")
PICTURES = (".png", ".svg", ".jpg")
CODE = (".py", ".toml", ".json", ".txt")
EXPLORE = "explore"  # the folder of traces
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
    warns, ValueError for a link that leads nowhere, ModuleNotFoundError without Sphinx."""
    from sphinx.application import Sphinx
    from sphinx.util.docutils import docutils_namespace, patch_docutils

    source = work / "source"
    if source.exists():
        shutil.rmtree(source)
    traced = traces.fitting()
    stage(source, catalog.ROOT, traced)
    said, warned = io.StringIO(), io.StringIO()
    gc.set_threshold(100_000, 50, 50)  # the trees of all pages live until the end
    with patch_docutils(), docutils_namespace():
        app = Sphinx(
            str(source), None, str(to), str(work / "doctrees"), "html", _settings(), said,
            warned, freshenv=False, parallel=2,
        )  # fmt: skip
        app.build()
    if warned.getvalue():
        raise BookError(warned.getvalue().strip())
    write(to, traced)
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


def _mentions(app: Any, document: Any, here: str) -> None:
    """Link every step that is named as code."""
    from docutils import nodes

    # the head of a table is what its column is sorted by
    outer = [one for kind in (nodes.reference, nodes.title, nodes.thead) for one in document.findall(kind)]
    inside = {literal for one in outer for literal in one.findall(nodes.literal)}
    for literal in list(document.findall(nodes.literal)):
        place = app.config.workbook_steps.get(literal.astext())
        if place not in (None, here) and literal not in inside:
            uri = app.builder.get_relative_uri(here, place)
            literal.replace_self(nodes.reference("", "", literal.deepcopy(), internal=True, refuri=uri))


def _levels(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """The theme's headings in the navigation are told without their level."""
    tree = context.get("furo_navigation_tree", "")
    context["furo_navigation_tree"] = tree.replace(' role="heading"', ' role="heading" aria-level="2"')


def setup(app: Any) -> dict[str, bool]:
    """What Sphinx calls."""
    app.add_config_value("workbook_steps", {}, "env")
    app.connect("html-page-context", _levels, priority=900)  # after the theme's
    app.connect("doctree-resolved", _mentions)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


# --- what it is built from ---


@lru_cache
def steps() -> dict[Path, catalog.Step]:
    """All steps and experiments by path."""
    return {step.path: step for step in catalog.everything()}


def stage(to: Path, root: Path = catalog.ROOT, traced: Mapping[str, Kept] | None = None) -> None:
    """Write all sources of the book under ``to``, those of steps with the way to their traces. Raises ValueError for
    a link that leads nowhere, with page and line."""
    pages = sorted(path for pattern in PAGES for path in root.glob(pattern))
    wanted: set[Path] = {path.relative_to(root) for path in steps()}
    texts = {_place(path.relative_to(root)): _turned(path, root, wanted) for path in pages}
    if traced:
        texts[Path(EXPLORE, "index.md")] = index(traced)
    for place, contents in _contents(sorted(texts)).items():
        texts[place] += contents
    for path in wanted:
        texts[_code_place(path)] = _code_page(path, root, traced or {})
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
        + _tree("To look up", others + [place for place in places if place.parts[0] == EXPLORE])
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


def _code_page(path: Path, root: Path, traced: Mapping[str, Kept]) -> str:
    """A page that shows a file: what it is, the step that it grew from, and its text in colours."""
    step = steps().get(root / path)
    said = f"`{path.as_posix()}`"
    if step:
        lesson = _up(path.parent, Path("lessons") / step.lesson / "index.md")
        said += f", a step of [lesson {step.lesson[:2]}]({lesson})"
        if grew := step.builds_on or step.predecessor:
            said += f". It grew from `{grew}`: `make diff TO={step.name}` shows what is new"
        said += "."
        if step.name in traced:
            up = "../" * len(path.parent.parts) + EXPLORE
            said += f'\n\n<a href="{up}/{step.name}.html">What each line costs</a>'
            if other := before(step, traced):
                said += f'; <a href="{up}/{other}-{step.name}.html">beside {other}</a>'
            said += "."
    orphan = "" if step and not step.experiment else "---\norphan: true\n---\n"
    title = path.stem if path.suffix == ".py" else path.name
    code = (root / path).read_text(encoding="utf-8")
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall(r"`+", code) or [""]))  # longer than those in it
    code = f"{fence}{_LANGUAGES.get(path.suffix, 'text')}\n{code.rstrip()}\n{fence}"
    return f"{orphan}# {title}\n\n{said}\n\n{code}\n"


# --- a trace as a page: source, cost of each line, lanes of each request; above them what is moved, in sentences ---

_FEW = 1e-4  # fewer loads for a multiply-add are an engine's, which moves whole tiles
_OF_THE_TEXT = (
    "The counts are those of the Python as it is written, before the compiler merges loads or keeps in registers "
    "what was read."
)
_PARTS = "explore.css", "page.html", "elements.js", "explore.js"
# The theme that a reader of the book chose, set before the page is painted.
_THEME = '<script>document.documentElement.dataset.theme = localStorage.getItem("theme") || "auto";</script>'


Shown = tuple[str, Kept]
"""A trace as it is shown: the step's name, or that of the file in its place; what was kept of the trace."""


def moved(kernel: Kept, space: str) -> int:
    """Sectors or wavefronts of all accesses of a kernel to one memory."""
    return sum(access["moved"] for access in kernel["accesses"] if access["space"] == space)


def sentences(shown: Shown) -> str:
    """What a step moves for a thousand multiply-adds of its main kernel, each block of a grid taken as the traced
    one; without multiply-adds, what a block moves."""
    name, trace = shown
    kernels, main = trace["kernels"], trace["kernels"][trace["main"]]
    blocks = [math.prod(kernel["grid"]) / kernel["blocks"] for kernel in kernels]
    parts = []
    for space in ("shared", "global", "constant"):
        count: float = moved(main, space)
        if main["fma"]:
            total = sum(moved(kernel, space) * times for kernel, times in zip(kernels, blocks, strict=True))
            count = 1000 * total / (main["fma"] * blocks[trace["main"]])
        parts += [f"{number(count)} {UNITS[space].split()[0]} of {space} memory"] * bool(count)
    said = " and ".join(parts) or "nothing from memory"
    together = f", its {len(kernels)} kernels together" if len(kernels) > 1 else ""
    text = f"A thousand multiply-adds of {name} take {said}{together}."
    if not main["fma"]:
        text = f"One block of {name}: {said}."
    loads = [f"{number(each)} from {space} memory" for space, each in main["loads"].items() if each >= _FEW]
    return text + (f" Load instructions for each multiply-add: {', '.join(loads)}." if loads else "")


def number(value: float) -> str:
    """Three digits, as people read them: 1,234; 64.5; 0.0039; 2."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def page(steps: Sequence[Shown], links: Sequence[tuple[str, str]] = ()) -> str:
    """The page of one step, or of two side by side, in one file. ``links``: addresses with their words, above it."""
    title = html.escape(" and ".join(name for name, _ in steps))
    nav = " · ".join(f'<a href="{html.escape(to)}">{html.escape(words)}</a>' for to, words in links)
    style, template, *scripts = ((STATIC / name).read_text(encoding="utf-8") for name in _PARTS)
    told, faults = [], ""  # what the script reads: name, lines by file, trace
    for name, trace in steps:
        lines, kernels = {}, []
        for kernel in trace["kernels"]:
            path = Path(kernel["file"])
            file = path.name if path.is_absolute() else kernel["file"]
            lines[file] = (catalog.ROOT / path).read_text(encoding="utf-8").splitlines()
            kernels.append({**kernel, "file": file})
        shown = {"shape": trace["shape"], "kernels": kernels, "main": trace["main"]}
        told.append({"name": name, "sources": lines, "trace": shown})
        said = [fault["text"] for kernel in kernels for fault in kernel["faults"]]
        if said:
            said.insert(0, f"{name} is wrong: {len(said)} fault{'s' * (len(said) != 1)}.")
        faults += "".join(f'<p class="bad-text">{html.escape(fault)}</p>' for fault in said)
    data = msgspec.json.encode(told).decode().replace("</", "<\\/")
    return Template(template).substitute(
        title=title,
        names=title.replace(" and ", " "),
        head=f"<style>\n{style}</style>{_THEME}",
        nav=f'<nav aria-label="the book">{nav}</nav>\n' if links else "",
        above=f'<div class="said">{faults}{"".join(f"<p>{html.escape(sentences(one))}</p>" for one in steps)}</div>',
        below=f"<p>{_OF_THE_TEXT}</p>",
        foot=f'<script type="application/json" id="trace">{data}</script>\n<script>\n{"".join(scripts)}</script>',
    )


# --- the book's pages: one for every step, and one for it beside the step that it grew from ---


def before(step: Step, traced: Mapping[str, Kept]) -> str:
    """The traced step that the step is shown beside, the one that it grew from; "" if there is none."""
    return next((name for name in (step.builds_on, step.predecessor) if name in traced), None) or ""


def write(to: Path, traced: Mapping[str, Kept]) -> None:
    """Write all pages into the built book."""
    steps = {step.name: step for step in catalog.steps()}
    grew_from = {name: before(steps[name], traced) for name in traced}
    every, folder = ("index.html", "all steps"), to / EXPLORE
    folder.mkdir(exist_ok=True)
    for name, trace in traced.items():
        code = steps[name].path.relative_to(catalog.ROOT).with_suffix(".code.html").as_posix()
        links = [(f"../{code}", f"{name} in the book"), every]
        links += [
            (f"{one}-{later}.html", f"beside {one if later == name else later}")
            for later, one in grew_from.items()
            if one and name in (one, later)
        ]
        texts = {name: page([(name, trace)], links)}
        if other := grew_from[name]:
            pair = [(other, traced[other]), (name, trace)]
            texts[f"{other}-{name}"] = page(pair, [(f"{one}.html", one) for one, _ in pair] + [every])
        for file, text in texts.items():
            (folder / f"{file}.html").write_text(text, encoding="utf-8")


def index(traced: Mapping[str, Kept]) -> str:
    """The Markdown page that lists them."""
    text = (
        "# What each line costs\n\n"
        "Under the [microscope](../lessons/microscope/index.md): what each line of a kernel costs, and which lane "
        "asks for what, in one block of every step, traced on a CPU. "
        "From its page, a step can be looked at beside the one that it grew from. "
        "`python -m common trace STEP --file MINE.py --html OUT.html` makes such a page of your own kernel.\n"
    )
    ladder = ""
    for step in (step for step in catalog.steps() if step.name in traced):
        if step.ladder != ladder:
            ladder = step.ladder
            text += f"\n## {ladder}\n\n| step | what it does |\n| :-- | :-- |\n"
        title = step.title.replace("|", "&#124;")
        text += f'| <a href="{step.name}.html">{step.name}</a> | {title} |\n'
    return text
