"""One step's trace, or two side by side, as a page in one file: source, cost of each line, the lanes of each request;
above them the traffic of a thousand multiply-adds, in sentences."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from pathlib import Path
from string import Template

import msgspec

from common.book import STATIC
from common.catalog import catalog
from common.catalog.catalog import Step
from common.report.traces import UNITS, Kept

_FEW = 1e-4  # fewer loads for a multiply-add are an engine's, which moves whole tiles
_OF_THE_TEXT = (
    "The counts are those of the Python as it is written, before the compiler merges loads or keeps in registers "
    "what was read."
)
FOLDER = "explore"  # of the book's pages
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
    return Template(template).substitute(
        title=title,
        names=title.replace(" and ", " "),
        head=f"<style>\n{style}</style>{_THEME}",
        nav=f'<nav aria-label="the book">{nav}</nav>\n' if links else "",
        above=_above(steps),
        below=f"<p>{_OF_THE_TEXT}</p>",
        foot=f'<script type="application/json" id="trace">{_json(steps)}</script>\n'
        f"<script>\n{''.join(scripts)}</script>",
    )


def _json(steps: Sequence[Shown]) -> str:
    """What the script reads of steps: name, lines by file, trace."""
    told = []
    for name, trace in steps:
        lines, kernels = {}, []
        for kernel in trace["kernels"]:
            path = Path(kernel["file"])
            file = path.name if path.is_absolute() else kernel["file"]
            lines[file] = (catalog.ROOT / path).read_text(encoding="utf-8").splitlines()
            kernels.append({**kernel, "file": file})
        shown = {"shape": trace["shape"], "kernels": kernels, "main": trace["main"]}
        told.append({"name": name, "sources": lines, "trace": shown})
    return msgspec.json.encode(told).decode().replace("</", "<\\/")


def _above(steps: Sequence[Shown]) -> str:
    """Faults and sentences."""
    text = ""
    for name, trace in steps:
        said = [fault["text"] for kernel in trace["kernels"] for fault in kernel["faults"]]
        if said:
            said.insert(0, f"{name} is wrong: {len(said)} fault{'s' * (len(said) != 1)}.")
        text += "".join(f'<p class="bad-text">{html.escape(fault)}</p>' for fault in said)
    text += "".join(f"<p>{html.escape(sentences(one))}</p>" for one in steps)
    return f'<div class="said">{text}</div>'


# --- the book's pages: one for every step, and one for it beside the step that it grew from ---


def before(step: Step, traced: dict[str, Kept]) -> str:
    """The traced step that the step is shown beside, the one that it grew from; "" if there is none."""
    return next((name for name in (step.builds_on, step.predecessor) if name in traced), None) or ""


def write(to: Path, traced: dict[str, Kept]) -> None:
    """Write all pages into the built book."""
    steps = {step.name: step for step in catalog.steps()}
    grew_from = {name: before(steps[name], traced) for name in traced}
    index, folder = ("index.html", "all steps"), to / FOLDER
    folder.mkdir(exist_ok=True)
    for name, trace in traced.items():
        code = steps[name].path.relative_to(catalog.ROOT).with_suffix(".code.html").as_posix()
        links = [(f"../{code}", f"{name} in the book"), index]
        links += [
            (f"{one}-{later}.html", f"beside {one if later == name else later}")
            for later, one in grew_from.items()
            if one and name in (one, later)
        ]
        texts = {name: page([(name, trace)], links)}
        if other := grew_from[name]:
            pair = [(other, traced[other]), (name, trace)]
            texts[f"{other}-{name}"] = page(pair, [(f"{one}.html", one) for one, _ in pair] + [index])
        for file, text in texts.items():
            (folder / f"{file}.html").write_text(text, encoding="utf-8")


def above(traced: dict[str, Kept]) -> dict[Path, str]:
    """What stands above a step's code in the book, by the step's file: the way to its pages here."""
    found = {}
    for step in catalog.steps():
        if step.name in traced:
            up = "../" * len(step.path.relative_to(catalog.ROOT).parent.parts) + FOLDER
            text = f'\n<a href="{up}/{step.name}.html">What each line costs</a>'
            if other := before(step, traced):
                text += f'; <a href="{up}/{other}-{step.name}.html">beside {other}</a>'
            found[step.path] = f"{text}.\n"
    return found


def index(traced: dict[str, Kept]) -> str:
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
