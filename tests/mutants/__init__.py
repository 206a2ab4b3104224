"""Wrong kernels: right ones with a mistake each, made of ``bases`` or lessons by the changes in ``mutants.toml``."""

import atexit
import shutil
import tempfile
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from common.catalog import catalog, exercises, problems, store
from common.catalog.problems import Problem
from common.check import plan

FOLDER = Path(__file__).parent
WHOLE = "whole"  # the table of those that are files of their own
# Bases that are a lesson's: steps, and exercises as solved.
STEPS = {
    "bfgemm_mma", "bfgemm_wgmma", "dgrad_direct", "fp8gemm_promoted", "gemm_tuned", "hconv3d_im2col", "hconv3d_mma",
    "hgemm_pipelined", "hgemm_sparse", "hgemm_sparse_wgmma", "hgemm_specialised", "hgemm_tma_stores",
    "iconv3d_direct", "igemm_mma", "igemm_wgmma",
}  # fmt: skip
SOLVED = {
    "gemm_tf32_fragments", "hconv3d_corner_off_by_one", "hgemm_one_warpgroup", "hgemm_released_too_early",
    "hgemm_wrong_group",
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A wrong kernel. One with a class says in ``shown`` at which ``shape`` it shows, ``then`` at which others of the
    same module; ``compiles`` is false where only compiling it tells.

    One without a class says in ``expect`` which kind of finding comes first, and a pattern of its message; in
    ``on_gpu``, kinds and a pattern that a GPU may say as well.
    """

    name: str
    mistake: str
    text: str = field(repr=False)
    shown: dict
    expect: tuple[str, str] | None = None
    on_gpu: tuple[str, str] | None = None

    @property
    def path(self) -> Path:
        """The kernel as a file, in a folder of this process."""
        place = _folder() / f"{self.name}.py"
        if not place.exists():
            place.write_text(self.text, encoding="utf-8")
        return place

    @property
    def kind(self) -> str:
        """Its class, empty if it has none."""
        return self.shown.get("class", "")

    @property
    def ladder(self) -> str:
        return self.name.split("_")[0]

    @property
    def algorithm(self) -> str | None:
        return catalog.said(self.path, self.text)["algorithm"]

    @property
    def line(self) -> int | None:
        """The line that must be named, if it marks one."""
        lines = self.text.splitlines()
        return next((number for number, line in enumerate(lines, 1) if line.endswith("# <- here")), None)

    @property
    def of_limits(self) -> bool:
        """May a launch that no GPU takes be its mistake?"""
        if not self.kind:
            return True
        widest = max(extent for one in self.shapes for extent in one.shape().values())
        return self.kind == "gpu" or (self.kind == "shapes" and widest > plan.MAX_GRID_YZ)

    @property
    def shapes(self) -> list[Problem]:
        texts = (self.shown["shape"], *self.shown.get("then", ()))
        return [problems.parse_shape(self.ladder, text) for text in texts]


def changed(name: str, text: str, changes: list[list[str]]) -> str:
    """The text with each (find, replace) made; ValueError where what is to be found is not there exactly once."""
    original = text
    for find, replace in changes:
        if original.count(find) != 1 or text.count(find) != 1:
            raise ValueError(f"{name}: must be in its base exactly once: {find!r}")
        text = text.replace(find, replace)
    return text


@lru_cache
def everything() -> dict[str, Mutant]:
    """All wrong kernels by name; ValueError names the one that is not described as it must be."""
    found = {}
    for base, entries in store.read_toml(FOLDER / "mutants.toml").items():
        for name, entry in entries.items():
            found[name] = read(base, name, **entry)
    return {name: found[name] for name in sorted(found)}


def read(base, name, *, mistake="", shown=None, expect=None, on_gpu=None, changes=()) -> Mutant:
    """One entry of ``mutants.toml``."""
    if base in SOLVED:
        text = exercises.find(base).solution
    else:
        path = FOLDER / WHOLE / f"{name}.py" if base == WHOLE else FOLDER / "bases" / f"{base}.py"
        text = (catalog.find(base).path if base in STEPS else path).read_text(encoding="utf-8")
    said, _, code = text.removeprefix('"""').partition('"""\n')
    if base == WHOLE:
        mistake, kernel = said, text
    else:
        kernel = changed(name, f'"""{mistake}"""\n{code}', changes)
    if not mistake.endswith(".") or (shown is None) == (expect is None):
        raise ValueError(f"{name}: must say its mistake in a sentence, and either shown or expect")
    return Mutant(name, mistake, kernel, shown or {}, expect and tuple(expect), on_gpu and tuple(on_gpu))


def path(name: str) -> Path:
    """A wrong kernel as a file."""
    return everything()[name].path


@lru_cache
def _folder() -> Path:
    folder = tempfile.mkdtemp(prefix="mutants-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
