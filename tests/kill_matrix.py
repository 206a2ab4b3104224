"""Which shapes does a check need? python tests/kill_matrix.py run | show | choose [LADDER ...].

``run`` tries the wrong kernels of ``tests/mutants`` at candidates, on the tracer, until several find each, and
notes whether it is found there and by what; it goes on where it stopped. ``choose`` takes, for each ladder, the
cheapest candidates at which every kernel fails that fails anywhere, twice where that costs little, and such as go out
on an axis; it writes ``common/check/shapes.toml``; ``show`` only prints it.

What candidates there are :mod:`candidates` says.
"""

import argparse
import contextlib
import hashlib
import io
import itertools
import json
import math
import os
import random
import re
import signal
import sys
import textwrap
import time
from collections import Counter
from dataclasses import dataclass
from heapq import heappop, heapreplace
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import classes
import conditions
import mutants
import numpy as np
from candidates import Candidate, candidates, long_sums

from common.catalog import catalog, device, inputs, problems
from common.catalog.problems import LADDERS, Conv2d, Gemm, Problem
from common.check import plan, run, tasks
from common.explain import diagnose
from common.run import child
from common.run.messages import Check

CACHE = catalog.ROOT / ".workbook" / "kill_matrix.jsonl"
SECONDS = 6.0  # of a wrong kernel at a candidate: one that takes longer is late, which is not found
DEAR = 0.35  # seconds of a right kernel at a candidate beyond which it is tried only where no other finds a kernel
# A kernel is tried at the candidates that would be chosen now until so many find it; then at others, until more do,
# or at most so many if any does.
ENOUGH, MORE, MOST = 2, 4, 150
UNKNOWN = ("", "late", "unjudged", "refused")  # what is no finding
# A right kernel by ladder, whose time is a candidate's cost: an ordinary one, not the quickest to trace.
RIGHT = {
    "gemm": "gemm_register_blocked", "conv2d": "conv2d_register_tiled", "conv3d": "conv3d_implicit_gemm",
    "hgemm": "hgemm_shared", "hconv3d": "hconv3d_mma", "dgrad": "dgrad_implicit_gemm",
    "wgrad": "wgrad_implicit_gemm",
}  # fmt: skip


# --- running ---


def kernels(ladder: str) -> list[Path]:
    """The wrong kernels of a ladder; those that only a GPU or a compiler shows are left out."""
    mine = [kernel for kernel in mutants.everything().values() if kernel.ladder == ladder]
    return [kernel.path for kernel in mine if kernel.shown.get("compiles", True)]


class _Late(BaseException):
    pass


def attempt(path: Path, ladder: str, candidate: Candidate, precision: str = "fp32") -> tuple[str, float]:
    """What finds the kernel at a candidate, empty if nothing does, and the seconds; the module is imported anew."""
    tasks._kept.clear()
    began, late = time.process_time(), []

    def stop(*_: object) -> None:
        late.append(True)
        raise _Late

    signal.signal(signal.SIGALRM, stop)
    found = ""
    for problem in candidate.shapes:
        fields = {
            "engine": "traced",
            "depth": candidate.depth,
            "special": candidate.operands,
            "small": candidate.small,
        }
        task = Check(
            path=str(path), ladder=ladder, shape=problem.shape(), repeats=1, precision=precision, wide=candidate.wide,
            **fields,
        )  # fmt: skip
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                result = child.attempt(task)
        except _Late:
            pass
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if late:
            found = "late"
        elif result.status == "unjudged":
            found = "unjudged"
        else:
            result = run.judged(problem, result)
            if result.status == "refused":
                found = "refused"
            elif result.status not in classes.ENDED:
                said = [(one.kind, one.message) for one in result.findings]
                found = "{}: {}".format(*(said or [(result.status, result.message)])[0])[:160]
                if "LaunchLimitError" in found and candidate.wide and not _limits(path):
                    found = ""
        if found:
            break
    return found, time.process_time() - began


def _limits(path: Path) -> bool:
    """May a grid that is too large be this kernel's mistake?"""
    kernel = mutants.everything().get(path.stem)
    return kernel is None or kernel.of_limits


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def known() -> dict[tuple[str, str, str], tuple[str, float]]:
    """By kernel, its digest and candidate: what found it, and the seconds."""
    if not CACHE.exists():
        return {}
    rows = (json.loads(line) for line in CACHE.read_text(encoding="utf-8").splitlines())
    return {(name, code, key): (found, seconds) for name, code, key, found, seconds in rows}


def costs(ladder: str, rows: dict) -> dict[str, float]:
    """Seconds of a right kernel by candidate."""
    path = catalog.find(RIGHT[ladder]).path
    return {key: seconds for (name, code, key), (_, seconds) in rows.items() if name == path.stem}


def fill(wanted: list[str], most: float) -> None:
    """Try what has not been tried, for at most so many seconds."""
    began, rows = time.process_time(), known()
    CACHE.parent.mkdir(exist_ok=True)
    with CACHE.open("a", encoding="utf-8") as file, mock.patch.object(diagnose, "explain", return_value=""):

        def tried(path: Path, ladder: str, candidate: Candidate) -> tuple[str, float]:
            key = path.stem, digest(path), candidate.key
            if key not in rows:
                rows[key] = attempt(path, ladder, candidate)
                file.write(json.dumps([*key, rows[key][0], round(rows[key][1], 4)]) + "\n")
                file.flush()
            return rows[key]

        for ladder in wanted:
            right = catalog.find(RIGHT[ladder]).path
            matrix = Matrix.read(ladder, rows)
            likely = matrix.choose()
            others = [one for one in matrix.candidates if matrix.seconds[one.key] <= DEAR and one not in likely]
            random.Random(5).shuffle(others)
            for path in kernels(ladder):
                killed = late = number = 0
                for number, candidate in enumerate(dict.fromkeys((*likely, *others, *matrix.candidates)), 1):
                    if (number > len(likely) or killed < ENOUGH) and time.process_time() - began > most:
                        return
                    if late > 3 or killed >= (ENOUGH if number <= len(likely) else MORE):
                        break
                    if number > MOST and killed:
                        break
                    found, _ = tried(path, ladder, candidate)
                    killed += found not in UNKNOWN
                    late += found in UNKNOWN[1:3]
                print(f"{time.process_time() - began:6.0f} s {path.stem}: found at {killed} of {number}", flush=True)
            for candidate in Matrix.read(ladder, rows).choose():
                found, _ = tried(right, ladder, candidate)
                if found not in UNKNOWN:
                    print(f"{right.stem} is called wrong at {candidate.key}: {found}", flush=True)


# --- choosing ---

# What a mistake may depend on besides what the corpus has, by form: an extent or a product of extents, and from where
# on it is far out. Each is one shape's duty.
_PAST = (16, 32, 64, 128, 256, 512, 1024)
_REDUCTIONS = (256, 512, 1024, 2048, 4096)


def duties(ladder: str, candidate: Candidate) -> set[str]:
    """What a candidate goes out on: conditions of its shape, by name, each a reason to have it in the plan."""
    problem = candidate.shapes[0]
    if candidate.wide and problem.output_dtype == problems.FLOAT16:
        return set()  # takes seconds to trace on tensor cores, and other ladders have it
    if candidate.small or candidate.wide:
        return {f"{'small' if candidate.small else 'wide'} {problem}"}
    if len(candidate.shapes) > 1:
        return set()
    weights = math.prod(problem.weight_shape)
    if candidate.operands == inputs.NORMALS:
        found = {f"sum>{past} with normals" for past in (256, 1024) if problem.reduction > past}
        found |= {f"sum>{past}" for past in _REDUCTIONS[2:] if problem.reduction > past}  # a term left out shows, too
        found |= {f"{key}>{past}" for key, value in _axes(problem)[0].items() for past in _PAST if value > past}
        return found | {f"weights>{past} with normals" for past in (4096, 12288) if weights > past}
    if problem.reduction > MOST_TERMS:
        return set()  # dear, and what is left out of such a sum shows with normals, too
    extents, geometry = _axes(problem)
    far = {f"{key}>{past}" for key, value in extents.items() for past in _PAST if value > past and value % 8}
    if isinstance(problem, Gemm):
        far -= {f"K>{past}" for past in _PAST}  # the sum's
    far |= {f"sum>{past}" for past in _REDUCTIONS if problem.reduction > past}
    far |= {f"weights>{past}" for past in (1024, 4096, 12288) if weights > past}
    far |= {f"outputs>{past}" for past in (256, 1024, 4096) if math.prod(problem.output_shape) > past}
    if not isinstance(problem, Gemm):
        taps = math.prod(extents[name] for name in "TRS" if name in extents)
        far |= {f"taps>{past}" for past in (9, 25, 32, 49, 64, 100) if taps > past}
        far |= {f"{name}>{past}" for name in "TRS" for past in (5, 7, 8, 10) if extents.get(name, 1) > past}
        far |= {f"pixels>{past}" for past in (256, 1024, 4096) if past < problem.P * problem.Q}
    for name, value in geometry.items():
        far |= {f"{name}>{past}" for past in ((3, 4, 7) if "pad" not in name else (3, 8, 16)) if value > past}
    # rows of whole 16-byte pieces of float16, as a copy engine takes them
    pieces = ("N", "K") if isinstance(problem, Gemm) else ("C", "K")
    if all(extents[key] % 8 == 0 for key in pieces):
        long = [*extents.items(), ("rows", math.prod(problem.output_shape[:-1]))]
        far |= {f"whole pieces, {key}>{past}" for key, value in long for past in (8, 64, 128) if value > past}
        if min(value for key, value in long if key in "MNCK" or key == "rows") > 63:
            far.add("whole pieces, tiles")
    several = {key for key, value in extents.items() if value > 1}
    beside = {one for one in far if not one.startswith("sum>")}  # dear
    found = far | {f"{one}, {key}>1" for one in beside for key in several if not one.startswith(key)}
    found |= {name.rstrip("?") for name in conditions.conditions(problem)}
    many = [f"{key}>{past}" for key, value in extents.items() for past in _many(key) if value > past]
    many += [name for name, value in geometry.items() if value > ("dilation" in name or "stride" in name)]
    found |= {f"{first} and {second}" for first, second in itertools.combinations(many, 2)}
    if isinstance(problem, Conv2d) and problem.Q < 4096:
        # where a quotient by a float32 reciprocal, cut off, is one too small
        pixels = np.arange(problem.P * problem.Q)
        reciprocal = np.float32(1) / np.float32(problem.Q)
        if (np.floor(pixels.astype(np.float32) * reciprocal) != pixels // problem.Q).any():
            found.add("a reciprocal errs")
    return found


def _axes(problem: Problem) -> tuple[dict[str, int], dict[str, int]]:
    """Extents by their letters, those of outputs in the place of those of inputs; strides and the like by name."""
    extents = {key: value for key, value in vars(problem).items() if key.isupper()}
    geometry = {key: value for key, value in vars(problem).items() if not key.isupper()}
    for inside, outside in zip("DHW", "OPQ", strict=True):
        if inside in extents:
            extents[outside] = getattr(problem, outside) if problem.form != "dgrad" else extents[inside]
            del extents[inside]
    return extents, geometry


def _many(key: str) -> tuple[int, ...]:
    """From where on an extent is many beside another that is, too."""
    return (1, 3) if key in "TRS" else (4, 16)


@dataclass
class Matrix:
    """What is known of a ladder: for each candidate its seconds, the kernels that it finds, and its duties."""

    ladder: str
    candidates: list[Candidate]
    seconds: dict[str, float]
    finds: dict[str, set[str]]
    duties: dict[str, set[str]]

    @classmethod
    def read(cls, ladder: str, rows: dict) -> "Matrix":
        known_ones = candidates(ladder)
        cost = {one.key: one.work * EACH_WORK for one in known_ones} | costs(ladder, rows)
        codes = {path.stem: digest(path) for path in kernels(ladder)}
        finds: dict[str, set[str]] = {one.key: set() for one in known_ones}
        for (name, code, key), (found, _) in rows.items():
            if codes.get(name) == code and key in finds and found not in UNKNOWN:
                finds[key].add(name)
        return cls(ladder, known_ones, cost, finds, {one.key: duties(ladder, one) for one in known_ones})

    def choose(self) -> list[Candidate]:
        """The cheapest that find every kernel, twice where that is cheap, and have every duty; the best first."""
        first = Candidate((problems.FIRST[self.ladder],), "thorough")
        chosen: list[Candidate] = [first, *long_sums(self.ladder)]
        times: Counter[str] = Counter(name for one in chosen for name in self.finds[one.key])
        done: set[str] = set().union(*(self.duties[one.key] for one in chosen))
        rest = [one for one in self.candidates if one not in chosen]
        price = {key: seconds + OVERHEAD for key, seconds in self.seconds.items()}
        waiting = [(-math.inf, number) for number in range(len(rest))]
        while True:

            def worth(one: Candidate) -> float:
                new = sum((1.0, 0.25)[times[name]] for name in self.finds[one.key] if times[name] < 2)
                return (new + DUTY * len(self.duties[one.key] - done)) / price[one.key]

            # by what each was worth when it was looked at last: it is never worth more later
            while waiting and -waiting[0][0] > worth(rest[waiting[0][1]]):
                heapreplace(waiting, (-worth(rest[waiting[0][1]]), waiting[0][1]))
            if not waiting or waiting[0][0] == 0:
                break
            best = rest[heappop(waiting)[1]]
            unseen = any(not times[name] for name in self.finds[best.key])
            unseen = unseen or any(MUST.fullmatch(one) for one in self.duties[best.key] - done)
            far = len(self.duties[best.key] - done) >= max(LEAST, EACH_SECOND * price[best.key])
            again = price[best.key] <= CHEAP and any(times[name] == 1 for name in self.finds[best.key])
            if not (unseen or far or again):
                continue
            chosen.append(best)
            times.update(self.finds[best.key])
            done.update(self.duties[best.key])
        return self._needed(chosen)

    def for_gpu(self, chosen: list[Candidate], most: int) -> list[Candidate]:
        """As many of those chosen as a GPU runs: the most kernels and duties, whatever the shape."""
        rest = [
            one
            for one in chosen
            if not one.small and not one.wide and len(one.shapes) == 1 and one.depth != "thorough"
        ]
        taken: list[Candidate] = []
        seen: set[str] = set()
        while rest and len(taken) < most:
            best = max(rest, key=lambda one: len((self.finds[one.key] | self.duties[one.key]) - seen))
            rest.remove(best)
            taken.append(best)
            seen |= self.finds[best.key] | self.duties[best.key]
        return taken

    def _needed(self, chosen: list[Candidate]) -> list[Candidate]:
        """Those without which a kernel or a duty would go; dear ones are left out first."""
        kept, always = list(chosen), long_sums(self.ladder)
        for one in sorted((one for one in chosen[1:] if one not in always), key=lambda one: -self.seconds[one.key]):
            rest = [other for other in kept if other != one]
            times = Counter(name for other in rest for name in self.finds[other.key])
            found = set().union(*(self.duties[other.key] for other in rest))
            twice = self.seconds[one.key] > CHEAP or not any(times[name] == 1 for name in self.finds[one.key])
            if all(times[name] for name in self.finds[one.key]) and self.duties[one.key] <= found and twice:
                kept = rest
        return kept


OVERHEAD = 0.004  # seconds that a case costs whatever its shape
CHEAP = 0.02  # seconds that a second finding of a kernel may cost
MOST_TERMS = 1600  # of a sum of integers that is chosen for what it goes out on
EACH_WORK = 2e-7  # seconds, where no right kernel was timed
# What a candidate must have that no other has, if it finds no kernel: so many duties, and so many for each second.
LEAST, EACH_SECOND = 6, 150
MUST = re.compile(
    r"(sum|weights|taps|stride_.|pad_.|dilation_.)>\d+( with normals)?|wide .*|all .*"
)  # whatever they cost
DUTY = 0.2  # of a kernel that a duty is worth


HEAD = """\
# What a check of a step runs, by ladder: written by tests/kill_matrix.py, which says how it is chosen. Those that
# find most in the least time come first. A line is a shape, or two that follow each other; behind the bar: how it is
# checked, and whether a GPU runs it, too. Behind the line: wrong kernels that fail there alone, all of them, and
# milliseconds of a right one.
"""
ON_GPU = {"conv2d": 7}  # of those chosen, for a kernel is compiled for each shape
MOST_ON_GPU = 20


def _entry(ladder: str, matrix: Matrix) -> str:
    """A ladder's part of ``shapes.toml``."""
    chosen = matrix.choose()
    times = Counter(name for one in chosen for name in matrix.finds[one.key])
    on_gpu = matrix.for_gpu(chosen, ON_GPU.get(LADDERS[ladder].form, MOST_ON_GPU))
    lines = []
    for one in chosen:
        marks = one.marks + ["gpu"] * (one.wide or one in (*on_gpu, *long_sums(ladder)))
        line = " then ".join(map(str, one.shapes)) + (" | " + " ".join(marks) if marks else "")
        found = matrix.finds[one.key]
        alone = sum(times[name] == 1 for name in found)
        lines.append(f'    "{line}",  # {alone}, {len(found)}, {1e3 * matrix.seconds[one.key]:.0f} ms\n')
    missing = {path.stem for path in kernels(ladder)} - set(times)
    total = sum(matrix.seconds[one.key] for one in chosen)
    said = f"{len(chosen)} of {len(matrix.candidates)} candidates, {total:.1f} s of {RIGHT[ladder]}"
    if missing:
        said += f"; found at none: {', '.join(sorted(missing))}"
    comment = "".join(f"# {part}\n" for part in textwrap.wrap(said, 110))
    return f"\n{comment}{ladder} = [\n{''.join(lines)}]\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("run", "choose", "show"))
    parser.add_argument("ladders", nargs="*", help="default: all")
    parser.add_argument("--seconds", type=float, default=3600, help="of processor, at most")
    parser.add_argument("--nice", type=int, default=19, help="of the process")
    options = parser.parse_args()
    if options.what == "choose" and options.ladders:
        parser.error("choose writes all ladders: name none, or use show")
    wanted = options.ladders or list(RIGHT)
    if options.what == "run":
        os.environ.update(device.environment(True))
        os.nice(options.nice)
        fill(wanted, options.seconds)
        return 0
    rows = known()
    text = "".join(_entry(ladder, Matrix.read(ladder, rows)) for ladder in wanted)
    if options.what == "choose":
        plan.SHAPES.write_text(HEAD + text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
