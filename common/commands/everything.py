"""The main job, ``all``: check, time, compile and draw what changed."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator

from common.catalog import catalog, lessontext
from common.catalog.catalog import Step
from common.check import plan
from common.commands import arguments, choosing, console, pictures, verdicts
from common.commands.bench import Bench
from common.commands.console import RIGHT
from common.edit import loop
from common.jobs import run, unchanged
from common.jobs.run import Outcome
from common.report import tables
from common.run import isolate


def commands(known: arguments.Commands) -> None:
    sub = known.add("all", _all, "check everything, time it if there is a GPU, draw charts and tables: what changed")
    arguments.takes_sim(sub)
    sub.add_argument("--fresh", action="store_true", help="all of it anew, whether anything changed or not")


def _all(options: argparse.Namespace) -> int:
    say = console.say()
    steps = catalog.everything()
    simulator = choosing.simulator(options.sim, None)
    say.rule("check every step" + (" on the CPU" if simulator else ""))
    card = None if simulator else run.inspect_device()
    engine = [card[0].name, card[0].driver] if card else "simulator"
    shipped = {} if options.fresh else unchanged.shipped(steps)
    checks = unchanged.Outcomes("check", [engine, shipped], options.fresh)
    known = checks.known(steps, card[1] if card else 0)
    rest = [step for step in steps if step.name not in known]
    pairs = choosing.pairs(steps, None, every_preset=False)
    bench = Bench(pairs, *card, options.fresh, quick=True) if card else None
    preparing = bench.prepare(rest) if bench else None
    # that the compiler works here, one step shows; the others' compilations are of the record, too
    uncompiled = [step for number, step in enumerate(steps) if number == 0 or step.name not in shipped]
    compiling = Compiling(uncompiled, options.fresh) if simulator else None
    try:
        outcomes = _check_rest(steps, known, rest, checks, compiling, shipped)
        _say_shipped(shipped)
        code = verdicts.exit_code(outcomes, asked=False)
        wrong = {o.step.name for o in outcomes if not o.fine}
        for name in sorted(wrong):
            say.print(f"[yellow]{name} is not timed: it is not right[/]")
        if bench and preparing:
            say.rule("time every step")
            preparing.before_timing()
            code = max(code, bench.run(wrong))
        if compiling:
            say.rule("compile every kernel")
            code = max(code, compiling.finish())
    finally:
        if preparing:
            preparing.cancel()
        if compiling:
            compiling.workers.end()
    say.rule("photograph")
    photographed = lessontext.photo(catalog.LESSONS)
    if photographed in wrong:
        say.print(f"[yellow]the photograph is left out: {photographed} is not right[/]")
    else:
        pictures.draw_photo(catalog.find(photographed), simulator, card[0] if card else None, options.fresh)
    say.rule("charts and tables")
    if simulator:
        say.print(
            "No GPU here: the charts and tables in results/ and the pages were measured on the cards that they name."
        )
    code = max(code, pictures.redraw(options.fresh))
    verdicts.say_left_out(outcomes)
    return code


def _check_rest(
    steps: list[Step],
    known: dict[str, list[Outcome]],
    rest: list[Step],
    checks: unchanged.Outcomes,
    compiling: Compiling | None,
    shipped: Collection[str],
) -> list[Outcome]:
    """Check the steps whose verdict is not known, those ``shipped`` with one at a few shapes; the outcomes of all.

    Without a GPU, ``compiling`` follows.
    """
    console.say_kept(len(known), "verdict", "verdicts")
    found = dict(known)
    if rest:
        keeper = loop.Keeper(rest)
        seed = plan.new_seed()
        if compiling:
            checking = run.check_steps(
                rest, True, seed=seed, compiled=False, workers=compiling.workers, begun=compiling.begin, brief=shipped
            )
        else:
            checking = run.check_steps(rest, False, seed=seed, brief=shipped)
        for outcome in verdicts.checked(rest, checking):
            found.setdefault(outcome.step.name, []).append(outcome)
        verdicts.note(keeper, [outcome for step in rest for outcome in found.get(step.name, [])])
        for step in rest:
            mine = found.get(step.name, [])
            if mine and all(outcome.fine for outcome in mine):
                checks.keep(mine)
    outcomes = [outcome for step in steps for outcome in found.get(step.name, [])]
    if rest:
        verdicts.say_seed(seed)
        verdicts.print_checks(outcomes)
    return outcomes


def _say_shipped(shipped: dict[str, unchanged.Verdict]) -> None:
    if shipped:
        days = sorted({verdict.date for verdict in shipped.values()})
        dates = " to ".join(days[:: max(1, len(days) - 1)])
        console.say().print(
            f"[dim]{len(shipped)} verdicts are of the record (results/verdicts.json, {dates}: "
            "right at the whole plan, and compiled for every architecture): these steps ran at a few shapes here[/]"
        )


class Compiling:
    """Compiles every kernel not known to compile, for the usual architectures, when its ``workers`` are free."""

    def __init__(self, steps: list[Step], fresh: bool) -> None:
        from common.machine_code import codegen

        self._architectures = codegen.ARCHITECTURES
        self._steps, self.workers = steps, isolate.Pool()
        self._results = unchanged.Outcomes("compile", self._architectures, fresh)
        self._known = self._results.known(steps)
        self._rest = [step for step in steps if step.name not in self._known]
        self._compiling: Iterator[Outcome] | None = None

    def begin(self) -> None:
        """Ask the workers for it."""
        self._compiling = run.compile_steps(self._rest, self._architectures, False, workers=self.workers)

    def finish(self) -> int:
        """Wait, and print what came of it; the exit code."""
        console.say_kept(len(self._known), "compilation", "compilations")
        if not self._rest:
            return RIGHT
        if self._compiling is None:
            self.begin()
        assert self._compiling is not None
        for outcome in console.progress("compile", self._compiling, self._rest, verdicts.compiled_line):
            self._known[outcome.step.name] = [outcome]
            if outcome.status == "right":
                self._results.keep([outcome])
        outcomes = [outcome for step in self._steps for outcome in self._known[step.name]]
        verdicts.print_outcomes(tables.compiled(outcomes, self._architectures, False), outcomes)
        return verdicts.exit_code(outcomes, asked=True)
