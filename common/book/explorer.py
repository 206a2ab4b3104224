"""One step's trace, or two side by side, as a page: source, cost of each line, the lanes of each request; above them
the traffic of a thousand multiply-adds, in sentences and bars.

A page is one file, so that a student can keep it or send it; those of the book lead to each other.
"""

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
from common.report import traces
from common.report.traces import Kept

# A multiprocessor of compute capability 8.6 to 9.0 does 128 FP32 multiply-adds in a clock
# (CUDA C++ Programming Guide, "Arithmetic Instructions").
_CLOCKS = 1000 / 128  # of arithmetic, for a thousand multiply-adds
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
_SCRIPTS = "elements.js", "explore.js"
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

    @property
    def fma(self) -> int:
        """Multiply-adds of the main kernel's traced blocks."""
        return int(self.chief["fma"])

    def moved(self, space: str, kernel: Kept | None = None) -> float:
        """Sectors or wavefronts that a kernel, by default all together, moves for a thousand multiply-adds of the
        main one, each block taken as the traced one; without multiply-adds, what a block of the main one moves."""
        if not self.fma:
            return moved(self.chief, space)
        kernels = [kernel] if kernel else self.kernels
        total = sum(moved(one, space) * _blocks(one) for one in kernels)
        return 1000 * total / (self.fma * _blocks(self.chief))

    def traffic(self, kernel: Kept | None = None) -> str:
        """What :meth:`moved` says of each memory, in words."""
        each = ((self.moved(space, kernel), unit) for space, unit in UNITS.items())
        return " and ".join(f"{number(count)} {unit}" for count, unit in each if count) or "nothing from memory"


def _blocks(kernel: Kept) -> float:
    """How many times the traced blocks the grid has."""
    return float(math.prod(kernel["grid"]) / kernel["blocks"])


def moved(kernel: Kept, space: str) -> int:
    """Sectors or wavefronts of all accesses of a kernel to one memory."""
    return sum(access["moved"] for access in kernel["accesses"] if access["space"] == space)


# --- what it costs, in words ---


def sentences(steps: Sequence[Shown]) -> list[str]:
    """What each step costs for a thousand multiply-adds, and each of several kernels; without them, a block of it."""
    said = []
    for one in steps:
        text = f"A thousand multiply-adds of {one.name} take {one.traffic()}."
        if not one.fma:
            text = f"One block of {one.name}: {one.traffic()}."
        elif len(one.kernels) > 1:
            each = "; ".join(f"{kernel['name']} {one.traffic(kernel)}" for kernel in one.kernels)
            text += f" That is of {len(one.kernels)} kernels, each block taken as the traced one: {each}."
        loads = [f"{number(each)} from {space} memory" for space, each in one.chief["loads"].items() if each >= _FEW]
        if loads:
            text += f" Load instructions for each multiply-add: {', '.join(loads)}."
        said.append(text)
    return said


def number(value: float) -> str:
    """Three digits, as people read them.

    >>> [number(value) for value in (1234.5, 64.51, 0.0039, 2.0)]
    ['1,234', '64.5', '0.0039', '2']
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _bars(steps: Sequence[Shown]) -> str:
    """What is drawn above steps: of each memory a bar for each, on a common scale; beside those of shared memory,
    which gives one wavefront in a clock, the clocks that FP32 units take to multiply."""
    fp32 = not any(catalog.on_tensor_cores(one.step, traces.problem(one.step)) for one in steps)
    parts = []
    for space, unit in UNITS.items():
        values = [(one.name, one.moved(space)) for one in steps]
        if not any(value for _, value in values):
            continue
        if space == "shared" and fp32:
            values.append(("clocks to multiply", _CLOCKS))
        most = max(value for _, value in values)
        rows = "".join(
            f'<div class="bar {"need" if i == len(steps) else f"of{i}"}"><span>{html.escape(name)}</span>'
            f'<i style="width:{max(0.3, 100 * value / most) if value else 0:.1f}%"></i>'
            f"<b>{number(value)}</b></div>"
            for i, (name, value) in enumerate(values)
        )
        parts.append(f"<div><h2>{unit.capitalize()} for 1,000 multiply-adds</h2>{rows}</div>")
    return f'<div class="bars">{"".join(parts)}</div>'


# --- the page ---


def page(steps: Sequence[Shown], links: Sequence[tuple[str, str]] = ()) -> str:
    """The page of one step, or of two side by side. ``links``, addresses with their words, stand above it, and make
    it a page of the book, which has style and script beside it; without them the page is whole."""
    title = html.escape(" and ".join(one.name for one in steps))
    nav = " · ".join(f'<a href="{html.escape(to)}">{html.escape(words)}</a>' for to, words in links)
    if links:
        head = f'<link rel="stylesheet" href="../_static/explore.css">{_THEME}'
        scripts = "".join(f'<script src="../_static/{name}"></script>\n' for name in _SCRIPTS)
    else:
        head = f"<style>\n{(STATIC / 'explore.css').read_text(encoding='utf-8')}</style>"
        texts = [(STATIC / name).read_text(encoding="utf-8") for name in _SCRIPTS]
        scripts = f"<script>\n{''.join(texts)}</script>"
    return Template((STATIC / "page.html").read_text(encoding="utf-8")).substitute(
        title=title,
        names=title.replace(" and ", " "),
        head=head,
        nav=f'<nav aria-label="the book">{nav}</nav>\n' if links else "",
        above=_above(steps),
        below=f"<p>{_OF_THE_TEXT}</p>",
        foot=f'<script type="application/json" id="trace">{_json(steps)}</script>\n{scripts}',
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
    """Faults, sentences and bars."""
    text = ""
    for one in steps:
        said = [fault["text"] for kernel in one.kernels for fault in kernel["faults"]]
        if said:
            said.insert(0, f"{one.name} is wrong: {len(said)} fault{'s' * (len(said) != 1)}.")
        text += "".join(f'<p class="bad-text">{html.escape(fault)}</p>' for fault in said)
    text += "".join(f"<p>{html.escape(sentence)}</p>" for sentence in sentences(steps))
    bars = _bars(steps) if all(one.fma for one in steps) else ""
    return f'<div class="said">{text}</div>{bars}'


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
