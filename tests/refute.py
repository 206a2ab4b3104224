"""Shows that a kernel of ``tests/mutants`` is wrong as ``mutants.toml`` says, without the harness's judgement.

A step's own ``prepare``, ``workspace`` and ``launch``, in Numba's own simulator, and the oracle. The simulator is a
process of its own, which this file is: it reads a question a line and answers each. It runs plain Numba: kernels that
use helpers of the lessons are not asked about.
"""

import contextlib
import json
import os
import select
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from numba import cuda

from common.catalog import catalog, problems, reference
from common.catalog.boundstep import BoundStep

SECONDS = 120  # for an answer
POISON = 0x7F  # in every byte of memory that nobody has written


def operands(problem, kind, seed):
    """Input and weight in the problem's dtypes: integers, or what ``kind`` asks for."""
    rng = np.random.default_rng(seed)

    def draw(shape):
        integers = rng.integers(1, 9, shape) * rng.choice((-1, 1), shape)
        if kind == "large":
            integers = integers * 200
        if kind == "zeros":
            integers = integers * rng.integers(0, 2, shape)
            integers[-1, 0] = 0
            if len(integers) > 1:
                integers[0] = 0
        if kind == "equal":
            integers = np.full(shape, 3)
        if kind in ("tiny", "mixed", "normals"):
            values = rng.standard_normal(shape)
            if kind == "normals":
                return values.astype(np.float32)
            powers = np.full(shape[:1], -20) if kind == "tiny" else rng.integers(-20, 21, shape[:1])
            return (values * np.exp2(powers.reshape(-1, *[1] * (len(shape) - 1)))).astype(np.float32)
        return integers.astype(np.float32)

    x, weight = draw(problem.input_shape), draw(problem.weight_shape)
    if kind in ("negative", "positive"):
        x, weight = abs(x) * 50, abs(weight) * 50 * (-1 if kind == "negative" else 1)
    return x.astype(problem.input_dtype), weight.astype(problem.weight_dtype)


@contextmanager
def filled(byte):
    """``cuda.device_array`` gives memory whose every byte holds this."""

    def device_array(shape, dtype=np.float64, **options):
        count = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return cuda.to_device(np.full(count, byte, np.uint8).view(dtype).reshape(shape))

    with mock.patch.object(cuda, "device_array", device_array):
        yield


class Rig:
    """One module bound to arrays of one problem; memory that it allocates is zero, or poisoned."""

    def __init__(self, module, problem, poisoned=False):
        self.step, self.problem, self.byte = BoundStep(module, problem), problem, POISON if poisoned else 0
        self.x, self.weight, self.y = (
            cuda.to_device(np.full(shape, np.nan, dtype)) for shape, dtype in problem.operands
        )
        with filled(self.byte):
            self.step.allocate()

    def wrong(self, x, weight, normals=False):
        """Launch on these operands: does the result leave the bound of its arithmetic?

        Of ``normals``: or is the error of all elements together three times what a float32 sum term by term shows?
        """
        self.x.copy_to_device(x)
        self.weight.copy_to_device(weight)
        self.y.copy_to_device(np.full(self.y.shape, np.nan, self.problem.output_dtype))
        with filled(self.byte):
            self.step.prepare(self.weight)
        self.step.launch(self.x, self.y)
        expected = reference.full(self.problem, x, weight)
        magnitude = reference.full(self.problem, abs(x), abs(weight))
        bound = reference.error_bound(self.problem, magnitude, expected)
        if normals and np.linalg.norm(self.y.copy_to_host() - expected) > 3 * 2.0**-25 * np.linalg.norm(magnitude):
            return True
        with np.errstate(invalid="ignore"):
            return not bool(np.all(abs(self.y.copy_to_host() - expected) <= bound))


def attempt(action):
    """True if it is wrong, or ends in an exception, such as a refusal."""
    try:
        return action()
    except Exception:
        return True


class _Ordered:
    """NumPy for the simulator: blocks come one by one, x fastest, from the first or from the last; memory of a block
    that nobody has written holds a byte."""

    def __init__(self, flip, byte):
        self.flip, self.fill = flip, byte

    def __getattr__(self, name):
        return getattr(np, name)

    def ndindex(self, *extents):
        places = [place[::-1] for place in np.ndindex(*extents[::-1])]
        return places[::-1] if self.flip else places

    def empty(self, shape, dtype):
        found = np.empty(shape, dtype)
        found.reshape(-1).view(np.uint8)[:] = self.fill
        asked = sys._getframe(1).f_locals
        if "caller" not in asked:
            return found
        # of a shared array that several threads ask for at once the simulator makes several: all get the first
        return vars(asked["self"]).setdefault("made", {}).setdefault(asked["caller"], found)


@contextmanager
def _in_order(flip=False, byte=0):
    from numba.cuda.simulator import kernel, kernelapi

    ordered = _Ordered(flip, byte)
    with mock.patch.object(kernel, "np", ordered), mock.patch.object(kernelapi, "np", ordered):
        yield


def is_right(path, ladder, shape, kind="integers", launches=2):
    """Launches at an ordinary shape, on other operands each, block by block from the first to the last."""
    problem = problems.parse_shape(ladder, shape)
    with _in_order():
        rig = Rig(catalog.load(Path(path), ladder), problem)
        return not any(rig.wrong(*operands(problem, kind, seed)) for seed in range(1, launches + 1))


def is_wrong(path, ladder, refute):
    """Does any launch of those that ``refute`` describes go wrong? ``unsound`` and ``compiles`` are not looked at."""
    module = catalog.load(Path(path), ladder)
    shapes = [problems.parse_shape(ladder, text) for text in (refute["shape"], *refute.get("then", ()))]
    with _in_order(refute.get("flip"), POISON if refute.get("poison") else 0):
        return any(attempt(lambda p=problem: _goes_wrong(module, p, refute)) for problem in shapes)


def _goes_wrong(module, problem, refute):
    rig = Rig(module, problem, poisoned=bool(refute.get("poison")))
    x, weight = operands(problem, refute.get("inputs"), 1)
    found = rig.wrong(x, weight, refute.get("inputs") == "normals")
    for number in range(1, refute.get("launches", 1)):
        found = found or rig.wrong(*operands(problem, None, number + 1))
    if refute.get("one_weight"):
        changed = weight.copy()
        place = tuple(extent // 2 for extent in weight.shape)
        changed[place] = -changed[place] if refute["one_weight"] == "sign" else changed[place] + 1
        found = found or rig.wrong(x, changed)
    if refute.get("reordered"):
        found = found or rig.wrong(x, weight.reshape(-1)[::-1].reshape(weight.shape).copy())
    if refute.get("fresh"):
        found = found or Rig(module, problem).wrong(*operands(problem, None, 2))
    return found


class Simulator:
    """A process that answers :func:`is_right` and :func:`is_wrong`; it starts with the first question."""

    def __init__(self):
        self._process = None

    def ask(self, question, *arguments):
        """The answer; what was raised, as an AssertionError; TimeoutError if none comes."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, __file__], env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        self._process.stdin.write(json.dumps([question, *map(_plain, arguments)]) + "\n")
        self._process.stdin.flush()
        if not select.select([self._process.stdout], [], [], SECONDS)[0]:
            self.close()
            raise TimeoutError(f"{question} {arguments[0]}: no answer within {SECONDS} s")
        answer = json.loads(self._process.stdout.readline())
        assert type(answer) is bool, answer
        return answer

    def close(self):
        if self._process:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _plain(value):
    return str(value) if isinstance(value, Path) else value


def main():
    for line in sys.stdin:
        question, *arguments = json.loads(line)
        with contextlib.redirect_stdout(sys.stderr):
            try:
                answer = {"is_right": is_right, "is_wrong": is_wrong}[question](*arguments)
            except Exception as error:
                answer = f"{type(error).__name__}: {error}"
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
