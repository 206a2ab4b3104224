"""One step's trace, or two side by side, as a page in one file: source, cost of each line, the lanes of each request;
above them the traffic of a thousand multiply-adds, in sentences."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

import msgspec

from common.book import STATIC
from common.catalog import catalog
from common.catalog.catalog import Step
from common.report.traces import Kept

UNITS = {
    "shared": "wavefronts of shared memory",
    "global": "sectors of global memory",
    "constant": "reads of constant memory",
}
_FEW = 1e-4  # fewer loads for a multiply-add are an engine's, which moves whole tiles
_OF_THE_TEXT = (
    "The counts are those of the Python as it is written, before the compiler merges loads or keeps in registers "
    "what was read."
)
FOLDER = "explore"  # of the book's pages
_PARTS = "explore.css", "page.html", "elements.js", "explore.js"
# The theme that a reader of the book chose, set before the page is painted.
_THEME = '<script>document.documentElement.dataset.theme = localStorage.getItem("theme") || "auto";</script>'


@dataclass(frozen=True)
class Shown:
    """A step's trace as it is shown: of the step's own file, or of another in its place at ``path``."""

    step: Step
    trace: Kept
    path: Path

    @property
    def name(self) -> str:
        return self.step.name if self.path == self.step.path else self.path.name

    @property
    def kernels(self) -> list[Kept]:
        return list(self.trace["kernels"])

    @property
    def chief(self) -> Kept:
        """The main kernel."""
        return self.kernels[self.trace["main"]]

    def moved(self, space: str, *kernels: Kept) -> float:
        """Sectors or wavefronts of kernels, by default all, for a thousand multiply-adds of the main one, each block
        taken as the traced one; without multiply-adds, what a block of the main one moves."""
        fma = int(self.chief["fma"])
        if not fma:
            return moved(self.chief, space)
        total = sum(moved(one, space) * _blocks(one) for one in kernels or self.kernels)
        return 1000 * total / (fma * _blocks(self.chief))

    def traffic(self, *kernels: Kept) -> str:
        """What :meth:`moved` says of each memory, in words."""
        each = ((self.moved(space, *kernels), unit) for space, unit in UNITS.items())
        return " and ".join(f"{number(count)} {unit}" for count, unit in each if count) or "nothing from memory"


def _blocks(kernel: Kept) -> float:
    """How many times the traced blocks the grid has."""
    return float(math.prod(kernel["grid"]) / kernel["blocks"])


def moved(kernel: Kept, space: str) -> int:
    """Sectors or wavefronts of all accesses of a kernel to one memory."""
    return sum(access["moved"] for access in kernel["accesses"] if access["space"] == space)


def sentences(one: Shown) -> str:
    """What a step costs for a thousand multiply-adds, and each of several kernels; without them, a block of it."""
    text = f"A thousand multiply-adds of {one.name} take {one.traffic()}."
    if not one.chief["fma"]:
        text = f"One block of {one.name}: {one.traffic()}."
    elif len(one.kernels) > 1:
        each = "; ".join(f"{kernel['name']} {one.traffic(kernel)}" for kernel in one.kernels)
        text += f" That is of {len(one.kernels)} kernels, each block taken as the traced one: {each}."
    loads = [f"{number(each)} from {space} memory" for space, each in one.chief["loads"].items() if each >= _FEW]
    return text + (f" Load instructions for each multiply-add: {', '.join(loads)}." if loads else "")


def number(value: float) -> str:
    """Three digits, as people read them.

    >>> [number(value) for value in (1234.5, 64.51, 0.0039, 2.0)]
    ['1,234', '64.5', '0.0039', '2']
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def page(steps: Sequence[Shown], links: Sequence[tuple[str, str]] = ()) -> str:
    """The page of one step, or of two side by side, in one file. ``links``: addresses with their words, above it."""
    title = html.escape(" and ".join(one.name for one in steps))
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
    for one in steps:
        lines, kernels = {}, []
        for kernel in one.kernels:
            path = Path(kernel["file"])
            name = path.name if path.is_absolute() else kernel["file"]
            lines[name] = (catalog.ROOT / path).read_text(encoding="utf-8").splitlines()
            kernels.append({**kernel, "file": name})
        trace = {"shape": one.trace["shape"], "kernels": kernels, "main": one.trace["main"]}
        told.append({"name": one.name, "sources": lines, "trace": trace})
    return msgspec.json.encode(told).decode().replace("</", "<\\/")


def _above(steps: Sequence[Shown]) -> str:
    """Faults and sentences."""
    text = ""
    for one in steps:
        said = [fault["text"] for kernel in one.kernels for fault in kernel["faults"]]
        if said:
            said.insert(0, f"{one.name} is wrong: {len(said)} fault{'s' * (len(said) != 1)}.")
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
    beside_each = {name: before(steps[name], traced) for name in traced}
    index, files = ("index.html", "all steps"), dict[str, str]()
    for name, trace in traced.items():
        step, other = steps[name], beside_each[name]
        code = step.path.relative_to(catalog.ROOT).with_suffix(".code.html").as_posix()
        beside = [(f"{other}-{name}.html", f"beside {other}")] if other else []
        beside += [(f"{name}-{one}.html", f"beside {one}") for one in traced if beside_each[one] == name]
        shown = Shown(step, trace, step.path)
        files[f"{name}.html"] = page([shown], [(f"../{code}", f"{name} in the book"), index, *beside])
        if other:
            pair = [Shown(steps[other], traced[other], steps[other].path), shown]
            files[f"{other}-{name}.html"] = page(pair, [(f"{one}.html", one) for one in (other, name)] + [index])
    folder = to / FOLDER
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


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
    parts = [
        "# What each line costs\n\n",
        "Under the [microscope](../lessons/microscope/index.md): what each line of a kernel costs, and which lane "
        "asks for what, in one block of every step, traced on a CPU. "
        "From its page, a step can be looked at beside the one that it grew from. "
        "`python -m common trace STEP --file MINE.py --html OUT.html` makes such a page of your own kernel.\n",
    ]
    for ladder in dict.fromkeys(step.ladder for step in catalog.steps()):
        steps = [step for step in catalog.steps() if step.ladder == ladder and step.name in traced]
        if steps:
            parts.append(f"\n## {ladder}\n\n| step | what it does |\n| :-- | :-- |\n")
        for step in steps:
            title = step.title.replace("|", "&#124;")
            parts.append(f'| <a href="{step.name}.html">{step.name}</a> | {title} |\n')
    return "".join(parts)
