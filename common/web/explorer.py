"""One step's trace as a page that explains itself: source, cost of each line, the lanes of each request.

A page is one file without links to others, so that a student can keep it or send it. In the book the pages share
their style and script, and lead to each other.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from common.book import catalog, problems
from common.book.catalog import Step
from common.report import records, traces
from common.report.entries import StepRow
from common.report.traces import Access, Kernel, StepTrace
from common.web import STATIC

MOST_BYTES = 3 * 2**20
# Of a multiprocessor of compute capability 8.6 to 9.0: FP32 multiply-adds in a clock (CUDA C++ Programming Guide,
# "Arithmetic Instructions"). Shared memory gives one wavefront in a clock.
FMA_PER_CLOCK = 128
UNITS = {
    "shared": "wavefronts of shared memory",
    "global": "sectors of global memory",
    "constant": "reads of constant memory",
}
# Where the book's theme keeps what its reader chose. Before the page is painted.
_THEME = '<script>document.documentElement.dataset.theme = localStorage.getItem("theme") || "auto";</script>'
_FEW = 1e-4  # fewer loads for a multiply-add are an engine's, which moves whole tiles


@dataclass(frozen=True)
class Shown:
    """A step's trace as it is shown: the step, or with ``path`` another file in its place."""

    step: Step
    trace: StepTrace
    path: Path

    @property
    def name(self) -> str:
        return self.step.name if self.path == self.step.path else self.path.name


@dataclass(frozen=True)
class Link:
    """A link above a book's page."""

    to: str
    words: str


class _Step(Struct):
    """What the script reads of one step; ``sources``: lines by file."""

    name: str
    sources: dict[str, list[str]]
    trace: StepTrace


def shown(step: Step, trace: StepTrace, file: Path | None = None) -> Shown:
    """A trace of the step, or of ``file`` in its place."""
    return Shown(step, trace, file or step.path)


def page(steps: Sequence[Shown], links: Sequence[Link] = (), static: str | None = None) -> str:
    """The page of one step, or of two side by side.

    With ``static``, the address of the folder of style and script, the page is not whole without them, nor without
    each step's ``data``, which lies beside it as ``STEP.js``.
    """
    title = " and ".join(one.name for one in steps)
    style, script = ((STATIC / f"explore.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    head = (
        f"<style>\n{style}</style>"
        if static is None
        else f'<link rel="stylesheet" href="{static}/explore.css">{_THEME}'
    )
    if static is None:
        foot = f'<script type="application/json" id="trace">{_json(steps)}</script>\n<script>\n{script}</script>'
    else:
        sources = [*(f"{one.name}.js" for one in steps), f"{static}/explore.js"]
        foot = "\n".join(f'<script src="{source}"></script>' for source in sources)
    nav = " · ".join(f'<a href="{html.escape(one.to)}">{html.escape(one.words)}</a>' for one in links)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}: the microscope</title>\n{head}\n</head>\n<body>\n"
        + (f'<nav aria-label="the book">{nav}</nav>\n' if nav else "")
        + f'<main>\n<h1>{html.escape(title)}</h1>\n{_lede(steps)}\n<div id="explorer"></div>\n'
        f"<noscript>{_plain(steps)}</noscript>\n</main>\n"
        f"{foot}\n</body>\n</html>\n"
    )


def data(one: Shown) -> str:
    """A step's source and trace as a script, which all pages with the step share."""
    return f"(window.WORKBOOK_TRACES ||= []).push(...{_json([one])});\n"


def _json(steps: Sequence[Shown]) -> str:
    return msgspec.json.encode([_data(one) for one in steps]).decode().replace("</", "<\\/")


def _data(one: Shown) -> _Step:
    sources, kernels = {}, []
    for kernel in one.trace.kernels:
        name = Path(kernel.file).name if Path(kernel.file).is_absolute() else kernel.file
        sources[name] = lines(kernel)
        kernels.append(replace(kernel, file=name))
    return _Step(one.name, sources, replace(one.trace, kernels=kernels))


def lines(kernel: Kernel) -> list[str]:
    """The source that a kernel's line numbers are of."""
    return (catalog.ROOT / kernel.file).read_text(encoding="utf-8").splitlines()


# --- what is said first ---


def _lede(steps: Sequence[Shown]) -> str:
    said = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in sentences(steps))
    return f'<div class="said">{said}</div>{_bars(steps)}'


def sentences(steps: Sequence[Shown]) -> list[str]:
    """What a step costs for a thousand multiply-adds; of two, by how much they differ, and what follows."""
    counts = [(one.name, sum(len(kernel.faults) for kernel in one.trace.kernels)) for one in steps]
    said = [f"{name} is wrong: {count} fault{'s' * (count != 1)}, told below." for name, count in counts if count]
    if any(not one.trace.chief.fma for one in steps):
        return [*said, *(f"One block of {one.name}: {_moves(one.trace.chief)}." for one in steps)]
    if len(steps) == 2:
        return [*said, *_measured(steps), *_compared(steps)]
    return [*said, _each(steps[0]), *_clocks(steps)]


def _moves(kernel: Kernel) -> str:
    moved = [(space, kernel.moved(space)) for space in UNITS]
    return " and ".join(f"{count:,} {UNITS[space]}" for space, count in moved if count) or "no access to memory"


def _each(one: Shown) -> str:
    """``A thousand multiply-adds of STEP take 157 sectors of global memory; each ...``"""
    kernel = one.trace.chief
    moved = [(space, per_thousand(kernel, space)) for space in UNITS]
    parts = [f"{number(count)} {UNITS[space]}" for space, count in moved if count]
    loads = [f"{number(each)} from {space} memory" for space, each in kernel.loads.items() if each >= _FEW]
    text = f"A thousand multiply-adds of {one.name} take {' and '.join(parts) or 'nothing from memory'}"
    return f"{text}. Load instructions for each multiply-add: {', '.join(loads)}." if loads else f"{text}."


def per_thousand(kernel: Kernel, space: str) -> float:
    """Sectors or wavefronts for a thousand multiply-adds; 0 for a kernel without one."""
    return 1000 * kernel.moved(space) / kernel.fma if kernel.fma else 0.0


def number(value: float) -> str:
    """Three digits, as people read them.

    >>> [number(value) for value in (1234.5, 64.51, 0.0039, 2.0)]
    ['1,234', '64.5', '0.0039', '2']
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _compared(steps: Sequence[Shown]) -> list[str]:
    """The traffic of each memory and the loads that make it, the memory that differs most first; then the clocks."""
    (one, before), (other, after) = ((each.name, each.trace.chief) for each in steps)
    said = []
    for space in UNITS:
        was, now = per_thousand(before, space), per_thousand(after, space)
        if was or now:
            times = max(was, now) / (min(was, now) or max(was, now))
            text = f"{UNITS[space].capitalize()} for a thousand multiply-adds: "
            text += f"{one} {number(was)}, {other} {number(now)}"
            if times >= 1.05:
                text += f", {number(times)} times as {'few' if was > now else 'many'}"
            loads = before.loads.get(space, 0.0), after.loads.get(space, 0.0)
            if max(loads) >= _FEW and min(loads) < 0.95 * max(loads):
                text += f"; for one multiply-add, {number(loads[0])} and {number(loads[1])} load instructions"
            said.append((times, f"{text}."))
    texts = [text for _, text in sorted(said, key=lambda entry: -entry[0])]
    return texts[:1] + _clocks(steps) + texts[1:]


def _measured(steps: Sequence[Shown]) -> list[str]:
    """The times of the reference card's record, where both steps have one of their code as it is."""
    preset = problems.DEFAULT_PRESET[steps[0].step.ladder]
    if any(one.path != one.step.path for one in steps):
        return []
    record = _reference()
    times = []
    for one in steps:
        row = record.row(preset, one.step.name)
        if not isinstance(row, StepRow) or not catalog.is_current(row, one.step.path):
            return []
        times.append((one.name, row.timing.median_ms))
    (one_name, was), (other_name, now) = times
    slower, faster = (one_name, other_name) if was > now else (other_name, one_name)
    text = f"On an {record.gpu_name} at {preset}, {one_name} takes {number(was)} ms and {other_name} {number(now)} ms"
    return [f"{text}: {slower} is {number(max(was, now) / min(was, now))} times as slow as {faster}."]


@lru_cache
def _reference() -> records.Record:
    return records.Record.load(records.RESULTS / f"{records.REFERENCE_GPU}.json")


def _clocks(steps: Sequence[Shown]) -> list[str]:
    """Is it shared memory that the multiplication waits for? Only of FP32 units."""
    found = [(one.name, per_thousand(one.trace.chief, "shared")) for one in steps]
    if not all(map(fp32, steps)) or not any(waves for _, waves in found):
        return []
    need = 1000 / FMA_PER_CLOCK
    said = [
        f"In one clock a multiprocessor does {FMA_PER_CLOCK} FP32 multiply-adds, but one wavefront: a thousand "
        f"multiply-adds are {number(need)} clocks of arithmetic."
    ]
    for name, waves in found:
        follows = "it waits for shared memory" if waves > 1.5 * need else "about as many"
        follows = "fewer than its arithmetic" if waves <= need else follows
        if waves:
            said.append(f"{name} needs {number(waves)} clocks of shared memory for them: {follows}.")
    return [" ".join(said)]


def fp32(one: Shown) -> bool:
    """Does its main kernel multiply on the FP32 units?"""
    return not catalog.on_tensor_cores(one.step, traces.problem(one.step))


def bars(steps: Sequence[Shown]) -> list[tuple[str, list[tuple[str, float]]]]:
    """What is drawn above the source: a title, and by step a value, on a common scale within each title."""
    kernels = [(one.name, one.trace.chief) for one in steps]
    if any(not kernel.fma for _, kernel in kernels):
        return []
    found = []
    for space in UNITS:
        values = [(name, per_thousand(kernel, space)) for name, kernel in kernels]
        if space == "shared" and all(fp32(one) for one in steps) and any(value for _, value in values):
            values.append(("clocks to multiply", 1000 / FMA_PER_CLOCK))
        found.append((f"{UNITS[space]} for 1,000 multiply-adds", values))
    for space in UNITS:
        loads = [(name, kernel.loads.get(space, 0.0)) for name, kernel in kernels]
        if max(value for _, value in loads) >= _FEW:
            found.append((f"loads from {space} memory for a multiply-add", loads))
    return [(title, values) for title, values in found if any(value for _, value in values[: len(steps)])]


def _bars(steps: Sequence[Shown]) -> str:
    if len(steps) < 2:
        return ""
    parts = []
    for title, values in bars(steps):
        most = max(value for _, value in values)
        rows = "".join(
            f'<div class="bar {"need" if i == len(steps) else f"of{i}"}"><span>{html.escape(name)}</span>'
            f'<i style="width:{max(0.3, 100 * value / most) if value else 0:.1f}%"></i><b>{number(value)}</b></div>'
            for i, (name, value) in enumerate(values)
        )
        parts.append(f"<div><h2>{title[0].upper()}{html.escape(title[1:])}</h2>{rows}</div>")
    return f'<div class="bars">{"".join(parts)}</div>'


# --- without scripts ---


def _plain(steps: Sequence[Shown]) -> str:
    """What a browser without scripts shows: the lines and what they cost."""
    heads = ("line", "access", "bits", "requests", "moved", "", "efficiency", "source")
    head = "".join(f'<th scope="col">{text}</th>' for text in heads)
    tables = []
    for one in steps:
        for kernel in one.trace.kernels:
            rows = "".join(_plain_row(access, lines(kernel)) for access in kernel.accesses)
            caption = f"{html.escape(one.name)}, kernel {html.escape(kernel.name)}, {html.escape(one.trace.shape)}"
            faults = "".join(f'<p class="bad-text">{html.escape(fault.text)}</p>' for fault in kernel.faults)
            tables.append(
                f'{faults}<div class="wide"><table><caption>{caption}</caption><tr>{head}</tr>{rows}</table></div>'
            )
    return "".join(tables)


def _plain_row(access: Access, source: list[str]) -> str:
    unit = UNITS[access.space].partition(" ")[0]
    share = access.ideal / access.moved if access.moved else 1.0
    text = source[access.line - 1].strip() if access.line <= len(source) else ""
    cells = (
        access.line,
        f"{access.op} {access.array}",
        access.bits,
        access.requests,
        access.moved,
        unit,
        f"{share:.0%}",
    )
    row = "".join(f"<td>{html.escape(str(cell))}</td>" for cell in cells)
    return f"<tr>{row}<td><code>{html.escape(text)}</code></td></tr>"
