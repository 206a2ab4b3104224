"""Edited files: a run of a step, again at every save; the commands ``history``, ``restore`` and ``reset``."""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

from common.catalog import catalog, exercises, shipped, sources, store
from common.catalog.catalog import Step
from common.commands import console, verdicts
from common.commands.console import RIGHT, UNUSABLE
from common.edit import history, loop, words
from common.run import isolate


def show_history(options: argparse.Namespace) -> int:
    files = [_file_of(options.step)] if options.step else shipped.everything()
    found = history.events(files[0].stem if options.step else None)
    known = {event.step for event in found}
    paths = [path for path in files if path.stem in known]
    present = {path.stem: history.sha(store.read_bytes(path)) for path in paths if path.exists()}
    originals = {path.stem: history.sha(shipped.text(path) or b"") for path in paths}
    if found:
        console.say().print(words.events(found, present, originals))
    else:
        console.tell("the history is empty: it will list each run of an edited step")
    return RIGHT


def _file_of(text: str) -> Path:
    """The file of a step, experiment, helper or exercise, by its name, its path or an exercise's number."""
    with suppress(ValueError):
        return exercises.find(text).path
    return shipped.find(Path(text).stem if text.endswith(".py") else text)


def restore(options: argparse.Namespace) -> int:
    path = _file_of(options.step)
    event = history.choose(path, options.version)
    saved = history.put_back(path, history.stored(path.name, event.source), "restored")
    console.tell(f"{path.stem}: restored as of {words.when(event)} (N {event.number}, {event.source[:8]})")
    if saved and saved != event.source:
        console.tell(f"what stood there was saved: python -m common restore {path.stem} {saved[:8]}")
    return RIGHT


def reset(options: argparse.Namespace) -> int:
    lessons, wanted = catalog.lessons(), options.lesson or ""
    folders = [catalog.LESSONS / name / part for name in lessons for part in (".", catalog.EXPERIMENTS)
               if wanted in (name, name[:2])]  # fmt: skip
    try:
        files = [path for path in shipped.everything() if path.parent in folders] or [_file_of(wanted)]
    except ValueError:
        numbers = ", ".join(name[:2] for name in lessons)
        given = f"LESSON={wanted}" if wanted else "no lesson is named"
        text = f"{given}: must be one of {numbers}, or the name of a step, a helper or an exercise"
        raise ValueError(text) from None
    for path in files:
        original = shipped.text(path)
        if original is None:
            console.complain(f"{path.stem}: left as it is: neither git nor .workbook has the shipped version")
        elif path.exists() and store.read_bytes(path) == original:
            console.tell(f"{path.stem}: as shipped")
        else:
            saved = history.put_back(path, original, "reset")
            kept = f"; your version: python -m common restore {path.stem} {saved[:8]}" if saved else ""
            console.tell(f"{path.stem}: reset{kept}")
    name_edited_helpers()
    return RIGHT


def name_edited_helpers(meaning: str = "so is every step that imports it") -> None:
    """Say which of the lessons' helpers are edited, and what that means."""
    for path in shipped.edited_helpers():
        back = f"python -m common reset {path.stem} brings the shipped one back, and keeps yours"
        console.warn(f"{store.shown(path)} is edited: {meaning}; {back}")


def keep(steps: Sequence[Step] = ()) -> None:
    """Where no git keeps them, copy the shipped files before they are edited; store those of ``steps`` and of their
    helpers that are. What cannot be kept is said and stops nothing."""
    try:
        shipped.keep_copies()
        for path in dict.fromkeys(one for step in steps for one in (step.path, *shipped.edited_helpers(step.path))):
            if shipped.edited(path):
                history.save(path)
    except OSError as error:
        console.warn(f"this run is not kept: {error}")


def run_edited(step: Step, preset: str | None, without_gpu: bool, stop: threading.Event | None = None) -> int:
    """Run an edited step, printing each stage as it comes; it enters the history."""
    printed = False
    this = loop.Run(step, preset or catalog.usual_preset(step), without_gpu, stop or threading.Event())
    with closing(this.stages()) as stages:
        for stage in stages:
            printed = printed or console.tell(*words.printed(stage.outcomes))
            if stage.failed:
                verdicts.print_complaints(stage.failed)
                console.tell(f"[dim]{stage.seconds:.1f} s[/]")
                return verdicts.exit_code(stage.failed, asked=True)
            console.tell(*words.stage(step.name, stage))
    if this.verdict == "right":
        return RIGHT
    unfinished, unjudged = "[dim]left unfinished[/]", f"[yellow]{this.verdict}: nothing was judged to be right[/]"
    console.tell(unfinished if this.verdict == "unfinished" else unjudged)
    return UNUSABLE


def watch(steps: list[Step], at_once: bool, preset: str | None, without_gpu: bool) -> int:
    """Run steps whenever their files are saved, until Ctrl-C; the edited ones, or all if ``at_once``, now. A run ends
    early if its step is saved again."""
    stop, path = threading.Event(), Path()

    def run_saved(path: Path, stop: threading.Event) -> None:
        """Run the steps that a saved file is, or that import it."""
        saved = time.strftime("%H:%M:%S", time.localtime(path.stat().st_mtime))
        console.say().rule(f"{path.name}, saved {saved}")
        for step in steps:
            if path == step.path or path in sources.imported_helpers(step.path):
                run_edited(step, preset, without_gpu, stop)

    pending = [step.path for step in steps if at_once or not shipped.as_shipped(step.path)]
    saves = loop.Saves([*(step.path for step in steps), *shipped.helpers()])
    isolate.warm()
    console.tell(f"watching {', '.join(step.name for step in steps)}: save a file to run it, Ctrl-C to end")
    with ThreadPoolExecutor(1) as worker:
        running: Future[None] = worker.submit(lambda: None)
        try:
            while True:
                for saved in saves.look():
                    pending += [saved] if saved not in pending else []
                    if saved == path:
                        stop.set()
                if running.done():
                    running.result()  # raises what it raised
                    if pending:
                        path, stop = pending.pop(0), threading.Event()
                        running = worker.submit(run_saved, path, stop)
                time.sleep(loop.LOOK_SECONDS)
        except KeyboardInterrupt:
            console.tell("no longer watching")
        finally:
            stop.set()
            isolate.cool()
    return RIGHT
