"""A ladder as a story: for each step what limited the last one, what it gained, and what changed in the code."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from common.catalog import catalog, problems, sources
from common.catalog.catalog import Step
from common.records import records
from common.records.records import Record
from common.report import figures

PRESET = "gemm-4096"
_HUNK = re.compile(r"@@ \S+ (\d+)-\d+, \S+ (\d+)-\d+ @@")
_TAGS = {"-": "del", "+": "ins", " ": "span"}


def final() -> Step:
    """The last step of the ladder that computes in float32 as it stands."""
    ladder = problems.preset(PRESET).ladder
    return [one for one in catalog.steps() if one.ladder == ladder and one.precision == catalog.PRECISIONS[0]][-1]


def chapters() -> list[Step]:
    """The steps of the story, in teaching order."""
    last = final()
    return [*catalog.predecessors(last), last]


def page() -> str:
    """The page in Markdown: prose between the marks of its structure, so that it is searched and steps are linked."""
    steps = chapters()
    card = records.REFERENCE_GPU
    record = records.other(card) or records.nothing()
    named = record.gpu_name
    timed = f"The times are those of `{PRESET}` on one {named}." if named else "None of them is timed yet."
    head = [
        "---\nhide-toc: true\n---",
        f"# From `{steps[0].name}` to `{final().name}`",
        f"{len(steps)} kernels multiply the same two matrices. Each changes one idea of the one before. {timed}",
        _raw(_contents(steps)),
        _raw(f'<div class="story" data-card="{card}" data-preset="{PRESET}">\n<aside class="grows">'),
        f"![The ladder's times](results/charts/{card}/{PRESET}.png)" if named else "",
        _raw('</aside>\n<div class="chapters">'),
    ]
    body = [_chapter(steps, i, record) for i in range(len(steps))]
    return "\n\n".join([*head, *body, _raw("</div>\n</div>")]) + "\n"


def _chapter(steps: list[Step], i: int, record: Record) -> str:
    step, before = steps[i], steps[i - 1] if i else None
    said = _sections(step)
    limited = ""
    if before:
        limited = f"**What limited** `{before.name}`: loads per multiply-add: {_sections(before)['Loads per FMA']}"
    heading = f"<code>{step.name}</code>: {_marked(step.title.rstrip('.'))}"
    parts = [
        _raw(f'<section class="chapter" id="{step.name}" data-step="{step.name}">\n<h2>{i + 1}. {heading}</h2>'),
        limited,
        f"**The idea**: {said['New idea']}",
        f"**Now**, loads per multiply-add: {said['Loads per FMA']}",
        _timed(steps, i, record),
        _raw(_code(step)),
        _raw(_onward(steps, i) + "</section>"),
    ]
    return "\n\n".join(part for part in parts if part)


def _sections(step: Step) -> dict[str, str]:
    """What the docstring says under each of its headings, in Markdown."""
    text = step.path.read_text(encoding="utf-8").split('"""')[1]
    found = re.findall(r"^([A-Z][\w ]+): (.*(?:\n    .*)*)", text, re.MULTILINE)
    return {name: _ended(re.sub(r"([*_<\[])", r"\\\1", " ".join(said.split()))) for name, said in found}


def _ended(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _marked(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def _timed(steps: list[Step], i: int, record: Record) -> str:
    """The step's time and what it gained, as the record has them; nothing where it has none."""
    name = steps[i].name
    took = figures.time(record, PRESET, name)
    if took is None:
        return "**Not timed yet.**"
    said = f"**{took.text} ms**"
    if i:
        last = figures.speed_up(record, PRESET, steps[i - 1].name, name)
        first = figures.speed_up(record, PRESET, steps[0].name, name)
        gains = ((last, steps[i - 1]), (first if i > 1 else None, steps[0]))
        said += "".join(f", {gain.text} times as fast as `{other.name}`" for gain, other in gains if gain)
    share = record.derive(PRESET, row) if (row := record.row(PRESET, name)) else None
    if share:
        said += f", {share.percent_of_floor:.0f} % of what the FP32 units allow"
    older = " An older version of the file was measured." if figures.older(record, PRESET, name) else ""
    return f"{said}.{older}"


def _code(step: Step) -> str:
    """The whole of the first step's code, or what a step changes of the one it grew from, in colours."""
    grew = step.builds_on or step.predecessor
    if grew is None:
        lines = [(" ", line) for line in _coloured(step)]
        title = f"The kernel, {len(lines)} lines"
    else:
        lines = list(_changes(catalog.find(grew), step))
        new, old = (sum(sign == mark for sign, _ in lines) for mark in "+-")
        title = f"What changes of <code>{grew}</code>: {new} new lines for {old}"
    body = "".join(_line(sign, line) for sign, line in lines)
    name = f"code of {step.name}" if grew is None else f"changes from {grew} to {step.name}"
    return (
        f'<details class="diff" open><summary>{title}</summary>\n'
        f'<div class="highlight"><pre tabindex="0" role="region" aria-label="{name}">{body}</pre></div>\n</details>'
    )


def _line(sign: str, line: str) -> str:
    if sign == "@":
        return f'<span class="hunk">{line}\n</span>'
    tag = _TAGS[sign]
    return f'<{tag} class="line"><span class="sign">{sign}</span> {line}\n</{tag}>'


def _changes(old: Step, new: Step) -> Iterator[tuple[str, str]]:
    """The difference of two steps: each line's sign, and the line in the colours that it has in its whole file."""
    before, after = (_coloured(step) for step in (old, new))
    i = j = 0
    for line in sources.difference(old, new):
        hunk = _HUNK.fullmatch(line)
        if hunk:
            i, j = int(hunk[1]) - 1, int(hunk[2]) - 1
            yield "@", f"{new.name}.py, from line {j + 1} after the docstring"
            continue
        sign = line[0]
        yield sign, before[i] if sign == "-" else after[j]
        i, j = i + (sign != "+"), j + (sign != "-")


def _coloured(step: Step) -> list[str]:
    """The lines of a step's code as HTML; a string over several lines is coloured in each of them."""
    lines = sources.without_docstring(step.path)
    shown: str = highlight("\n".join(lines) + "\n", PythonLexer(stripnl=False), HtmlFormatter(nowrap=True))
    return shown.split("\n")[: len(lines)]


def _contents(steps: list[Step]) -> str:
    lines = "".join(f'<li><a href="#{step.name}"><code>{step.name}</code></a></li>' for step in steps)
    return f'<nav aria-label="the chapters"><ol class="chapter-list">{lines}</ol></nav>'


def _onward(steps: list[Step], i: int) -> str:
    before = f'<a href="#{steps[i - 1].name}" rel="prev">← {steps[i - 1].name}</a>' if i else ""
    after = f'<a href="#{steps[i + 1].name}" rel="next">{steps[i + 1].name} →</a>' if i + 1 < len(steps) else ""
    return f'<nav class="onward" aria-label="around {steps[i].name}">{before} {after}</nav>\n'


def _raw(text: str) -> str:
    fence = "```"
    return f"{fence}{{raw}} html\n{text}\n{fence}"
