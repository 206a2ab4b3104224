"""What a check of a step consists of: its cases, engine by engine, in the order in which they run.

Which shapes, is data: ``shapes.toml``, chosen so that every wrong kernel that is known fails at one, and that each
extent, stride, padding and dilation is far out at one; ``full.toml`` has those of ``check --full``. A few are drawn
anew each time. A process runs its cases on one imported module, so what a step keeps from one to the next shows: one
process all of an engine's, or a few that share the traces. The tracer runs every block in lockstep, and alone sees
what is unsound; the GPU runs the kernel as compiled, at more and larger shapes.
"""

import dataclasses
import math
import random
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args

from msgspec.structs import replace

from common.catalog import inputs, problems, store
from common.catalog.problems import LADDERS, Conv2d, Convolution, Problem
from common.run.messages import Check, Depth, Engine

SHAPES, _LISTS = (Path(__file__).with_name(name) for name in ("shapes.toml", "full.toml"))

LONG_SECONDS = 150.0  # the limit of a case that may take long
TRACED_FROM = 5_000_000  # multiply-adds from which on a trace may
ASKED_SECONDS = 20.0  # of a core that the tracer would take at least for a launch at a shape that is still tried
TRACED_AT_BEST = 2e9  # operations a second, more than the tracer was seen to do of any step

DRAWN, DRAWN_COMPILED = 4, 2  # shapes drawn anew; a conv2d kernel is compiled for each shape
# Multiply-adds of a drawn shape, and terms of a sum, where one comes after the other: without a GPU, and on one; then
# multiply-adds in `check --full`, whose sums may have a 256th as many terms.
MOST, MOST_TERMS, MOST_ON_GPU, TERMS_ON_GPU = 1 << 16, 1 << 10, 1 << 24, 1 << 13
LARGEST_DRAWN, LARGEST_ON_GPU = 1 << 17, 1 << 27
SPECIAL_UP_TO, SPECIAL_TERMS = 1 << 15, 256  # the same of a shape that special operands are tried at without a GPU
_IN_TILES = 256  # times the multiply-adds of a drawn shape that tiles may make of it
_FAR = 4096  # the longest extent
_ROUND = sorted({2**a * 3**b for a in range(13) for b in range(8) if 2**a * 3**b <= _FAR})
_MOST_WEIGHTS = 1 << 14  # what constant memory holds, beyond which a step may refuse; gathering them takes long

MAX_GRID_YZ = 65535  # blocks of a grid along y and z
REFUSABLE_WEIGHT_BYTES = 64 << 10  # of constant memory
FEW = 4  # multiprocessors of the small GPU that ``small_card`` is for


def case(problem: Problem, engine: Engine, depth: Depth = "once", seed: int = 0, **more: Any) -> Check:
    """One shape for one engine: the check of no file as yet."""
    shape = problem.shape()
    return Check(path="", ladder=problem.ladder, shape=shape, engine=engine, depth=depth, seed=seed, **more)


def seconds(case: Check) -> float | None:
    """The limit of a case that may take long."""
    # a step whose weights are compiled in compiles for each change of them
    long = case.depth == "large" or (case.engine, case.depth) == ("gpu", "thorough")
    return LONG_SECONDS if long or (not case.on_gpu and multiply_adds(case.problem) > TRACED_FROM) else None


def new_seed() -> int:
    """A seed for what is drawn anew."""
    return random.SystemRandom().randrange(1_000_000)


@lru_cache
def chosen(ladder: str) -> tuple[tuple[Check, bool], ...]:
    """The cases that ``shapes.toml`` has for a ladder, or else for its form, those that find most in the least time
    first; and which of them a GPU runs, too.

    A line of it is ``SHAPE`` or ``SHAPE then SHAPE``, perhaps followed by ``|`` and marks: a depth, a kind of
    operands, ``small``, ``wide``, ``gpu``. Raises ValueError naming a line that cannot be read.
    """
    data = store.read_toml(SHAPES)
    found: list[tuple[Check, bool]] = []
    for line in data.get(ladder) or data[LADDERS[ladder].form]:
        texts, _, marked = line.partition("|")
        marks = marked.split()
        depth: Depth = next((one for one in get_args(Depth) if one in marks), "once")
        special = next((mark for mark in marks if mark in (*inputs.SPECIAL, inputs.NORMALS)), "")
        if set(marks) - {depth, special, "small", "wide", "gpu"}:
            allowed = "marks must be a depth, operands, small, wide or gpu"
            raise ValueError(f"{SHAPES.name}, {ladder}: {line!r}: {allowed}")
        for number, text in enumerate(texts.split(" then ")):
            flags = {"wide": "wide" in marks, "small": "small" in marks, "follows": number > 0}
            problem = problems.parse_shape(ladder, text)
            found.append((case(problem, "traced", depth, special=special, **flags), "gpu" in marks))
    return tuple(found)


def cases(ladder: str, gpu: bool, seed: int, full: bool = False) -> list[Check]:
    """The cases of a step of this ladder, those that find most in the least time first; ``seed`` is that of what is
    drawn. ``full``: the pairwise plan in their place."""
    compiled = LADDERS[ladder].form == "conv2d"  # for each shape, and each change of the weights: few are tried
    if full:
        traced, count, most = _pairwise(ladder, seed), 2 if compiled else 60, LARGEST_ON_GPU
        on_gpu, terms = traced[:: 10 if compiled else 1], LARGEST_ON_GPU >> 8
        traced = traced + [case(one, "traced", "usual", seed, small=True) for one in small_card(ladder)]
    else:
        drawn_too = [case(one, "traced") for one in drawn(ladder, seed, DRAWN)]
        traced = _operands([one for one, _ in chosen(ladder)] + drawn_too, seed)
        on_gpu = [case(problems.FIRST[ladder], "gpu", "usual" if compiled else "thorough")]
        on_gpu += [one for one, too in chosen(ladder) if too]
        count, most, terms = DRAWN_COMPILED if compiled else DRAWN, MOST_ON_GPU, TERMS_ON_GPU
    if not gpu:
        return traced
    on_gpu = on_gpu + [case(one, "gpu") for one in drawn(ladder, seed, count, most, terms)]
    large = [case(one, "gpu", "large") for one in listed("large", ladder)]
    return traced + _operands([replace(one, engine="gpu", small=False) for one in on_gpu], seed) + large


def smoke(ladder: str, gpu: bool, seed: int) -> list[Check]:
    """The cases of a shipped step whose whole verdict is of the record: does it compile and run here?"""
    engine: Engine = "gpu" if gpu else "traced"  # what a trace finds is the same on all machines
    return [case(problems.FIRST[ladder], engine, "usual", seed), case(problems.RAGGED[ladder][0], engine, seed=seed)]


def _operands(planned: list[Check], seed: int, terms: float = SPECIAL_TERMS) -> list[Check]:
    """Each with a seed of its own, and where it has integers alone, special operands of one kind after the other, if
    its sums have no more than ``terms``."""
    kinds, found = list(inputs.SPECIAL), []
    for number, one in enumerate(planned, seed):
        special = one.special
        small = multiply_adds(one.problem) <= (LARGEST_ON_GPU if one.on_gpu else SPECIAL_UP_TO)
        if one.depth == "once" and not special and small and one.problem.reduction <= terms:
            special = kinds[number % len(kinds)]
        found.append(replace(one, seed=number, special=special))
    return found


def _pairwise(ladder: str, seed: int) -> list[Check]:
    """Traces at shapes among which every pair of conditions occurs, and at all others that are listed."""
    first = problems.FIRST[ladder]
    found = [case(first, "traced", "thorough", seed)]
    found += [case(problem, "traced", "usual", seed) for problem in problems.RAGGED[ladder]]
    # a path of its own may round what no other does: normals; where outputs are rounded, integers show that
    rounded = {one for one in listed("rounded", ladder) if multiply_adds(one) > SPECIAL_UP_TO}
    rounded |= {*listed("long_sums", ladder)}
    rounded |= set() if first.output_dtype in problems.SIXTEEN_BITS else {*listed("familiar", ladder)}
    shapes = [*listed("covering", ladder), *listed("twins", ladder)]
    shapes += [*drawn(ladder, seed, DRAWN, LARGEST_DRAWN, LARGEST_DRAWN >> 8), *tiled(ladder)]
    shapes += [one for name in ("long_sums", "layers", "familiar") for one in listed(name, ladder)]
    planned = [case(one, "traced", special=inputs.NORMALS if one in rounded else "") for one in shapes]
    found += _operands(planned, seed, math.inf)
    return [*found, *(case(one, "traced", wide=True) for one in listed("wide", ladder)), case(first, "traced")]


def cases_at(problem: Problem, gpu: bool, seed: int) -> list[Check]:
    """The cases of a step at one shape that was asked for; none without a GPU if it is :func:`too_large`. Traces make
    several launches where one is quick, and one beside a GPU, whose verdict they hold up."""
    found = [case(problem, "gpu", "usual", seed)] if gpu else []
    if not too_large(problem):
        quick = not gpu and multiply_adds(problem) <= TRACED_FROM
        depth: Depth = "usual" if quick else "once"
        found.append(case(problem, "traced", depth, seed))
        if problem in small_card(problem.ladder):
            found.append(case(problem, "traced", depth, seed, small=True))
    return found


def too_large(problem: Problem) -> str:
    """Why nothing can judge a step at this shape without a GPU; empty if it must be tried."""
    seconds = problem.flops / TRACED_AT_BEST
    if seconds <= ASKED_SECONDS:
        return ""
    said = f"one launch takes the tracer at least {seconds:,.0f} s, more than {ASKED_SECONDS:g} s"
    return f"too large for this machine without a GPU: {said}"


def ordinary(problem: Problem) -> bool:
    """Must every step take this shape? Not one of more than 65,535, or a filter beyond constant memory."""
    if max(problem.shape().values()) > MAX_GRID_YZ:
        return False
    weight_bytes = math.prod(problem.weight_shape) * problem.input_dtype.itemsize
    return problem.form not in ("conv2d", "conv3d") or weight_bytes <= REFUSABLE_WEIGHT_BYTES


def multiply_adds(problem: Problem) -> int:
    """Multiply-adds of the definition."""
    return problem.flops // 2


def drawn(ladder: str, seed: int, count: int, most: int = MOST, terms: int = MOST_TERMS) -> tuple[Problem, ...]:
    """``count`` shapes of at most ``most`` multiply-adds each, and ``terms`` of a sum; the same for the same seed.

    Extents are log-uniform, so that 3 is as likely as 3,000 where the other axes are short; half of them are then
    made products of 2 and 3, or one more or less, as tiles and vectors are; now and then two are made equal.
    """
    rng = random.Random(seed)
    found: list[Problem] = []
    while len(found) < count:
        if shape := _draw(LADDERS[ladder], rng, most):
            problem = problems.from_shape(ladder, shape)
            small = problem.flops <= 2 * most and math.prod(problem.weight_shape) <= _MOST_WEIGHTS
            if small and problem.reduction <= terms and _in_tiles(problem) <= _IN_TILES * most:
                found.append(problem)
    return tuple(found)


def _in_tiles(problem: Problem) -> int:
    """Multiply-adds of a kernel that has all taps for each of its outputs, in tiles of at least 8 channels."""
    channels = [problem.C, problem.K] if isinstance(problem, Conv2d | Convolution) else []
    return math.prod([*problem.output_shape, problem.reduction, *(-(-8 // min(8, count)) for count in channels)])


def _draw_extent(rng: random.Random, most: float) -> int:
    """Log-uniform up to ``most``."""
    most = min(max(most, 1), _FAR)
    value = int(math.exp(rng.uniform(0, math.log(most + 1))))
    if rng.random() < 0.5:
        value = max(one for one in _ROUND if one <= value) + rng.choice((-1, 0, 0, 0, 1))
    return max(1, min(value, int(most)))


def _draw_extents(rng: random.Random, count: int, most: float) -> list[int]:
    """``count`` of them whose product is at most ``most``, none before the others; perhaps two are equal."""
    found: list[int] = []
    for _ in range(count):
        found.append(_draw_extent(rng, most / math.prod(found)))
    if count > 1 and rng.random() < 0.2:
        found[1] = found[0] = min(found[:2])
    rng.shuffle(found)
    return found


def _draw_taps(rng: random.Random, count: int) -> list[int]:
    """Of a filter along each axis: mostly few, or as many along one axis as along the others."""
    if rng.random() < 0.4:
        return [rng.choice((1, 2, 3, 3, 5, 7))] * count
    return [_draw_extent(rng, rng.choice((3, 8, 40))) for _ in range(count)]


def _draw(kind: type[Problem], rng: random.Random, most: int) -> dict[str, int]:
    """A shape of about this many multiply-adds; empty if the padding leaves nothing of the input, or of the taps."""
    taps, free = _draw_taps(rng, len(kind.axes)), issubclass(kind, Convolution)
    if free and rng.random() < 0.5:
        taps[0] = 1
    *outs, first, second, third = _draw_extents(rng, len(taps) + 3, most / math.prod(taps))
    shape = dict(zip("NCK" if taps else "MNK", (first, second, third), strict=True))
    plain = rng.random() < 0.25
    for (extent, name, axis), count, out in zip(kind.axes, taps, outs, strict=True):
        stride, pad, dilation = 1, 0, 1
        if free and not plain:
            stride, dilation = rng.choice((1, 1, 1, 2, 2, 3, 4, 5)), rng.choice((1, 1, 1, 2, 3, 4))
        if free:
            pad = rng.choice((0, count // 2, rng.randrange(6)))
            shape |= {f"stride_{axis}": stride, f"pad_{axis}": pad, f"dilation_{axis}": dilation}
        length = (out - 1) * stride + (count - 1) * dilation + 1 - 2 * pad + rng.randrange(stride)
        if not any(0 <= o * stride + t * dilation - pad < length for o in range(out) for t in range(count)):
            return {}
        shape |= {extent: length, name: count}
    return shape


@lru_cache
def listed(name: str, ladder: str) -> tuple[Problem, ...]:
    """The shapes that ``full.toml`` has under this name for a ladder; none if it has no list for it."""
    lists, kind = store.read_toml(_LISTS)[name], LADDERS[ladder]
    keys = [ladder, kind.form]
    keys += ["gradients"] if kind.form in ("dgrad", "wgrad") else []
    keys += ["convolutions"] if issubclass(kind, Convolution) else []
    texts: list[str] = next((lists[key] for key in keys if key in lists), [])
    return tuple(problems.parse_shape(ladder, text) for text in texts)


def small_card(ladder: str) -> tuple[Problem, ...]:
    """Shapes that are also checked on a card of few multiprocessors, where blocks stay for several tiles."""
    return *listed("small_card", ladder), *(one.problem for one, _ in chosen(ladder) if one.small)


def tiled(ladder: str) -> tuple[Problem, ...]:
    """Shapes that fill tiles and pipelines, those for a copy engine last."""
    return *listed("tiled", ladder), *listed("copied", ladder)


# Axes that blocks seldom lie along y or z of a grid for: filters, and what threads take side by side.
_SELDOM = {"gemm": "N", "conv2d": "KW", "conv3d": "KW", "dgrad": "CW", "wgrad": "NHW"}


def narrow(problem: Problem) -> Problem:
    """A shape of ``wide``; 1,025 in place of its long extent if a grid seldom needs y or z for that: a thread's loop
    over 65,537 filters takes the tracer half a minute."""
    long = {key: 1025 for key in _SELDOM[problem.form] if getattr(problem, key) > MAX_GRID_YZ}
    return dataclasses.replace(problem, **long)
