"""Which shapes does a check need? python tests/kill_matrix.py run | choose | report [LADDER ...].

``run`` tries every wrong kernel of ``tests/wrong_kernels`` at every candidate, on the tracer, and notes whether it is
found there and by what; it goes on where it stopped. ``choose`` takes, for each ladder, the cheapest candidates at
which every kernel fails that fails anywhere, twice where that costs little, and all that go out on an axis; it writes
``common/measure/shapes.toml``. ``report`` chooses on two thirds of the kernels, three times over, and says how many of
the third left out are found.

A candidate is one shape, or two that one module is asked for one after the other, as what a step keeps under too
short a key shows at the second alone.
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
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import classes

from common.book import catalog, device, problems
from common.book.problems import LADDERS, Conv2d, Conv3d, Gemm, Problem, on_ladder
from common.explain import diagnose
from common.jobs import run, tasks
from common.jobs.messages import Check
from common.measure import inputs, shapes
from common.workers import child

CACHE = catalog.ROOT / ".workbook" / "kill_matrix.jsonl"
SECONDS = 6.0  # of a wrong kernel at a candidate: one that takes longer is late, which is not found
DEAR = 0.35  # seconds of a right kernel at a candidate beyond which it is tried only where no other finds a kernel
# A right kernel by ladder, whose time is a candidate's cost: an ordinary one, not the quickest to trace.
RIGHT = {
    "gemm": "gemm_register_blocked", "conv2d": "conv2d_shared_tile", "conv3d": "conv3d_implicit_gemm",
    "hgemm": "hgemm_shared", "hconv3d": "hconv3d_mma", "dgrad": "dgrad_implicit_gemm",
    "wgrad": "wgrad_implicit_gemm",
}  # fmt: skip


@dataclass(frozen=True)
class Candidate:
    """Shapes that one module is asked for one after the other, and how each is checked."""

    shapes: tuple[Problem, ...]
    depth: str = "once"
    operands: str = ""
    small: bool = False
    wide: bool = False

    @property
    def key(self) -> str:
        marks = [mark for mark in (self.depth, self.operands, "small" * self.small, "wide" * self.wide) if mark]
        return " then ".join(map(str, self.shapes)) + " | " + " ".join(marks)

    @property
    def work(self) -> int:
        """About what it costs, to sort by."""
        terms = sum(shapes.multiply_adds(one) + 500 * one.reduction + 50_000 for one in self.shapes)
        return terms * (8 if self.depth == "thorough" else 1)


# --- candidates ---

_SIDES = (2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 21, 31, 32, 33, 41, 47, 48, 55, 63, 64, 65, 97, 127, 128, 129, 131)
_FAR = (193, 255, 256, 257, 259, 300, 511, 512, 513, 517, 769, 1023, 1025, 2049, 2053, 4099)


def candidates(ladder: str) -> list[Candidate]:
    """All that may be chosen from for a ladder, the cheapest first."""
    form = LADDERS[ladder].form
    rng = random.Random(1)
    first = problems.FIRST[ladder]
    found = [Candidate((first,)), Candidate((first,), "usual"), Candidate((first,), "thorough")]
    singles = [
        *problems.RAGGED[ladder], *shapes.covering(ladder), *shapes.tiled(ladder), *shapes.layers(ladder),
        *shapes.familiar(ladder), *(shapes.draw(ladder, rng, 1 << 15) for _ in range(60)),
        *(on_ladder(ladder, one) for one in _far_out(form)),
    ]  # fmt: skip
    found += [Candidate((one,)) for one in singles]
    found += [Candidate((one,), operands=inputs.NORMALS) for one in _precise(ladder)]
    found += [Candidate((shapes.narrow(one),), wide=True) for one in shapes.wide(ladder)]
    found += [Candidate((one,), wide=True) for one in shapes.wide(ladder)]
    found += [Candidate((one,), small=True) for one in shapes.on_small_card(ladder)]
    plain, *twins = shapes.twins(ladder)
    found += [Candidate(pair) for one in twins for pair in ((plain, one), (one, plain))]
    found += [Candidate(tuple(on_ladder(ladder, one) for one in pair)) for pair in _pairs(form)]
    return sorted(dict.fromkeys(found), key=lambda one: one.work)


def _far_out(form: str) -> Iterator[Problem]:
    """Far out on one axis, or two, where the others are short."""
    if form == "gemm":
        for extent in (*_SIDES, *_FAR):
            for others in ((2, 3), (5, 4)):
                for axis in range(3):
                    extents = list(others)
                    extents.insert(axis, extent)
                    yield Gemm(**dict(zip("MNK", extents, strict=True)))
            yield from (Gemm(M=extent, N=extent, K=2), Gemm(M=2, N=extent, K=extent), Gemm(M=extent, N=3, K=extent))
        return
    tall = ((8, 8), (9, 9), (1, 65), (65, 1), (17, 1), (1, 17), (33, 2), (2, 33), (3, 31), (11, 11), (10, 6), (6, 10))
    tall = (*tall, (1, 9), (9, 1), (1, 8), (8, 1), (1, 11), (13, 1), (7, 7), (8, 9), (5, 13), (31, 1), (1, 31))
    sides = (*_SIDES, *(far for far in _FAR if far < 1100))
    if form == "conv2d":
        base = Conv2d(N=1, C=1, H=4, W=5, K=2, R=2, S=3)
        yield from (replace(base, **{axis: far}) for axis in "NCK" for far in (*sides, *_FAR[-3:]))
        yield from (replace(base, C=2, **{axis: far}) for axis in "NK" for far in sides)
        yield from (replace(base, H=far + 1, W=4) for far in sides)
        yield from (replace(base, W=far + 2, H=3) for far in sides)
        for r, s in tall:
            yield Conv2d(N=1, C=1, H=r + 1, W=s + 2, K=2, R=r, S=s)
            yield Conv2d(N=2, C=3, H=r + 3, W=s + 1, K=3, R=r, S=s)
            yield Conv2d(N=1, C=1, H=r, W=s + 70, K=1, R=r, S=s)
            yield Conv2d(N=1, C=2, H=r + 35, W=s + 1, K=1, R=r, S=s)
        for q in (41, 47, 55, 61, 82, 83, 94, 97, 107, 109):
            yield Conv2d(N=1, C=1, H=q + 2, W=q, K=1, R=2, S=1)
        yield from (Conv2d(N=1, C=c, H=5, W=4, K=k, R=3, S=2) for c, k in ((36, 40), (64, 65), (130, 20), (20, 131)))
        yield from (Conv2d(N=1, C=c, H=3, W=3, K=2, R=3, S=3) for c in (57, 114, 228, 456))
        return
    base = Conv3d(N=1, C=1, D=2, H=4, W=5, K=2, T=1, R=2, S=3)
    yield from (replace(base, **{axis: far}) for axis in "NCK" for far in (*sides, *_FAR[-3:]))
    yield from (replace(base, **{axis: far + 3}) for axis in "DHW" for far in sides)
    yield from (replace(base, C=4, K=4, **{axis: far}) for axis in "NCKDHW" for far in sides if far > 3)
    for r, s in tall:
        yield Conv3d(N=1, C=1, D=1, H=r + 1, W=s + 2, K=2, T=1, R=r, S=s)
        yield Conv3d(N=1, C=2, D=2, H=max(1, r - 2), W=max(1, s - 2), K=3, T=1, R=r, S=s, pad_h=2, pad_w=2)
    for t, r, s in ((9, 1, 1), (5, 5, 5), (4, 4, 4), (17, 1, 2), (33, 1, 1), (65, 1, 1), (3, 4, 3), (2, 5, 7)):
        yield Conv3d(N=1, C=1, D=t + 1, H=r + 1, W=s + 1, K=2, T=t, R=r, S=s)
    for axis, extent, taps in zip("dhw", "DHW", "TRS", strict=True):
        for stride, pad, dilation in itertools.product((1, 2, 3, 4, 5, 7, 8, 9), (0, 1, 3, 4, 5, 9), (1, 2, 3, 4, 5)):
            far = sum((stride > 3, pad > 3, dilation > 3))
            if far == 1 or (far == 2 and (stride + pad + dilation) % 3 == 0):
                options = {f"stride_{axis}": stride, f"pad_{axis}": pad, f"dilation_{axis}": dilation}
                reach = 2 * dilation + 1
                options |= {taps: 3, extent: max(1, reach + 2 * stride - 2 * pad + 1)}
                yield replace(replace(base, C=2, D=3, H=4, W=5), **options)
    for stride in (2, 3, 4, 5):
        options = {f"stride_{axis}": stride for axis in "dhw"}
        yield Conv3d(N=2, C=2, D=stride + 3, H=stride + 4, W=2 * stride + 3, K=3, T=2, R=3, S=3, **options)
    for q in (41, 47, 55, 61, 83):
        yield Conv3d(N=1, C=1, D=1, H=q + 2, W=q, K=1, T=1, R=2, S=1)
    yield from (Conv3d(N=1, C=c, D=1, H=3, W=3, K=k, T=1, R=3, S=3) for c, k in ((57, 2), (228, 2), (456, 1), (5, 260)))


def _precise(ladder: str) -> Iterator[Problem]:
    """Where sums are rounded: whole tiles, long sums, large filters."""
    yield from (*shapes.rounded(ladder), *shapes.familiar(ladder))
    form = LADDERS[ladder].form
    if form == "gemm":
        longs = [Gemm(M=3, N=4, K=far) for far in _FAR] + [Gemm(M=16 * n, N=16 * n, K=16 * n) for n in (1, 2, 4)]
    elif form == "conv2d":
        longs = [one for one in _far_out(form) if one.reduction > 100 or math.prod(one.weight_shape) > 4000]
    else:
        longs = [one for one in _far_out(form) if on_ladder(ladder, one).reduction > 100]
    yield from (on_ladder(ladder, one) for one in longs)


def _pairs(form: str) -> Iterator[tuple[Problem, Problem]]:
    """Two shapes of one plan that differ in one thing, or share what a key may be made of."""
    if form == "gemm":
        base = Gemm(M=6, N=4, K=8)
        changes = [{axis: extent} for axis in "MNK" for extent in (2, 5, 12, 33)]
        changes += [{"M": 4, "N": 6}, {"M": 8, "K": 6}, {"N": 8, "K": 4}, {"M": 12, "N": 2}, {"M": 3, "K": 16}]
    elif form == "conv2d":
        base = Conv2d(N=2, C=3, H=6, W=8, K=5, R=3, S=2)
        changes = [{axis: extent} for axis in "NCK" for extent in (1, 4, 9)]
        changes += [{"H": 8, "W": 6}, {"H": 4, "W": 12}, {"R": 2, "S": 3}, {"R": 6, "S": 1}, {"R": 1, "S": 6}]
        changes += [{"H": 7}, {"W": 9}, {"H": 16}, {"W": 21}, {"C": 5, "K": 3}, {"N": 3, "C": 2}, {"R": 2}, {"S": 3}]
    else:
        base = Conv3d(N=2, C=3, D=3, H=6, W=8, K=4, T=2, R=3, S=2)
        changes = [{axis: extent} for axis in "NCK" for extent in (1, 5)]
        changes += [{"H": 8, "W": 6}, {"D": 6, "H": 3}, {"D": 8, "W": 3}, {"R": 2, "S": 3}, {"T": 3, "R": 2}]
        changes += [{"H": 7}, {"W": 9}, {"D": 4}, {"C": 4, "K": 3}, {"N": 3, "C": 2}, {"T": 1}, {"R": 2}, {"S": 3}]
        changes += [
            {f"{what}_{axis}": value} for axis in "dhw" for what, value in (("stride", 2), ("pad", 1), ("dilation", 2))
        ]
        changes += [{"stride_h": 2, "pad_h": 1}, {"stride_w": 2, "pad_w": 1}, {"H": 12, "W": 4}, {"W": 16, "H": 3}]
    for change in changes:
        if form in ("conv3d", "dgrad", "wgrad") and change.get("dilation_d"):
            yield base, replace(base, **change)
            continue
        yield base, replace(base, **change)
        yield replace(base, **change), base


# --- running ---


def ladders_of(name: str) -> str:
    return name.split("_")[0]


def kernels(ladder: str) -> list[Path]:
    """The wrong kernels of a ladder; those that only a GPU shows are left out."""
    paths = sorted(classes.FOLDER.glob(f"{ladder}_*.py"))
    return [path for path in paths if "\nGPU only:" not in path.read_text(encoding="utf-8")[:2000]]


class _Late(BaseException):
    pass


def attempt(path: Path, ladder: str, candidate: Candidate, precision: str = "fp32") -> tuple[str, float]:
    """What finds the kernel at a candidate, empty if nothing does, and the seconds; in this process, a module anew."""
    tasks._kept.clear()
    began, late = time.process_time(), []

    def stop(*_: object) -> None:
        late.append(True)
        raise _Late

    signal.signal(signal.SIGALRM, stop)
    found = ""
    for problem in candidate.shapes:
        fields = {"engine": "traced", "depth": candidate.depth, "special": candidate.operands, "small": candidate.small}
        task = Check(
            path=str(path), ladder=ladder, shape=problem.shape(), repeats=1, precision=precision, wide=candidate.wide,
            **fields,
        )  # fmt: skip
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                result = child._attempt(task)
        except _Late:
            result = {"status": "late"}
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if late:
            found = "late"
        elif result.get("untraced"):
            found = "untraced"
        else:
            result = run.judged(problem, result)
            if result["status"] not in classes.ENDED:
                said = result.get("findings") or [{"kind": result["status"], "message": result.get("message")}]
                found = f"{said[0]['kind']}: {said[0]['message']}"[:160]
                if "LaunchLimitError" in found and candidate.wide and not _limits(path):
                    found = ""
        if found:
            break
    return found, time.process_time() - began


def _limits(path: Path) -> bool:
    """May a grid that is too large be this kernel's mistake?"""
    text = path.read_text(encoding="utf-8")
    return "Class: shapes" in text or "Class: gpu" in text or "Class:" not in text


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
    os.nice(19)
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
            all_of_them, right = candidates(ladder), catalog.find(RIGHT[ladder]).path
            for candidate in all_of_them:
                found, _ = tried(right, ladder, candidate)
                if found and found != "late":
                    print(f"{right.stem} is called wrong at {candidate.key}: {found}", flush=True)
            cost = {candidate.key: tried(right, ladder, candidate)[1] for candidate in all_of_them}
            for path in kernels(ladder):
                killed = late = 0
                for candidate in sorted(all_of_them, key=lambda one: cost[one.key]):
                    if (cost[candidate.key] > DEAR and killed) or late > 3:
                        continue
                    if time.process_time() - began > most:
                        return
                    found, _ = tried(path, ladder, candidate)
                    killed += found not in ("", "late", "untraced")
                    late += found in ("late", "untraced")
                print(f"{time.process_time() - began:6.0f} s {path.stem}: found at {killed}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("run", "choose", "report", "count"))
    parser.add_argument("ladders", nargs="*", help="default: all")
    parser.add_argument("--seconds", type=float, default=3600, help="of processor, at most")
    options = parser.parse_args()
    wanted = options.ladders or list(LADDERS)
    if options.what == "count":
        for ladder in wanted:
            print(ladder, len(kernels(ladder)), len(candidates(ladder)))
    elif options.what == "run":
        if not device.simulated():
            os.execve(sys.executable, [sys.executable, *sys.argv], device.environment(True))
        from common.microscope import simulator

        simulator.install()
        fill(wanted, options.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
