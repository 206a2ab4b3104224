"""The book's microscope pages: one for every step, and one for it beside each step before it on its ladder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from common.book import explorer
from common.catalog import catalog
from common.catalog.catalog import Step
from common.report.traces import StepTrace

FOLDER = "explore"
_STATIC = "../_static"


def address(step: str, before: str = "") -> str:
    """A page's name within the folder."""
    return f"{before}-{step}.html" if before else f"{step}.html"


def before(step: Step, steps: Iterable[Step], traced: dict[str, StepTrace]) -> list[str]:
    """The traced steps that the step is shown beside: the one that it grew from, then others, the nearest first.

    ``steps`` are all, in teaching order.
    """
    ladder = [one.name for one in steps if one.ladder == step.ladder]
    first = [name for name in (step.builds_on, step.predecessor) if name]
    names = [*first, *reversed(ladder[: ladder.index(step.name)])]
    return [name for name in dict.fromkeys(names) if name in traced]


def write(to: Path, traced: dict[str, StepTrace]) -> None:
    """Write all pages into the built book; pages of steps that are gone go."""
    folder = to / FOLDER
    folder.mkdir(exist_ok=True)
    files = dict(_files(traced))
    for path in folder.iterdir():
        if path.name not in (*files, address("index")):
            path.unlink()
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


def _files(traced: dict[str, StepTrace]) -> Iterator[tuple[str, str]]:
    steps = {step.name: step for step in catalog.steps()}
    beside_each = {name: before(steps[name], steps.values(), traced) for name in traced}
    for name, trace in traced.items():
        step, others = steps[name], beside_each[name]
        later = [one for one in traced if name in beside_each[one]]
        top = [(f"../{_code(step)}", f"{name} in the book"), ("index.html", "all steps")]
        beside = [(address(name, other), f"beside {other}") for other in others]
        beside += [(address(one, name), f"beside {one}") for one in later]
        yield f"{name}.js", explorer.data(explorer.shown(step, trace))
        yield address(name), explorer.page([explorer.shown(step, trace)], [*top, *beside], _STATIC)
        for other in others:
            pair = [explorer.shown(steps[other], traced[other]), explorer.shown(step, trace)]
            alone = [(address(one), one) for one in (other, name)]
            yield address(name, other), explorer.page(pair, [*alone, top[1]], _STATIC)


def _code(step: Step) -> str:
    return step.path.relative_to(catalog.ROOT).with_suffix(".code.html").as_posix()


def above(traced: dict[str, StepTrace]) -> dict[Path, str]:
    """What stands above a step's code in the book, by the step's file: the way to its pages here."""
    found = {}
    steps = catalog.steps()
    for step in steps:
        if step.name in traced:
            up = "../" * len(step.path.relative_to(catalog.ROOT).parent.parts) + FOLDER
            text = f'\n<a href="{up}/{address(step.name)}">What each line costs</a>'
            if others := before(step, steps, traced):
                text += f'; <a href="{up}/{address(step.name, others[0])}">beside {others[0]}</a>'
            found[step.path] = f"{text}.\n"
    return found


def index(traced: dict[str, StepTrace]) -> str:
    """The Markdown page that lists them."""
    parts = [
        "# What each line costs\n\n",
        "Under the [microscope](../lessons/microscope/index.md): what each line of a kernel costs, and which lane "
        "asks for what, in one block of every step, traced on a CPU. "
        "From its page, a step can be looked at beside each other one of its ladder. "
        "`python -m common trace STEP --file MINE.py --html OUT.html` makes such a page of your own kernel.\n",
    ]
    every = catalog.steps()
    for ladder in dict.fromkeys(step.ladder for step in every):
        steps = [step for step in every if step.ladder == ladder and step.name in traced]
        if steps:
            parts.append(f"\n## {ladder}\n\n| step | what it does | beside |\n| :-- | :-- | :-- |\n")
            parts += [_row(step, every, traced) for step in steps]
    return "".join(parts)


def _row(step: Step, steps: Iterable[Step], traced: dict[str, StepTrace]) -> str:
    beside = "".join(f'<a href="{address(step.name, one)}">{one}</a>' for one in before(step, steps, traced)[:1])
    return f'| <a href="{address(step.name)}">{step.name}</a> | {step.title.replace("|", "&#124;")} | {beside} |\n'
