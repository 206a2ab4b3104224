"""Which entries of a GPU's record still hold, so that they need not be measured again.

A row holds while these are as they were: source and helpers, or the machine code that they compile to; GPU, driver
and compiling packages; the shape that would run; how times are taken. Other entries hold while the code does.
"""

from __future__ import annotations

from pathlib import Path

from common.catalog import catalog, problems, sources, store
from common.catalog.catalog import Step
from common.catalog.sources import Code
from common.check import loading
from common.records import records
from common.records.entries import Ceilings, Epilogues, PeerRow, Row, StepCode, StepRow
from common.records.records import Record
from common.timing import ceilings as measured
from common.timing import peers, timing

_COMPILING = ("numba", "numba-cuda", "numpy")


def is_current(entry: Code, path: Path) -> bool:
    """Was an entry made by a step's code as it is now, or by code that became the same machine code?"""
    if entry.is_of(path):
        return True
    now = _compiled(records.RESULTS / records.CODE_FILE).get(path.stem)
    earlier = now.earlier if now and now.is_of(path) else []
    return any(one.source == entry.source and entry.helpers in (None, one.helpers) for one in earlier)


@store.kept_by_stamp
def _compiled(path: Path) -> dict[str, StepCode]:
    return records.load_code(path.parent).steps


def older(entry: object, name: str) -> bool:
    """Is what was measured of a step of another version of its code, or is it gone? A library has no versions."""
    step = next((one for one in catalog.everything() if one.name == name), None)
    return isinstance(entry, Code) and (step is None or not is_current(entry, step.path))


def holds(entry: object, step: Step) -> bool:
    """Is what was measured of a step there, and of its code as it is? A row may be another driver's."""
    return isinstance(entry, Code) and is_current(entry, step.path)


def epilogues(entry: Epilogues, name: str) -> bool:
    """Are a step's times with epilogues of its code, and of theirs, as they are now?"""
    made = catalog.ROOT / f"{entry.ways.replace('.', '/')}.py"
    return not older(entry, name) and made.is_file() and entry.made.is_of(made)


def errors(record: Record, steps: list[Step]) -> bool:
    """Are the errors over K of all these steps, and of their code as it is?"""
    kinds = record.data.accuracy.values()
    found = [(kind.get(step.name), step) for kind in kinds for step in steps]
    return bool(kinds) and all(entry is not None and holds(entry.code, step) for entry, step in found)


def ceilings(record: Record) -> bool:
    """Do the GPU's ceilings hold?"""
    found, capability = record.ceilings, record.data.gpu.compute_capability
    return found is not None and measured.complete(found, capability) and _measured_here(record, found, ())


def row(record: Record, step: Step, preset: str, room_bytes: int, in_turn: bool = True) -> bool:
    """Does the step's row hold, on a GPU with room for so many bytes? With ``in_turn``, its time in turn with the
    library, too, if it is on tensor cores."""
    found = record.row(preset, step.name)
    if not isinstance(found, StepRow) or not holds(found, step) or not _measured_here(record, found, _COMPILING):
        return False
    beside = found.beside is not None and _measured_here(record, found, ("torch",))
    if in_turn and not beside and catalog.on_tensor_cores(step, problems.preset(preset)) and peers.available():
        return False
    now = sources.imported_steps(step.path)
    for name in now.keys() & found.imports.keys():  # steps, as LESSON.STEP, and data files
        before, path = found.imports[name], catalog.LESSONS / f"{name.replace('.', '/')}.py"
        if before != now[name] and not (isinstance(before, Code) and is_current(before, path)):
            return False
    return _same_size(found, preset, room_bytes)


def libraries(record: Record, preset: str, room_bytes: int) -> bool:
    """Do the preset's rows of cuBLAS or cuDNN hold?"""
    found = [row for row in record.rows(preset).values() if isinstance(row, PeerRow)]
    return len(found) >= len(peers.precisions(problems.preset(preset))) and all(
        _measured_here(record, row, ("torch",)) and _same_size(row, preset, room_bytes) for row in found
    )


def _measured_here(record: Record, entry: Row | Ceilings, names: tuple[str, ...]) -> bool:
    """By this driver, these packages, and the way a time is taken now?"""
    run, versions = record.run_of(entry), sources.versions(names)
    same = all(run.packages.get(name) == versions.get(name) for name in names)
    return same and run.driver == record.data.gpu.driver and (entry.measure or 1) == timing.MEASURE_VERSION


def _same_size(row: Row, preset: str, room_bytes: int) -> bool:
    """Would the preset run now at the row's shape?"""
    problem = problems.preset(preset)
    ran = problems.from_shape(problem.ladder, row.shape)
    return loading.runs_at(problem, ran, row.timing.median_ms / 1e3, room_bytes)
