"""One step's trace as a page that explains itself: source, cost of each line, the lanes of each request.

A page is one file without links to others, so that a student can keep it or send it. In the book the pages share
their style and script, and lead to each other.
"""

from __future__ import annotations

import ast
import html
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from common.book import STATIC
from common.catalog import catalog, lessontext, problems
from common.catalog.catalog import Step
from common.records import records
from common.records.entries import StepRow
from common.report import traces
from common.report.traces import Access, Kernel, StepTrace
from common.timing import profiler

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
# Of the glossary, what a page says; a reader finds it in a tooltip, and below the code.
WORDS = (
    "warp", "lane", "request", "sector", "wavefront", "bank", "multiprocessor", "multiply-add", "global memory",
    "shared memory", "constant memory",
)  # fmt: skip
_BUSY = {"fma_pipe_pct": "FP32 units", "issue_pct": "issue slots", "l1_pct": "L1 and shared memory",
         "l2_pct": "L2", "dram_pct": "the memory behind it"}  # fmt: skip
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

    @property
    def chief(self) -> Kernel:
        """The main kernel."""
        return self.trace.chief

    @property
    def wrong(self) -> bool:
        """Has a kernel a fault?"""
        return any(kernel.faults for kernel in self.trace.kernels)

    @property
    def launched(self) -> list[Kernel]:
        """The kernels of each launch: without those that only ``prepare`` starts, once."""
        once = _started(self.path, "prepare") - _started(self.path, "launch")
        return [kernel for kernel in self.trace.kernels if kernel.name not in once]

    def moved(self, space: str) -> float:
        """Sectors or wavefronts of all blocks of a launch, each taken as the traced one."""
        return sum(kernel.moved(space) * _times(kernel) for kernel in self.launched)

    @property
    def fma(self) -> float:
        """Multiply-adds of a launch, as :meth:`moved`."""
        return self.chief.fma * _times(self.chief)


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


def _times(kernel: Kernel) -> float:
    return math.prod(kernel.grid) / kernel.blocks


@lru_cache(maxsize=256)
def _started(path: Path, function: str) -> frozenset[str]:
    """The names of all that a function of a step's file starts with a grid and a block."""
    found = [
        node
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name == function
    ]
    parts = [part for node in found for part in ast.walk(node) if isinstance(part, ast.Subscript)]
    return frozenset(part.value.id for part in parts if isinstance(part.value, ast.Name))


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
    if static is None:
        head = f"<style>\n{style}</style>"
        foot = f'<script type="application/json" id="trace">{_json(steps)}</script>\n<script>\n{script}</script>'
    else:
        head = f'<link rel="stylesheet" href="{static}/explore.css">{_THEME}'
        sources = [*(f"{one.name}.js" for one in steps), f"{static}/explore.js"]
        foot = "\n".join(f'<script src="{source}"></script>' for source in sources)
    nav = " · ".join(f'<a href="{html.escape(one.to)}">{html.escape(one.words)}</a>' for one in links)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}: what each line costs</title>\n{head}\n</head>\n<body>\n"
        + (f'<nav aria-label="the book">{nav}</nav>\n' if nav else "")
        + f'<main>\n<h1>{html.escape(title)}</h1>\n{_lede(steps, static)}\n<div id="explorer"></div>\n'
        f"<noscript>{_plain(steps)}</noscript>\n{_more(steps, static)}</main>\n"
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


def _lede(steps: Sequence[Shown], static: str | None) -> str:
    known: set[str] = set()
    faults = "".join(f'<p class="bad-text">{html.escape(text)}</p>' for text in _faults(steps))
    said = "".join(f"<p>{_with_words(sentence, static, known)}</p>" for sentence in sentences(steps))
    return f'<div class="said">{faults}{said}</div>{_bars(steps)}'


def _faults(steps: Sequence[Shown]) -> list[str]:
    said = []
    for one in steps:
        texts = [fault.text for kernel in one.trace.kernels for fault in kernel.faults]
        if texts:
            said += [f"{one.name} is wrong: {len(texts)} fault{'s' * (len(texts) != 1)}.", *texts]
    return said


def sentences(steps: Sequence[Shown]) -> list[str]:
    """What a step costs for a thousand multiply-adds; of two, where they differ most, and what follows."""
    if any(not one.chief.fma for one in steps):
        return [f"One block of {one.name}: {_moves(one.chief)}." for one in steps]
    if len(steps) == 2:
        return [*_measured(steps), *_compared(steps)[:1], *_clocks(steps), *_now_limited(steps)]
    return [_each(steps[0]), *_clocks(steps)]


def notes(steps: Sequence[Shown]) -> list[str]:
    """What is to be known of the counts, and what two steps' other memories say."""
    if any(not one.chief.fma for one in steps):
        return [_OF_THE_TEXT]
    said = _compared(steps)[1:] if len(steps) == 2 else []
    return [*said, *(text for one in steps for text in _of_kernels(one)), " ".join([_OF_THE_TEXT, *_remarks(steps)])]


_OF_THE_TEXT = (
    "The counts are those of the Python as it is written, before the compiler merges loads or keeps in registers "
    "what was read."
)


def _remarks(steps: Sequence[Shown]) -> list[str]:
    """Which reads the compiler is known to merge."""
    return [
        f"{kernel.name}: {remark.text.replace('`', '')}"
        for one in steps
        if one.path == one.step.path
        for kernel in one.launched
        if (remark := lessontext.remarks(catalog.LESSONS, one.step.name).get(kernel.name)) and remark.merged
    ]


def _of_kernels(one: Shown) -> list[str]:
    """Of several kernels what each costs, and how many multiply-adds are for nothing."""
    said = []
    if any(kernel is not one.chief for kernel in one.launched):
        parts = [f"{kernel.name} {_shares(one, kernel)}" for kernel in one.launched]
        said.append(
            f"{one.name} starts {len(one.launched)} kernels, and what is said of it is their sum, each block taken "
            f"as the traced one. For a thousand multiply-adds: {'; '.join(parts)}."
        )
    once = [kernel.name for kernel in one.trace.kernels if kernel not in one.launched]
    if once:
        said.append(f"{' and '.join(once)} of {one.name} runs once, before the launches: it is left out of the sums.")
    useful = _useful(one)
    if useful < 0.95:
        said.append(
            f"Of the multiply-adds of {one.chief.name}, {1 - useful:.0%} are on zeros that fill up its tiles. They "
            "count as the others do."
        )
    return said


def _shares(one: Shown, kernel: Kernel) -> str:
    moved = [(space, 1000 * kernel.moved(space) * _times(kernel) / one.fma) for space in UNITS]
    return " and ".join(f"{number(count)} {UNITS[space]}" for space, count in moved if count) or "nothing from memory"


def _useful(one: Shown) -> float:
    """The share of the main kernel's multiply-adds that the outputs are made of that its block stores."""
    stores = [access for access in one.chief.accesses if access.space == "global" and access.op == "write"]
    if not stores or not fp32(one):
        return 1.0
    outputs = sum(access.accesses * access.bits // 32 for access in stores)
    return outputs * problems.parse_shape(one.step.ladder, one.trace.shape).reduction / one.chief.fma


def _more(steps: Sequence[Shown], static: str | None) -> str:
    said = "".join(f"<p>{_with_words(text, static, set())}</p>" for text in notes(steps))
    words = "".join(
        f'<dt data-word="{word}">{_linked(word, word, static) if static else word}</dt><dd>{html.escape(text)}</dd>'
        for word, (_, text) in _glossary().items()
    )
    return (
        f'<div class="said more">{said}</div>\n<details class="words"><summary>What the words mean</summary>'
        f"<dl>{words}</dl></details>\n"
    )


@lru_cache
def _glossary() -> dict[str, tuple[str, str]]:
    """By word of WORDS, its place in the glossary and what it says there."""
    text = (catalog.LESSONS / "GLOSSARY.md").read_text(encoding="utf-8")
    entries = re.findall(r'^- <a id="([\w-]+)"></a>(\*\*.*?\*\*): (.*(?:\n  .*)*)', text, re.MULTILINE)
    found = {
        name.lower(): (anchor, " ".join(re.sub(r"[`*]", "", said).split()))
        for anchor, names, said in entries
        for name in re.findall(r"\*\*([^*]+)\*\*", names)
    }
    return {word: found[word] for word in WORDS}


def _linked(word: str, text: str, static: str | None) -> str:
    """A word with what it means; in the book it leads to the glossary, too."""
    anchor, said = _glossary()[word]
    title = html.escape(f"{word}: {said}")
    if static is None:
        return f'<abbr title="{title}">{html.escape(text)}</abbr>'
    return f'<a class="word" href="../lessons/GLOSSARY.html#{anchor}" title="{title}">{html.escape(text)}</a>'


_WORD = re.compile(rf"(?<![\w-])({'|'.join(sorted(WORDS, key=len, reverse=True))})s?(?![\w-])", re.IGNORECASE)


def _with_words(sentence: str, static: str | None, known: set[str]) -> str:
    """The sentence as HTML, each word of the glossary explained where it stands first."""
    parts, at = [], 0
    for match in _WORD.finditer(sentence):
        if match[1].lower() not in known:
            known.add(match[1].lower())
            parts += [html.escape(sentence[at : match.start()]), _linked(match[1].lower(), match[0], static)]
            at = match.end()
    return "".join([*parts, html.escape(sentence[at:])])


def _moves(kernel: Kernel) -> str:
    moved = [(space, kernel.moved(space)) for space in UNITS]
    return " and ".join(f"{count:,} {UNITS[space]}" for space, count in moved if count) or "no access to memory"


def _each(one: Shown) -> str:
    """``A thousand multiply-adds of STEP take 157 sectors of global memory; each ...``"""
    kernel = one.chief
    moved = [(space, per_thousand(one, space)) for space in UNITS]
    parts = [f"{number(count)} {UNITS[space]}" for space, count in moved if count]
    loads = [f"{number(each)} from {space} memory" for space, each in kernel.loads.items() if each >= _FEW]
    text = f"A thousand multiply-adds of {one.name} take {' and '.join(parts) or 'nothing from memory'}"
    of = f" of {kernel.name}" if len(one.launched) > 1 else ""
    return f"{text}. Load instructions for each multiply-add{of}: {', '.join(loads)}." if loads else f"{text}."


def per_thousand(one: Shown, space: str) -> float:
    """Sectors or wavefronts of all kernels of a launch for a thousand multiply-adds; 0 without one."""
    return 1000 * one.moved(space) / one.fma if one.fma else 0.0


def number(value: float) -> str:
    """Three digits, as people read them.

    >>> [number(value) for value in (1234.5, 64.51, 0.0039, 2.0)]
    ['1,234', '64.5', '0.0039', '2']
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _compared(steps: Sequence[Shown]) -> list[str]:
    """The traffic of each memory and the loads that make it, the memory that differs most first."""
    one, other = (each.name for each in steps)
    before, after = (each.chief for each in steps)
    said = []
    for space in UNITS:
        was, now = (per_thousand(each, space) for each in steps)
        if was or now:
            times = max(was, now) / (min(was, now) or max(was, now))
            text = f"{UNITS[space].capitalize()} for a thousand multiply-adds: "
            text += f"{one} {number(was)}, {other} {number(now)}"
            if times >= 1.05:
                text += f", {number(times)} times {'fewer' if was > now else 'as many'}"
            loads = before.loads.get(space, 0.0), after.loads.get(space, 0.0)
            if max(loads) >= _FEW and min(loads) < 0.95 * max(loads):
                text += f"; for one multiply-add, {number(loads[0])} and {number(loads[1])} load instructions"
            said.append((times, f"{text}."))
    return [text for _, text in sorted(said, key=lambda entry: -entry[0])]


def _measured(steps: Sequence[Shown]) -> list[str]:
    """The times of the reference card's record, where both steps have one of their code as it is."""
    times = _times_of(steps)
    if not times:
        return []
    preset = problems.DEFAULT_PRESET[steps[0].step.ladder]
    (one, was), (other, now) = zip((one.name for one in steps), times, strict=True)
    faster, slower = (other, one) if was > now else (one, other)
    where = f"On an {_reference().gpu_name} at {preset} ({problems.PRESETS[preset]})"
    took = f"{one} takes {number(was)} ms and {other} {number(now)} ms"
    return [f"{where}, {took}: {faster} is {number(max(times) / min(times))} times as fast as {slower}."]


def _times_of(steps: Sequence[Shown]) -> list[float]:
    """The steps' recorded times in ms; none unless all have one of their code as it is."""
    found = []
    for one in steps:
        row = _reference().row(problems.DEFAULT_PRESET[one.step.ladder], one.step.name)
        if one.path != one.step.path or not isinstance(row, StepRow) or not records.is_current(row, one.path):
            return []
        found.append(row.timing.median_ms)
    return found


def _now_limited(steps: Sequence[Shown]) -> list[str]:
    """Where the time fell by less than the counts: what holds the later step up, if counters tell."""
    times = _times_of(steps)
    if not times or times[1] >= times[0] or not all(map(fp32, steps)):
        return []
    before, after = steps
    fell = [per_thousand(before, space) / (per_thousand(after, space) or math.inf) for space in UNITS]
    if max(fell) < 1.25 * times[0] / times[1]:
        return []
    said = f"The time fell by less than that: something else now limits {after.name}."
    profile = _reference().profile(problems.DEFAULT_PRESET[after.step.ladder], after.step.name)
    if profile is None:
        return [said]
    main = profiler.main_kernel(profile.kernels)
    (most, name), (next_most, other) = sorted(((getattr(main, k) or 0.0, what) for k, what in _BUSY.items()))[:-3:-1]
    when = "" if records.is_current(profile, after.path) else ", when they were read on an older version of the file"
    return [
        f"{said} By the hardware's counters, its {name} were busy for {most:.0f} % of the time, its {other} for "
        f"{next_most:.0f} %{when}."
    ]


@lru_cache
def _reference() -> records.Record:
    return records.Record.load(records.RESULTS / f"{records.REFERENCE_GPU}.json")


def _clocks(steps: Sequence[Shown]) -> list[str]:
    """Is it shared memory that the multiplication waits for? Only of FP32 units."""
    found = [(one.name, per_thousand(one, "shared")) for one in steps if not one.wrong]
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
    kernels = [(one.name, one.chief) for one in steps]
    if any(not kernel.fma for _, kernel in kernels):
        return []
    found = []
    for space in UNITS:
        values = [(one.name, per_thousand(one, space)) for one in steps]
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
            tables.append(f'<div class="wide"><table><caption>{caption}</caption><tr>{head}</tr>{rows}</table></div>')
    return "".join(tables)


def _plain_row(access: Access, source: list[str]) -> str:
    unit = UNITS[access.space].partition(" ")[0]
    share = access.ideal / access.moved if access.moved else 1.0
    text = source[access.line - 1].strip() if access.line <= len(source) else ""
    does = f"{access.op} {access.array}"
    cells = access.line, does, access.bits, access.requests, access.moved, unit, f"{share:.0%}"
    row = "".join(f"<td>{html.escape(str(cell))}</td>" for cell in cells)
    return f"<tr>{row}<td><code>{html.escape(text)}</code></td></tr>"
