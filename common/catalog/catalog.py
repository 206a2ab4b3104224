"""Finds lessons, steps, experiments and ladders from the folders, and loads step files.

A step is ``lessons/<lesson>/<step>.py``, its ladder is the name's first word, and its docstring says
``Previous step: NAME`` (or ``none``). An experiment is ``lessons/<lesson>/experiments/<name>.py`` whose docstring
says ``Variant of: STEP``. A helper is a module that steps import: ``lessons/toolkit/<name>.py``, or one lesson's
own, ``lessons/<lesson>/helpers/<name>.py``, imported by ``importlib.import_module``.

What a lesson says of its steps for the harness to go by stands in its ``lesson.toml``: :class:`Settings`.
"""

import ast
import contextlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from msgspec import Struct

from common.catalog import reference, store
from common.catalog.problems import DEFAULT_PRESET, FLOAT32, LADDERS, Problem, nearest, timed_presets

ROOT = Path(__file__).resolve().parents[2]
LESSONS = ROOT / "lessons"
TOOLKIT, HELPERS, EXPERIMENTS = "toolkit", "helpers", "experiments"  # folders: one of all lessons, two of each

PRECISIONS = ("fp32", "tf32", "tf32x3")  # the arrays' float32; inputs rounded to TF32; three products of TF32 numbers


class CatalogError(ValueError):
    """A step file, or the chain of steps, is not what the workbook expects."""


@dataclass(frozen=True)
class Step:
    """One kernel file. ``predecessor`` is the step before it, or for an experiment the step it varies; ``builds_on``
    the step that it grew from: the one before, or that of a line ``Builds on: NAME``. ``precision`` (one of
    PRECISIONS), ``requires`` (the least compute capability, or with an ``a`` the only one) and ``algorithm`` (one of
    :data:`common.catalog.reference.ALGORITHMS`) are what its constants of these names say."""

    name: str
    lesson: str
    ladder: str
    predecessor: str | None
    path: Path
    title: str
    experiment: bool = False
    builds_on: str | None = None
    precision: str = PRECISIONS[0]
    requires: str | None = None
    algorithm: str | None = None

    def runs_on(self, capability: str) -> bool:
        """Does a GPU of this compute capability, such as ``"9.0"``, have what the step requires?"""
        return runs_on(self.requires, capability)

    def as_dict(self) -> dict[str, Any]:
        told = ("lesson", "ladder", "predecessor", "builds_on", "precision", "requires", "algorithm")
        return {"step": self.name, **{name: getattr(self, name) for name in told}, "path": store.shown(self.path)}


def on_tensor_cores(step: Step, problem: Problem) -> bool:
    """Does the step multiply on tensor cores: arrays of 16 or 8 bits, or float32 ones rounded to less?"""
    return step.precision != PRECISIONS[0] or (problem.input_dtype != FLOAT32 and step.requires is not None)


def runs_on(requires: str | None, capability: str) -> bool:
    """Does a GPU of this compute capability meet a requirement: ``"8.0"`` or more, or ``"9.0a"`` and no other?"""
    if requires is None:
        return True
    has, needs = ([int(part) for part in text.removesuffix("a").split(".")] for text in (capability, requires))
    return has == needs if requires.endswith("a") else has >= needs


def targets(requires: str | None, architectures: Iterable[str]) -> list[str]:
    """The compute capabilities to compile a step for: those of ``architectures`` that it runs on, else its own."""
    if requires and requires.endswith("a"):
        return [requires]
    return [name for name in architectures if runs_on(requires, name)] or [str(requires)]


def lessons(root: Path = LESSONS) -> list[str]:
    """Lesson folder names in teaching order."""
    return sorted(path.name for path in root.iterdir() if re.match(r"\d\d_", path.name) and path.is_dir())


def steps(root: Path = LESSONS) -> list[Step]:
    """Every step in teaching order, ladder by ladder; raises CatalogError if a header or a chain is broken."""
    return [step for step in everything(root) if not step.experiment]


def everything(root: Path = LESSONS) -> list[Step]:
    """Every step, then every experiment, by lesson and name; raises as :func:`steps` does."""
    folders = [root / lesson for lesson in lessons(root)]
    found = [_header(path) for folder in folders for path in _files(folder)]
    varied = [_header(path) for folder in folders for path in _files(folder / EXPERIMENTS)]
    chains = [_chain(ladder, [step for step in found if step.ladder == ladder]) for ladder in LADDERS]
    return [*(step for chain in chains for step in chain), *varied]


def unknown(name: str, known: Iterable[str]) -> CatalogError:
    """What says that no step, or file, is called ``name``, and which of the ``known`` ones are nearest to it."""
    return CatalogError(f"step {name!r} is unknown: {nearest(name, known)}python -m common list names all steps")


def find(name: str, root: Path = LESSONS) -> Step:
    """The step or experiment called ``name``; raises CatalogError, with the names nearest to it, if there is none."""
    known = {step.name: step for step in everything(root)}
    if name not in known:
        raise unknown(name, known)
    return known[name]


def predecessors(step: Step) -> list[Step]:
    """The steps before ``step`` on its ladder, first to last; of an experiment, with the one that it varies."""
    rungs = [one for one in steps() if one.ladder == step.ladder]
    names, last = [one.name for one in rungs], step.predecessor if step.experiment else step.name
    return rungs[: names.index(str(last)) + step.experiment] if last in names else rungs


def presets(step: Step) -> list[str]:
    """The presets a step is timed on: its ladder's, but for those that are left to later steps."""
    before = {earlier.name for earlier in predecessors(step)} | {step.name}
    later = settings().timed_from
    return [name for name in timed_presets(step.ladder, layers=True) if later.get(name, step.name) in before]


def usual_preset(step: Step) -> str:
    """The preset that a step is shown on by itself: its ladder's default, unless its lesson names another."""
    usual = settings().usual.get(step.name)
    return usual.preset if usual else DEFAULT_PRESET[step.ladder]


def is_helper(path: Path) -> bool:
    """Is this where a helper lies: one that lessons share, or a lesson's own?"""
    own = path.parent.name == HELPERS and path.parents[2] == LESSONS
    return (own or path.parent == LESSONS / TOOLKIT) and path.suffix == ".py" and not path.name.startswith("_")


@store.kept_by_stamp  # a folder's times change with its names
def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("[!_]*.py"))


@store.kept_by_stamp
def _header(path: Path) -> Step:
    """Read a file's header without importing it, so that a broken file still has a name."""
    text, name, ladder = path.read_text(encoding="utf-8", errors="replace"), path.stem, path.stem.split("_")[0]
    experiment = path.parent.name == EXPERIMENTS
    if ladder not in LADDERS:
        raise CatalogError(f"{path.name}: the name must start with {', '.join(LADDERS)} and an underscore")
    key = "Variant of" if experiment else "Previous step"
    headers = dict(re.findall(r"^(Previous step|Variant of|Builds on): (\w+)$", text, re.MULTILINE))
    if key not in headers:
        raise CatalogError(f"{path.name}: the docstring must have a line '{key}: NAME'")
    if not (title := re.match(rf'\s*(?:r?""")?{name}: (.+)', text)):
        raise CatalogError(f"{path.name}: the docstring must start with '{name}: what it does'")
    previous = None if headers[key] == "none" else headers[key]
    return Step(
        name, path.parents[experiment].name, ladder, previous, path, title[1].rstrip('."') + ".", experiment,
        builds_on=headers.get("Builds on", previous), **said(path, text),
    )  # fmt: skip


_SAID = {  # by constant what it may be, as a pattern and in words
    "PRECISION": ("|".join(PRECISIONS), " or ".join(PRECISIONS)),
    "REQUIRES": (r"\d+\.\d+a?", 'a compute capability such as "8.0" or "9.0a"'),
    "ALGORITHM": ("|".join(map(re.escape, reference.ALGORITHMS)), " or ".join(reference.ALGORITHMS)),
}


def said(path: Path, text: str) -> dict[str, Any]:
    """``precision``, ``requires`` and ``algorithm`` as the constants in a step's text say; raises CatalogError."""
    found: dict[str, Any] = {"precision": PRECISIONS[0], "requires": None, "algorithm": None}
    for name, (pattern, allowed) in _SAID.items():
        if line := re.search(rf"^{name}\s*=\s*(.+?)\s*(?:#.*)?$", text, re.MULTILINE):
            value = re.fullmatch(rf"""(["'])({pattern})\1""", line[1])
            if value is None:
                raise CatalogError(f"{path.name}: {name} = {line[1]}: must be {allowed}")
            found[name.lower()] = value[2]
    return found


def _chain(ladder: str, found: list[Step]) -> list[Step]:
    """Order a ladder's steps by their ``Previous step`` lines."""
    after: dict[str | None, Step] = {}
    for step in found:
        if other := after.get(step.predecessor):
            raise CatalogError(f"{step.name} and {other.name} both name {step.predecessor} as their previous step")
        after[step.predecessor] = step
    chain: list[Step] = []
    while (name := chain[-1].name if chain else None) in after:
        chain.append(after.pop(name))
    if after:
        stray, there = next(iter(after.values())), ", ".join(step.name for step in chain) or "no steps"
        said = f"its previous step {stray.predecessor!r} is not on the {ladder} ladder: that has {there}"
        raise CatalogError(f"{stray.name}: {said}")
    return chain


# --- what lessons say of their steps, in lesson.toml ---


class Usual(Struct, frozen=True):
    preset: str  # that a step is shown on
    shape: str  # that it is traced at, both in place of its ladder's


class Epilogues(Struct, frozen=True):
    step: str
    preset: str
    ways: str  # the module of the epilogues that are timed


class Training(Struct, frozen=True):
    code: str  # the folder of the code of a network that is trained
    steps: list[str]  # that it runs


class Settings(Struct):
    """What one lesson's ``lesson.toml`` says, or all together."""

    timed_from: dict[str, str] = {}  # by preset, the first step of its ladder timed on it
    usual: dict[str, Usual] = {}  # by step
    accuracy: list[str] = []  # steps on matrices whose errors are measured over K
    epilogues: list[Epilogues] = []
    measured_by: dict[str, str] = {}  # the module that measures accuracy, and epilogues
    training: Training | None = None
    photo: str = ""  # the conv2d step that convolves the photograph


def settings() -> Settings:
    """What all lessons say, together, but for ``training``. Raises StoreError or SchemaError naming the file, and the
    field."""
    whole = Settings()
    for one in map(_settings, sorted(LESSONS.glob("*/lesson.toml"))):
        for name in ("timed_from", "usual", "measured_by"):
            getattr(whole, name).update(getattr(one, name))
        whole.accuracy.extend(one.accuracy)
        whole.epilogues.extend(one.epilogues)
        whole.photo = whole.photo or one.photo
    return whole


def trained_network() -> tuple[Path, Training] | None:
    """The network that is trained, with the folder of its lesson; None if no lesson has one. Raises as
    :func:`settings` does."""
    found = ((path.parent, _settings(path).training) for path in sorted(LESSONS.glob("*/lesson.toml")))
    return next(((folder, one) for folder, one in found if one), None)


@store.kept_by_stamp
def _settings(path: Path) -> Settings:
    return store.convert(store.read_toml(path), Settings, store.shown(path))


# --- loading ---


def load(
    path: Path, ladder: str, home: str | None = None, helpers: dict[str, str] | None = None,
    constants: Mapping[str, int] | None = None,
) -> ModuleType:  # fmt: skip
    """Import a step file and check its interface; a copy takes ``home``, the original's path, for its ``__file__``.
    ``helpers`` stand in for the lessons' own, ``{"memory": path}``; ``constants`` are values that the file's own get
    before others follow. Raises CatalogError if the interface or a constant is missing."""
    with anew(helpers) if helpers else contextlib.nullcontext():
        module = load_file(path, home, constants)
    wanted = LADDERS[ladder].names + (("workspace",) if hasattr(module, "workspace") else ())
    signature = f"launch({', '.join(wanted)})"
    if LADDERS[ladder].form == "wgrad" and hasattr(module, "prepare"):
        raise CatalogError(f"{path.name}: prepare is not for a {ladder} step: {wanted[1]} is new at every launch")
    launch = getattr(module, "launch", None)
    if not callable(launch):
        raise CatalogError(f"{path.name}: launch is missing; a {ladder} step must define {signature}")
    takes = inspect.signature(launch)
    try:
        takes.bind(*wanted)
    except TypeError as error:
        raise CatalogError(f"{path.name}: launch{takes} cannot be called as {signature}: {error}") from None
    return module


def load_file(path: Path, home: str | None = None, constants: Mapping[str, int] | None = None) -> ModuleType:
    """Import a Python file by its path, anew at each call; ``home`` and ``constants`` as for :func:`load`."""
    path = path.resolve()
    module = ModuleType(f"file_{path.stem}")
    sys.modules[module.__name__] = module  # Numba pickles kernels by module
    module.__file__ = home or str(path)
    # not by a loader: its compiled file is taken for current if two saves of one second have one length
    source, constants = path.read_bytes(), constants or {}
    parts: list[Any] = [ast.Module([one], []) for one in ast.parse(source).body] if constants else [source]
    for part in parts:
        exec(compile(part, str(path), "exec", dont_inherit=True), vars(module))
        vars(module).update((name, value) for name, value in constants.items() if hasattr(module, name))
    if missing := [name for name in constants if not hasattr(module, name)]:
        raise CatalogError(f"{path.name}: has no constant {', '.join(missing)}")
    return module


@contextlib.contextmanager
def anew(helpers: Mapping[str, str] | None = None) -> Iterator[None]:
    """While open, modules of the lessons are imported anew, those of ``helpers`` from the files named there by name;
    afterwards those of before are back."""
    package, stand_ins = importlib.import_module(LESSONS.name), helpers or {}
    prefix = f"{package.__name__}."

    def find_spec(fullname: str, path: object = None, target: object = None) -> Any:
        folder, _, name = fullname.rpartition(".")
        stands_in = name in stand_ins and folder.startswith(prefix) and folder.endswith((TOOLKIT, HELPERS))
        return importlib.util.spec_from_file_location(fullname, stand_ins[name]) if stands_in else None

    def take_out() -> dict[str, ModuleType]:
        taken = {name: sys.modules.pop(name) for name in list(sys.modules) if name.startswith(prefix)}
        for name in taken:
            vars(package).pop(name.removeprefix(prefix), None)
        return taken

    finder: Any = SimpleNamespace(find_spec=find_spec)
    before = take_out()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        take_out()
        sys.modules.update(before)
        vars(package).update((name.removeprefix(prefix), module) for name, module in before.items())
