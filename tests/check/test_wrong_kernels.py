"""Every mistake is found and called what it is: ``tests/wrong_kernels`` holds one file for each."""

import ast
import math
import os
import random
import re
import time
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import classes
import pytest
import refute
from sampling import one_of_each, some

from common.catalog import catalog
from common.catalog.problems import RAGGED, Gemm
from common.check import check
from common.explain import diagnose
from common.jobs import tasks
from common.jobs.messages import Check
from common.run import isolate

pytestmark = pytest.mark.usefixtures("traced")

FOLDER = Path(__file__).parents[1] / "wrong_kernels"
ENDED = ("crashed", "timed_out", "unusable")  # what became of a task that has no verdict
PATIENCE = 120.0
MOST = 30_000  # elements that Numba's simulator is asked for
GPU_LIMIT = 30.0  # of an endless kernel, its compilation included

# By name, so that none goes missing unnoticed.
NAMES = [
    "conv2d_channel_dropped", "conv2d_computed_once", "conv2d_first_image_only", "conv2d_flipped_filter",
    "conv2d_halo_off_by_one", "conv2d_no_guard_p", "conv2d_no_guard_q", "conv2d_one_row_of_tiles",
    "conv2d_swapped_r_s", "conv2d_tap_dropped", "conv2d_weights_cached", "conv3d_dilation_d_ignored",
    "conv3d_dilation_h_ignored", "conv3d_dilation_w_ignored", "conv3d_filter_kctrs", "conv3d_h_paired_with_s",
    "conv3d_images_p_deep", "conv3d_no_guard_below_zero", "conv3d_no_guard_past_end",
    "conv3d_one_block_of_filters", "conv3d_padding_is_one", "conv3d_stride_d_ignored", "conv3d_stride_h_along_d",
    "conv3d_stride_h_ignored", "conv3d_stride_w_ignored", "dgrad_dilation_h_ignored", "dgrad_filter_ctrsk",
    "dgrad_flipped_filter", "dgrad_last_filter_dropped", "dgrad_last_image_forgotten",
    "dgrad_last_tap_of_a_stride_dropped", "dgrad_pad_off_by_one", "dgrad_rest_not_looked_at",
    "dgrad_rows_of_no_window_left_out", "dgrad_scattered_into_nothing", "dgrad_stride_w_ignored",
    "dgrad_sums_in_float16", "dgrad_tf32_operands", "gemm_accumulates", "gemm_bad_unpacking",
    "gemm_block_too_large", "gemm_endless", "gemm_first_block_only", "gemm_float16_accumulator",
    "gemm_kernels_out_of_order", "gemm_last_k_dropped", "gemm_last_tile_unwritten", "gemm_missing_barrier",
    "gemm_modified_input", "gemm_multiples_of_16_only", "gemm_no_guard_m", "gemm_no_guard_n", "gemm_no_launch",
    "gemm_no_op", "gemm_one_nan", "gemm_raises", "gemm_reads_past_end", "gemm_square_only",
    "gemm_tensor_cores_as_float32", "gemm_tensor_cores_cut_off", "gemm_tf32_inputs_cut_off", "gemm_tf32_operands",
    "gemm_third_launch_differs", "gemm_transposed", "gemm_two_arguments", "gemm_whole_k_tiles_only",
    "gemm_writes_past_end", "hgemm_b_not_transposed", "hgemm_fragments_swapped", "hgemm_halves_of_a_tile_swapped",
    "hgemm_last_k_dropped", "hgemm_lower_rows_lost", "hgemm_quads_change_places", "hgemm_result_cut_off",
    "hgemm_second_k_before_the_lower_rows", "hgemm_sums_in_float16", "hgemm_swizzled_where_read_alone",
    "wgrad_atomics_without_zeroing", "wgrad_dilation_w_ignored", "wgrad_flipped_filter",
    "wgrad_last_image_forgotten", "wgrad_pad_off_by_one", "wgrad_partial_sum_lost", "wgrad_stored_ctrsk",
    "wgrad_stride_h_ignored", "wgrad_sum_rounded_down", "wgrad_sums_in_float16", "wgrad_tf32_operands",
]  # fmt: skip

# Mistakes that no ragged shape brings out yet.
UNSEEN: dict[str, str] = {}

# Of the kernels by class, which tests/classes.py describes, a test tries one in so many, but no slow one, and draws
# some more. All are tried by python tests/classes.py.
EVERY, DRAWN = 40, 2
SLOW = {
    "conv3d_filters_along_z_clipped", "conv3d_index_in_an_exception", "conv3d_no_barrier_before_next_taps",
    "conv3d_output_pixels_along_y_clipped", "gemm_list_of_partial_sums", "gemm_plain_python_helper",
    "gemm_product_of_slices", "gemm_rows_along_z_once_more", "gemm_sum_of_a_generator",
    "hconv3d_corner_beyond_the_engine", "hconv3d_stride_beyond_the_engine",
}  # fmt: skip


@dataclass(frozen=True)
class Expectation:
    """The kind, or kinds, and message that at least one finding must have; no other kind may come first."""

    kind: str
    says: str

    @property
    def kinds(self):
        return self.kind.split(" or ")

    def met_by(self, findings):
        return any(kind in self.kinds and re.search(self.says, message) for kind, message in findings)

    def require(self, findings):
        assert findings, "nothing was found"
        assert findings[0][0] in self.kinds, findings
        assert self.met_by(findings), (self.says, findings)


@dataclass(frozen=True)
class WrongKernel:
    """A file of ``tests/wrong_kernels``. ``simulator`` is None where only a GPU shows the mistake."""

    name: str
    simulator: Expectation | None
    gpu: Expectation

    @property
    def path(self):
        return FOLDER / f"{self.name}.py"

    @property
    def ladder(self):
        return self.name.split("_")[0]

    def task(self, problem, **options):
        shape, precision = problem.shape(), precision_of(self.path)
        return Check(path=str(self.path), ladder=self.ladder, shape=shape, precision=precision, **options)


def precision_of(path):
    return catalog.precision(path, path.read_text(encoding="utf-8"))


DOCSTRING = re.compile(
    r"[A-Z\w].+\.\n\n"
    r"(?P<only>GPU only: .+\n)?Expect: (?P<kind>\w+)\nSays: (?P<says>.+)\n"
    r"(Expect on GPU: (?P<gpu_kind>\w+( or \w+)*)\nSays on GPU: (?P<gpu_says>.+)\n)?"
)


def read(path):
    found = DOCSTRING.fullmatch(ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")), clean=False) or "")
    assert found, f"{path.name}: the docstring must be a sentence, then Expect: KIND and Says: PATTERN"
    first = Expectation(found["kind"], found["says"])
    second = Expectation(found["gpu_kind"], found["gpu_says"]) if found["gpu_kind"] else first
    return WrongKernel(path.stem, None if found["only"] else first, second)


CORPUS = classes.corpus()
CLASSED = {kernel.name for kernel in CORPUS}
FILES = [read(path) for path in sorted(FOLDER.glob("*.py")) if path.stem not in CLASSED]


def each(kernels):
    """Parametrise a test over wrong kernels."""
    unseen = {name: [pytest.mark.xfail(strict=True, reason=reason)] for name, reason in UNSEEN.items()}
    return pytest.mark.parametrize(
        "kernel", [pytest.param(kernel, id=kernel.name, marks=unseen.get(kernel.name, ())) for kernel in kernels]
    )


def with_kind(*kinds):
    return [kernel for kernel in FILES if kernel.simulator and kernel.simulator.kind in kinds]


def findings(path, problem, repeats=1):
    task = Check(
        path=str(path), ladder=problem.ladder, shape=problem.shape(), engine="traced", depth="usual",
        repeats=repeats, precision=precision_of(path),
    )  # fmt: skip
    return answer(tasks.check_task(task))


def answer(result):
    """A child's result as findings."""
    if result["status"] in ("right", "wrong"):
        return [(finding["kind"], finding["message"]) for finding in result["findings"]]
    return [(result["status"], result["message"])]


def by_name(kernels):
    return pytest.mark.parametrize("kernel", [pytest.param(kernel, id=kernel.name) for kernel in kernels])


# --- the collection ---


def test_the_collection_is_complete():
    assert [kernel.name for kernel in FILES] == NAMES
    assert UNSEEN.keys() <= set(NAMES)


def test_every_kind_of_finding_has_a_kernel():
    expected = {kind for kernel in FILES for e in (kernel.simulator, kernel.gpu) if e for kind in e.kinds}
    assert expected | {"refused"} == {*check.KINDS, *ENDED}  # this one has a class below


@pytest.mark.parametrize(
    "text", ["", "Does nothing.", "Does nothing.\n\nExpect: nan\n", "Does nothing.\n\nExpect: nan\nSays:\n"]
)
def test_a_docstring_that_expects_nothing_is_no_wrong_kernel(write, text):
    with pytest.raises(AssertionError, match=r"gemm_x\.py: the docstring must be"):
        read(write("gemm_x.py", f'"""{text}"""\n'))


@pytest.mark.parametrize("ladder", dict.fromkeys(step.ladder for step in catalog.steps()))
def test_a_right_kernel_meets_no_expectation(ladder):
    first = next(step for step in catalog.steps() if step.ladder == ladder)
    found = findings(first.path, min(RAGGED[ladder], key=lambda problem: problem.flops))
    for kernel in FILES:
        for expectation in filter(None, (kernel.simulator, kernel.gpu)):
            with pytest.raises(AssertionError):
                expectation.require(found)


def test_an_expectation_fails_on_another_kind_or_message():
    expectation = Expectation("nan", "adds to")
    expectation.require([("nan", "the kernel adds to c"), ("wrong", "5 of 9")])
    for found in ([("wrong", "5 of 9"), ("nan", "adds to c")], [("nan", "1 of 9")], [("wrong", "adds to c")], []):
        with pytest.raises(AssertionError):
            expectation.require(found)


# --- in the simulator ---


SEEN = with_kind(*check.KINDS)
TRIED = [*one_of_each(SEEN, lambda kernel: (kernel.ladder, kernel.simulator.kind)), *some(SEEN, 12)]


@each(list(dict.fromkeys(TRIED)))
def test_the_mistake_is_found_and_named(kernel):
    # launches on equal inputs are compared only where that is the point
    repeats = 2 if kernel.simulator.kind == "unstable" else 1
    found = []
    for problem in RAGGED[kernel.ladder]:
        found += findings(kernel.path, problem, repeats)
        if kernel.simulator.met_by(found):
            break
    kernel.simulator.require(found)


@pytest.fixture(scope="module")
def answers():
    """What one child process says of the kernels that never get a verdict, by name."""
    kernels = with_kind("crashed", "unusable")
    tasks = [kernel.task(RAGGED[kernel.ladder][0], repeats=1) for kernel in kernels]
    results = isolate.run(tasks, True, PATIENCE)
    return {kernel.name: answer(result) for kernel, (_, result) in zip(kernels, results, strict=True)}


@each(with_kind("crashed", "unusable"))
def test_a_kernel_without_a_verdict_says_why(kernel, answers):
    kernel.simulator.require(answers[kernel.name])


@each(with_kind("timed_out"))
def test_an_endless_kernel_is_stopped_and_the_rest_goes_on(kernel):
    other = next(kernel for kernel in FILES if kernel.name == "gemm_no_launch")
    other, endless = (one.task(Gemm(M=1, N=1, K=1)) for one in (other, kernel))
    start = time.monotonic()
    ((_, first),) = isolate.run([other], True, PATIENCE)
    # long enough that it is not the start of a process that takes too long
    limit = 3 + 4 * (time.monotonic() - start)
    (_, stopped), (_, last) = isolate.run([endless, other], True, limit)
    kernel.simulator.require(answer(stopped))
    assert first["status"] == last["status"] == "unusable"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("gemm_square_only", Gemm(M=16, N=16, K=16)),
        ("gemm_multiples_of_16_only", Gemm(M=16, N=32, K=16)),
        ("gemm_whole_k_tiles_only", Gemm(M=5, N=7, K=32)),
    ],
)
def test_a_shape_that_suits_the_mistake_does_not_show_it(name, problem):
    # so it is the ragged shapes that find it
    assert findings(FOLDER / f"{name}.py", problem) == []


# --- class by class ---


def test_every_class_has_its_kernels():
    assert Counter(kernel.kind for kernel in CORPUS) == classes.SIZES


@pytest.mark.parametrize(
    "text",
    [
        "Is wrong.\n\nClass: shapes\n",
        "Is wrong.\n\nClass: shape\nRefute: {}\n",
        "is wrong\n\nClass: shapes\nRefute: {}\n",
        'Is wrong.\n\nClass: forms\nRefute: {"shape": "M=1 N=1 K=1"}\n',
    ],
)
def test_a_docstring_that_refutes_nothing_has_no_class(write, text):
    with pytest.raises(AssertionError, match=r"gemm_x\.py: "):
        classes.read(write("gemm_x.py", f"'''{text}'''\n"))


@pytest.fixture(scope="module")
def simulator():
    asked = refute.Simulator()
    yield asked
    asked.close()


PLAIN = [kernel for kernel in CORPUS if "lessons" not in kernel.path.read_text(encoding="utf-8")]


@by_name(some(PLAIN, 8))
def test_it_is_wrong_where_it_says_and_right_elsewhere(kernel, simulator):
    # Numba's simulator and the oracle alone judge: so a check that finds nothing has missed something
    said = kernel.refute
    if kernel.ordinary and kernel.kind not in ("sound", "gpu"):  # there the simulator says so before values are wrong
        kind = said.get("ordinary_inputs", "integers")
        launches = 1 if said.get("launches") == 2 else 2  # it is right once
        assert simulator.ask("is_right", kernel.path, kernel.ladder, kernel.ordinary, kind, launches)
    unseen = kernel.kind == "gpu" or "unsound" in said
    if not unseen and math.prod(kernel.shapes[0].output_shape) <= MOST:
        assert simulator.ask("is_wrong", kernel.path, kernel.ladder, said)


@pytest.mark.parametrize("kind", classes.CLASSES)
def test_a_check_finds_the_class(kind):
    kernels = [kernel for kernel in CORPUS if kernel.kind == kind and kernel.name not in SLOW]
    rest = [kernel for number, kernel in enumerate(kernels) if number % EVERY]
    drawn = random.Random(0 if os.environ.get("CI") else None).sample(rest, min(DRAWN, len(rest)))
    kernels = kernels[::EVERY] + drawn
    # of a kernel for the GPU, what compiling it says comes first
    found = classes.compiled_elsewhere(kernels)
    # what wrong values suggest is of the kernels above, and of tests/explain
    with warnings.catch_warnings(), mock.patch.object(diagnose, "explain", return_value=""):
        warnings.simplefilter("ignore")  # as in a process of its own, where they are only printed
        for kernel in kernels:
            if found.get(kernel.name, {"status": "right"})["status"] == "right":
                found[kernel.name] = classes.verdict(kernel, seed=0)
    print(classes.table(kernels, found))
    passing = {kernel.name for kernel in kernels if found[kernel.name]["status"] == "right"}
    assert passing == classes.PASSING & {kernel.name for kernel in kernels}


@pytest.mark.parametrize("name", ["gemm_shared_ticket_assumed_zero", "conv3d_dynamic_shared_index_assumed_zero"])
def test_a_loop_that_hangs_on_what_nobody_wrote_is_ended_and_told(name):
    ((kind, message),) = findings(FOLDER / f"{name}.py", RAGGED[name.split("_")[0]][0])
    assert kind == "crashed"
    assert re.search(r"\[\d+\], which nothing has written, is read, and a loop goes on", message)


# --- on a GPU ---


@pytest.fixture(scope="module")
def on_gpu():
    """What the GPU says of every kernel, by name: one child for each shape, as long as one is needed."""
    found = {kernel.name: [] for kernel in FILES}
    for number in range(max(map(len, RAGGED.values()))):
        for seconds, endless in ((PATIENCE, False), (GPU_LIMIT, True)):
            kernels = [
                kernel
                for kernel in FILES
                if (kernel.gpu.kind == "timed_out") == endless
                and number < len(RAGGED[kernel.ladder])
                and not kernel.gpu.met_by(found[kernel.name])
            ]
            tasks = [kernel.task(RAGGED[kernel.ladder][number]) for kernel in kernels]
            for kernel, (_, result) in zip(kernels, isolate.run(tasks, False, seconds), strict=True):
                found[kernel.name] += answer(result)
    return found


@pytest.mark.gpu
@pytest.mark.xdist_group("gpu")
@each(FILES)
def test_the_gpu_shows_the_mistake(kernel, on_gpu):
    kernel.gpu.require(on_gpu[kernel.name])
