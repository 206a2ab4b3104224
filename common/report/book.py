"""``make book``: the pages of the checkout, and one for each file of code, as a static site that opens from disk;
and a trace as a page in one file, which ``trace --html`` writes, too. Sphinx is brought where the site is built.
"""

import gc
import html
import io
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from string import Template
from typing import Any

import msgspec

from common.catalog import catalog, sources, store
from common.catalog.catalog import Step
from common.report import traces
from common.report.traces import Kept

STATIC = Path(__file__).parent / "static"
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "lessons/**/*.md", "results/*.md")
PICTURES = (".png", ".jpg")
EXPLORE = "explore"  # the folder of traces
_LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".txt": "text"}  # of files that get a page
# fenced code, which stays as it is, or a link
_PART = re.compile(
    r"^[ \t]*(?P<fence>`{3,}|~{3,}).*?(?:^[ \t]*(?P=fence)[`~]*[ \t]*$|\Z)"
    r"|(?<!\\)(?P<image>!?)\[(?P<words>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^()\s]+)\)",
    re.MULTILINE | re.DOTALL,
)
_DATA = store.read_toml(Path(__file__).with_name("book.toml"))


class BookError(RuntimeError):
    """A warning of Sphinx's, which names page and line."""


def build(to: Path, work: Path) -> int:
    """Build the book into ``to``, by way of ``work``; returns the number of its pages. Raises BookError where Sphinx
    warns, ValueError for a link that leads nowhere, ModuleNotFoundError without Sphinx."""
    from sphinx.application import Sphinx
    from sphinx.util.docutils import docutils_namespace, patch_docutils

    source, traced = work / "source", traces.fitting()
    shutil.rmtree(source, ignore_errors=True)
    stage(source, catalog.ROOT, traced)
    said, warned, trees = io.StringIO(), io.StringIO(), str(work / "doctrees")
    gc.set_threshold(100_000, 50, 50)  # the trees of all pages live until the end
    settings = {**_DATA["sphinx"], "html_static_path": [str(STATIC)]}
    with patch_docutils(), docutils_namespace():
        app = Sphinx(str(source), None, str(to), trees, "html", settings, said, warned, parallel=2)
        app.build()
    if warned.getvalue():
        raise BookError(warned.getvalue().strip())
    write(to, traced)
    return len(app.env.found_docs)


def setup(app: Any) -> dict[str, bool]:
    """What Sphinx calls."""
    code = {step.name: path.relative_to(catalog.ROOT) for path, step in steps().items()}
    places = {name: path.with_suffix(".code").as_posix() for name, path in code.items()}
    app.add_config_value("workbook_steps", places, "env")
    app.connect("html-page-context", _levels, priority=900)  # after the theme's
    app.connect("doctree-resolved", _mentions)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _levels(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """The theme's headings in the navigation are told without their level."""
    tree = context.get("furo_navigation_tree", "")
    context["furo_navigation_tree"] = tree.replace(' role="heading"', ' role="heading" aria-level="2"')


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


# --- what it is built from ---


@lru_cache
def steps() -> dict[Path, Step]:
    """All steps and experiments by path."""
    return {step.path: step for step in catalog.everything()}


def stage(to: Path, root: Path = catalog.ROOT, traced: Mapping[str, Kept] | None = None) -> None:
    """Write all sources of the book under ``to``, those of steps with the way to their traces. Raises ValueError for
    a link that leads nowhere, with page and line."""
    pages = sorted(path.relative_to(root) for pattern in PAGES for path in root.glob(pattern))
    code = {path.relative_to(root) for path in steps()}  # and files that pages lead to
    texts = {_place(page): _turned(page, root, code) for page in pages}
    texts[Path(EXPLORE, "index.md")] = index(traced or {})
    navigation = _DATA["navigation"].items()
    texts[Path("index.md")] += "".join(_tree(f":caption: {head}\n", lines) for head, lines in navigation)
    for place in [place for place in texts if place.match("lessons/*/index.md")]:
        inner = [one for one in texts if one.is_relative_to(place.parent) and one != place]
        own = (step.path.relative_to(root) for step in steps().values() if not step.experiment)
        inner += [_place(path) for path in own if path.parent == place.parent]
        texts[place] += _tree("", "\n".join(_up(place.parent, one.with_suffix("")) for one in inner))
    texts |= {_place(path): _code_page(path, root, traced or {}) for path in code}
    files = {place: text.encode() for place, text in texts.items()}
    for path in (*root.glob("lessons/*/figures/**/*"), *root.glob("results/charts/**/*")):
        if path.suffix in PICTURES:
            files[path.relative_to(root)] = path.read_bytes()
    for place, data in files.items():
        (to / place).parent.mkdir(parents=True, exist_ok=True)
        (to / place).write_bytes(data)


def _place(path: Path) -> Path:
    """Where a page of the checkout goes, or that of a file of code."""
    if path.suffix == ".md":
        return path.with_name("index.md") if path.name == "README.md" else path
    return path.with_suffix(".code.md") if path.suffix == ".py" else path.with_name(f"{path.name}.code.md")


def _turned(page: Path, root: Path, code: set[Path]) -> str:
    """The page's text with its links turned; ``code`` gets the files of code that they lead to."""

    def turned(match: re.Match[str]) -> str:
        name, _, anchor = (match["target"] or "").partition("#")
        if match["fence"] or not name or re.search("://|^mailto:", name):
            return match[0]
        path = Path(os.path.normpath(root / page.parent / name))
        if not path.exists() or not path.is_relative_to(root):
            line = match.string.count("\n", 0, match.start()) + 1
            raise ValueError(f"{page}:{line}: link to {match['target']!r}: there is no such file")
        path = (path / "README.md" if path.is_dir() else path).relative_to(root)
        if path.suffix in _LANGUAGES and not match["image"]:
            code.add(path)
        elif path.suffix not in (*PICTURES, ".md") or not (root / path).exists():
            return match["words"]  # a notebook, or a folder without a page: named, not linked
        place = path if path.suffix in PICTURES else _place(path)
        return f"{match['image']}[{match['words']}]({_up(page.parent, place)}{'#' * bool(anchor)}{anchor})"

    return _PART.sub(turned, (root / page).read_text(encoding="utf-8"))


def _up(here: Path, path: Path) -> str:
    return Path(os.path.relpath(path, here)).as_posix()


def _tree(head: str, lines: str) -> str:
    """A hidden table of contents, which makes the navigation."""
    return f"\n```{{toctree}}\n:hidden:\n:glob:\n{head}\n{lines}\n```\n" if lines else ""


def _code_page(path: Path, root: Path, traced: Mapping[str, Kept]) -> str:
    """A page that shows a file: what it is, the step that it grew from, and its text in colours."""
    step, said = steps().get(root / path), f"`{path.as_posix()}`"
    if step:
        lesson = _up(path.parent, Path("lessons") / step.lesson / "index.md")
        said += f", a step of [lesson {step.lesson[:2]}]({lesson})"
        if grew := step.builds_on or step.predecessor:
            said += f". It grew from `{grew}`: "
            whole = sources.mostly_new(sources.difference(catalog.find(grew), step), step)
            said += "most of it is new, read it whole" if whole else f"`make diff TO={step.name}` shows what is new"
        said += "."
        if step.name in traced:
            up = _up(path.parent, Path(EXPLORE))
            said += f'\n\n<a href="{up}/{step.name}.html">What each line costs</a>'
            if other := before(step, traced):
                said += f'; <a href="{up}/{other}-{step.name}.html">beside {other}</a>'
            said += "."
    orphan = "" if step and not step.experiment else "---\norphan: true\n---\n"
    title = path.stem if path.suffix == ".py" else path.name
    code, fence = (root / path).read_text(encoding="utf-8").rstrip(), "`" * 9  # longer than any in it
    return f"{orphan}# {title}\n\n{said}\n\n{fence}{_LANGUAGES[path.suffix]}\n{code}\n{fence}\n"


# --- a trace as a page: source, cost of each line, lanes of each request; above them what is loaded ---

_FEW = 1e-4  # fewer loads for a multiply-add are an engine's, which moves whole tiles
_PARTS = "explore.css", "page.html", "elements.js", "explore.js"


def sentence(name: str, trace: Kept) -> str:
    """What a step's main kernel loads for each multiply-add; empty where it has none."""
    loads = trace["kernels"][trace["main"]]["loads"].items()
    said = ", ".join(f"{each:.3g} from {space} memory" for space, each in loads if each >= _FEW)
    return said and f"Load instructions of {name} for each multiply-add: {said}."


def page(steps: Sequence[tuple[str, Kept]], links: Sequence[tuple[str, str]] = ()) -> str:
    """The page of one step, or of two side by side, in one file: of each its name, or that of the file in its place,
    and its trace. ``links``: addresses with their words, above it."""
    title = html.escape(" and ".join(name for name, _ in steps))
    nav = " · ".join(f'<a href="{html.escape(to)}">{html.escape(words)}</a>' for to, words in links)
    style, template, *scripts = ((STATIC / name).read_text(encoding="utf-8") for name in _PARTS)
    told, above = [], ""  # what the script reads: name, lines by file, trace
    for name, trace in steps:
        lines, kernels = {}, []
        for kernel in trace["kernels"]:
            path = Path(kernel["file"])
            file = path.name if path.is_absolute() else kernel["file"]
            lines[file] = (catalog.ROOT / path).read_text(encoding="utf-8").splitlines()
            kernels.append({**kernel, "file": file})
        shown = {"shape": trace["shape"], "kernels": kernels, "main": trace["main"]}
        told.append({"name": name, "sources": lines, "trace": shown})
        faults = [fault["text"] for kernel in kernels for fault in kernel["faults"]]
        if faults:
            faults.insert(0, f"{name} is wrong: {len(faults)} fault{'s' * (len(faults) != 1)}.")
        above += "".join(f'<p class="bad-text">{html.escape(fault)}</p>' for fault in faults)
        above += f"<p>{html.escape(said)}</p>" if (said := sentence(name, trace)) else ""
    data = msgspec.json.encode(told).decode().replace("</", "<\\/")
    return Template(template).substitute(
        title=title,
        names=title.replace(" and ", " "),
        style=style,
        nav=f'<nav aria-label="the book">{nav}</nav>\n' if links else "",
        above=above,
        trace=data,
        scripts="".join(scripts),
    )


# --- the book's pages: one for every step, and one for it beside the step that it grew from ---


def before(step: Step, traced: Mapping[str, Kept]) -> str:
    """The traced step that the step is shown beside, the one that it grew from; "" if there is none."""
    return next((name for name in (step.builds_on, step.predecessor) if name in traced), None) or ""


def write(to: Path, traced: Mapping[str, Kept]) -> None:
    """Write all pages into the built book."""
    own = {step.name: step for step in catalog.steps() if step.name in traced}
    pairs = [(one, name) for name in traced if (one := before(own[name], traced))]
    every, folder = ("index.html", "all steps"), to / EXPLORE
    folder.mkdir(exist_ok=True)
    texts = {}
    for name, trace in traced.items():
        code = own[name].path.relative_to(catalog.ROOT).with_suffix(".code.html").as_posix()
        links = [(f"../{code}", f"{name} in the book"), every]
        links += [(f"{a}-{b}.html", f"beside {a if b == name else b}") for a, b in pairs if name in (a, b)]
        texts[name] = page([(name, trace)], links)
    for pair in pairs:
        links = [(f"{one}.html", one) for one in pair]
        texts["-".join(pair)] = page([(one, traced[one]) for one in pair], [*links, every])
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")


def index(traced: Mapping[str, Kept]) -> str:
    """The Markdown page that lists them."""
    rows = ""
    for step in (step for step in catalog.steps() if step.name in traced):
        title = step.title.replace("|", "&#124;")
        rows += f'| <a href="{step.name}.html">{step.name}</a> | {step.ladder} | {title} |\n'
    return Template((STATIC / "index.md").read_text(encoding="utf-8")).substitute(rows=rows)
