"""The command line: ``python -m common ...`` and the lessons' ``python -m lessons.NN_name``."""

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from common.catalog import device
from common.check import run
from common.commands import arguments, bench, changed, edits, lessons, steps, tracing
from common.commands.console import RIGHT, UNREAD, UNUSABLE, blame, discard, tell
from common.run import isolate
from common.timing import tools
from common.trace.state import TraceError

# What each does, returning an exit code or nothing, in words, and the options that it takes; a learner's first.
_COMMANDS = {
    "grade": (edits.grade_files, "grade exercises, a file, or a folder of other people's files",
              "targets --json --sim --seconds --workers --out"),
    "hint": (edits.hint, "print one more hint for an exercise; without NUMBER, what has passed", "exercise?"),
    "list": (steps.show_list, "list all steps", "--json"),
    "check": (steps.check, "check that steps compute the right values, without races or unset reads",
              "steps --file --json --sim --shape --seed --full --record"),
    "time": (steps.time, "time steps on the GPU", "steps --file --json --problem"),
    "all": (changed.do_all, "check, time (with a GPU) and draw charts of all that has changed", "--sim --fresh"),
    "diff": (steps.diff, "show what differs between two steps, docstrings left out", "old new?"),
    "ship": (steps.ship, "declare helpers and exercises, as they are, the shipped ones (for maintainers)", ""),
    "inspect": (steps.inspect, "show machine code, registers and occupancy of a kernel or two; needs no GPU",
                "steps --file --json --problem --cc --ptx --sass --compiler --record"),
    "trace": (tracing.trace_steps, "run one block on the CPU and report every access to memory, line by line",
              "steps --file --json --shape --block --html --agree"),
    "history": (edits.show_history, "list the versions of edited steps and exercises, with results of runs", "step?"),
    "restore": (edits.restore, "bring back an earlier version of a step; yours is saved first", "step version?"),
    "reset": (edits.reset, "bring a lesson's steps or one file back as shipped; yours are saved first", "lesson?"),
    "run": (tracing.run_script, "run any Numba CUDA program in the tracer, without a GPU; report faults and costs",
            "script --stop --html --json"),
    "charts": (changed.charts, "draw the charts and tables of your own records that changed", "--fresh --record"),
    "book": (changed.build_book, "build the book, a site that opens in a browser without a network", ""),
    "bench": (bench.run_bench, "check and time all steps and NVIDIA's libraries that have no current record",
              "steps --problem --part --record"),
    "sweep": (bench.sweep, "time a step with other tile constants; an interrupted sweep is continued",
              "step --problem --values --record"),
}  # fmt: skip
_SIGNALLED = 128  # and the signal's number, as a shell has it
USER_ERRORS = (ValueError, OSError, device.NoGpuError, run.DeviceError, tools.ToolError, TraceError)


def main(words: Sequence[str] | None = None) -> int:
    """Run a command of ``python -m common``; returns the exit code."""
    return _guarded(parsed(sys.argv[1:] if words is None else words))


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """The options of a command. ``words`` of a program that is to be run are what is none, and all after ``--``."""
    own = words.index("--") if words[:1] == ["run"] and "--" in words else len(words)
    parser = arguments.Parser(prog="python -m common", description="Check, grade, time and inspect the kernels.")
    known = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, (command, text, options) in _COMMANDS.items():
        sub = known.add_parser(name, help=text, description=text, allow_abbrev=False)
        sub.set_defaults(command=command, json=False)
        arguments.takes(sub, options)
    found, others = parser.parse_known_args(words[:own])
    if others and found.command is not tracing.run_script:
        parser.error(f"unrecognized arguments: {' '.join(others)}")
    found.words = [*others, *words[own + 1 :]]
    return found


def lesson_main(
    lesson: str, words: Sequence[str] | None = None, own: Mapping[str, Callable[[], arguments.Parser]] | None = None
) -> int:
    """Run a lesson: check its steps, time them against the previous ones, print the table.

    ``own`` are commands that only this lesson has: if the first word is one, the rest are its parser's.
    """
    words = sys.argv[1:] if words is None else words
    if own and words and words[0] in own:
        options = own[words[0]]().parse_args(words[1:])
        return _guarded(options, needs_gpu=not getattr(options, "sim", True))
    return _guarded(lessons.parser(lesson, tuple(own or ())).parse_args(words))


def _guarded(options: argparse.Namespace, needs_gpu: bool = False) -> int:
    """Do the command: what a user can mend becomes one line and exit code 2, and a signal a tidy end."""
    isolate.reopen()
    for stream in filter(None, (sys.stdout, sys.stderr)):  # a sign that the terminal's or file's encoding lacks
        with suppress(AttributeError, ValueError):
            stream.reconfigure(errors="replace")
    came: list[int] = []
    try:
        with _signals(came):
            device.played()  # what the environment asks for and is not there is said before anything else
            device.compiler()
            if needs_gpu:
                device.ready()
            code = options.command(options) or RIGHT
            sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever read has had enough: `| head`
        discard(sys.stdout)
        return UNREAD
    except USER_ERRORS as error:
        text = str(error) or type(error).__name__
        if isinstance(error, OSError) and error.strerror:
            text = f"{error.filename or 'standard output'}: {error.strerror}"
            if error.filename is None:  # the interpreter would complain once more as it ends
                discard(sys.stdout)
        with suppress(OSError):
            if options.json:
                print(json.dumps({"error": text}), flush=True)
        blame(text)
        return UNUSABLE
    except KeyboardInterrupt:
        number = came[0] if came else signal.SIGINT
        with suppress(OSError):  # a terminal that has hung up
            tell(f"ended by {signal.Signals(number).name}: what was written so far is kept", options=options)
            sys.stdout.flush()
        return _SIGNALLED + number


@contextmanager
def _signals(came: list[int]) -> Iterator[None]:
    """Within it, the first signal to end stops all work that is waited for and raises KeyboardInterrupt; the second
    ends the program at once. The first one's number goes into ``came``."""

    def end(number: int, _: object) -> None:
        isolate.close()
        if came:
            os._exit(_SIGNALLED + number)
        came.append(number)
        raise KeyboardInterrupt

    known = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in known}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # what whoever started this wants ignored (nohup) stays so
            signal.signal(number, end)
    try:
        yield
    finally:
        if came:
            isolate.cool()  # while a second signal is heard
        for number, handler in before.items():
            signal.signal(number, handler)
