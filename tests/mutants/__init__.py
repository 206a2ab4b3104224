"""Wrong kernels: right ones with a mistake each, made of ``bases`` or lessons by the changes in ``mutants.toml``."""

import atexit
import shutil
import tempfile
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from common.catalog import catalog, problems, store
from common.catalog.problems import Problem
from common.check import shapes

FOLDER = Path(__file__).parent
WHOLE = "whole"  # the table of those that are files of their own
# Bases that are a lesson's: a step or the solution of an exercise.
OF_LESSONS = {
    "dgrad_direct": "08_training",
    "gemm_tf32_fragments": "06_tensor_cores/solutions",
    "hconv3d_corner_off_by_one": "07_hopper/solutions",
    "hgemm_one_warpgroup": "07_hopper/solutions",
    "hgemm_released_too_early": "07_hopper/solutions",
    "hgemm_wrong_group": "06_tensor_cores/solutions",
}
# An ordinary shape of a ladder, of no condition that a kernel here is wrong under.
_ORDINARY = {
    "gemm": "M=7 N=5 K=6",
    "conv2d": "N=1 C=2 H=9 W=11 K=3 R=4 S=5",
    "conv3d": "N=1 C=2 D=4 H=5 W=7 K=3 T=1 R=3 S=4",
}
_ORDINARY |= dict.fromkeys(("dgrad", "wgrad"), _ORDINARY["conv3d"])
_ORDINARY |= {ladder: _ORDINARY[kind.form] for ladder, kind in problems.LADDERS.items()}


@dataclass(frozen=True)
class Mutant:
    """A wrong kernel. One with a class says in ``refute`` how it shows, at a ``shape``:

    ``then`` more shapes for the same module, ``inputs`` of a kind, ``launches`` as many, ``one_weight`` changed, all
    ``reordered``, ``fresh`` arrays, ``flip`` the order of the blocks, ``poison`` memory that nobody has written.
    ``unsound`` (race, barrier, unset, async, kernels) and ``compiles`` are not seen in the values.
    ``ordinary`` and ``ordinary_inputs``: where it is right; an empty text if nowhere for sure.

    One without a class says in ``expect`` which kind of finding comes first, and a pattern of its message; in
    ``on_gpu``, kinds and a pattern that a GPU may say as well.
    """

    name: str
    mistake: str
    text: str = field(repr=False)
    refute: dict
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
        return self.refute.get("class", "")

    @property
    def ladder(self) -> str:
        return self.name.split("_")[0]

    @property
    def line(self) -> int | None:
        """The line that must be named, if it marks one."""
        lines = self.text.splitlines()
        return next((number for number, line in enumerate(lines, 1) if line.endswith("# <- here")), None)

    @property
    def ordinary(self) -> str:
        """A shape at which it computes the right values, empty if no shape is sure to."""
        return self.refute.get("ordinary", _ORDINARY[self.ladder])

    @property
    def of_limits(self) -> bool:
        """May a launch that no GPU takes be its mistake?"""
        if not self.kind:
            return True
        widest = max(extent for one in self.shapes for extent in one.shape().values())
        return self.kind == "gpu" or (self.kind == "shapes" and widest > shapes.MAX_GRID_YZ)

    @property
    def shapes(self) -> list[Problem]:
        texts = (self.refute["shape"], *self.refute.get("then", ()))
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


def read(base, name, *, mistake="", refute=None, expect=None, on_gpu=None, changes=()) -> Mutant:
    """One entry of ``mutants.toml``."""
    folder = catalog.LESSONS / OF_LESSONS[base] if base in OF_LESSONS else FOLDER / "bases"
    path = FOLDER / WHOLE / f"{name}.py" if base == WHOLE else folder / f"{base}.py"
    text = path.read_text(encoding="utf-8")
    said, _, code = text.removeprefix('"""').partition('"""\n')
    if base == WHOLE:
        mistake, kernel = said, text
    else:
        kernel = changed(name, f'"""{mistake}"""\n{code}', changes)
    if not mistake.endswith(".") or (refute is None) == (expect is None):
        raise ValueError(f"{name}: must say its mistake in a sentence, and either refute or expect")
    return Mutant(name, mistake, kernel, refute or {}, expect and tuple(expect), on_gpu and tuple(on_gpu))


def path(name: str) -> Path:
    """A wrong kernel as a file."""
    return everything()[name].path


@lru_cache
def _folder() -> Path:
    folder = tempfile.mkdtemp(prefix="mutants-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
