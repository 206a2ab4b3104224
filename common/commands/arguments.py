"""What a command is given: every option, and which steps, presets and shapes were named."""

import argparse
from pathlib import Path
from typing import Any

from common.catalog import catalog, device, exercises, problems, store
from common.catalog.catalog import Step
from common.check import run
from common.commands import console
from common.records import records
from common.records.records import Record

Parser = argparse.ArgumentParser
_COPIES = 3  # of the operands: float32, and float64 for the oracle

_TYPES = {"Path": Path, "int": int, "float": float}
OPTIONS: dict[str, dict[str, Any]] = {
    name: {key: _TYPES[value] if key == "type" else value for key, value in told.items()}
    for name, told in store.read_toml(Path(__file__).with_name("options.toml")).items()
}


def refuse(options: argparse.Namespace, switch: str, *names: str) -> None:
    """Raise ValueError if an option is given that ``switch`` has no use for."""
    for name in names:
        if getattr(options, name) not in (None, False):
            raise ValueError(f"{switch}: goes with steps alone, not with --{name.replace('show', 'ptx or --sass')}")


def takes(parser: Parser, options: str) -> Parser:
    """Add some of :data:`OPTIONS`, named in one text; returns the parser."""
    for name in options.split():
        more: dict[str, Any] = {"nargs": "?"} if name.endswith("?") else {}
        parser.add_argument(name.rstrip("?"), **OPTIONS[name.rstrip("?")], **more)
    return parser


def folder(shipped: bool) -> Path:
    """Where records, charts and tables are written: the user's own, or with ``--record`` those that are shipped."""
    return records.RESULTS if shipped else records.OWN


def open_record(shipped: bool) -> Record:
    """This GPU's record, in which a run starts now."""
    record = Record.open(run.inspect_device()[0], folder(shipped))
    record.start_run()
    return record


def chosen(options: argparse.Namespace) -> list[Step]:
    """The steps or exercises' kernels named, or all steps; with --file exactly one must be named."""
    kernels = {name: one for one in exercises.everything() if one.ladder for name in (one.name, one.number)}
    steps: list[Step] = []
    for name in options.steps:
        if one := kernels.get(name):
            steps.append(Step(one.name, one.lesson, one.ladder, None, one.path, one.title, experiment=True))
        else:
            steps.append(catalog.find(name))
    if options.file is not None:
        if len(steps) != 1:
            raise ValueError(f"--file {options.file}: name the one STEP it stands in for; {len(steps)} are named")
        if not options.file.is_file():
            raise ValueError(f"--file {options.file}: there is no such file")
        options.file = options.file.resolve()
    return list(dict.fromkeys(steps)) or catalog.everything()


def one_or_two(options: argparse.Namespace, command: str) -> list[Step]:
    """The one step that is named, or the two that are to be compared; raises ValueError."""
    if len(options.steps) not in (1, 2):
        raise ValueError(f"{command} takes one STEP or two, and {len(options.steps)} are named")
    return chosen(options)


def shape_of(steps: list[Step], text: str, without_gpu: bool) -> problems.Problem:
    """The problem that ``--shape`` names, for steps of one ladder; raises ValueError."""
    ladders = {step.ladder for step in steps}
    if len(ladders) != 1:
        raise ValueError(f"--shape {text!r}: name steps of one ladder; these are of {', '.join(sorted(ladders))}")
    problem = problems.parse_shape(ladders.pop(), text)
    needed, room = _COPIES * problem.least_bytes / 1e9, device.memory_for_a_child(not without_gpu) / 1e9
    if needed > room:
        raise ValueError(f"--shape {text!r}: takes {needed:,.0f} GB here, and a process may take {room:,.0f}")
    return problem


def preset_of(named: list[Step], preset: str | None) -> str | None:
    """The ``preset`` asked for; without one, that which the one step named is shown on, or None for several."""
    return catalog.usual_preset(named[0]) if preset is None and len(named) == 1 else preset


def pairs(
    steps: list[Step], preset: str | None, every_preset: bool = False, named: bool = False
) -> list[tuple[Step, str]]:
    """Each step with each preset it is to be timed on; experiments only with their ladder's default. Raises
    ValueError if the preset is unknown, or does not fit a step that was ``named``."""
    if preset is not None:
        known = problems.PRESETS.get(preset)
        fitting = [step for step in steps if known and known.ladder == step.ladder]
        if not fitting or (named and fitting != steps):
            other = next(step for step in steps if step not in fitting)
            problems.preset(preset, other.ladder)  # raises, naming the presets that fit
        return [(step, preset) for step in fitting]
    many = {step: catalog.presets(step) if every_preset and not step.experiment else [] for step in steps}
    return [(step, name) for step in steps for name in many[step] or [problems.DEFAULT_PRESET[step.ladder]]]


def without_gpu(asked: bool, options: argparse.Namespace | None = None) -> bool:
    """As if there were no GPU? Says so, and why, if it was not asked for; raises NoGpuError at a GPU of no use."""
    if not asked:
        if device.ready():
            return False
        if why := device.silent():
            console.warn(why)
        console.tell("no GPU was found: the kernels are traced on the CPU", options=options)
    if (by := device.compiler()) != device.NUMBA_CUDA:
        console.tell(f"{device.COMPILER_SWITCH}={by} is left out: it compiles what a GPU runs", options=options)
    return True
