"""Two convolutions in one kernel, against NumPy in float64 with the first one's results rounded to float16."""

import importlib
import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest
from numba import cuda
from sampling import one_of_each, some, some_days

from common.catalog import catalog, reference
from common.catalog.problems import Conv3d, on_ladder
from common.machine_code import capture, codegen
from common.trace.trace import Tracer

conv_pair = importlib.import_module("lessons.08_training.helpers.conv_pair")
epilogues, planning, step = conv_pair.epilogues, conv_pair.planning, conv_pair.step
SOURCE = (catalog.LESSONS / "08_training/helpers/conv_pair.py").read_text(encoding="utf-8")

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")

# Nothing divides; several tiles of rows, and more blocks of the second filter than are held; tiles of 128 and 256
# columns that K does not fill; one of all
RAGGED = Conv3d(N=2, C=3, D=3, H=5, W=6, K=5, T=2, R=3, S=3, pad_h=1, stride_w=2, dilation_d=2), 7
TALL = Conv3d(N=1, C=24, D=1, H=18, W=15, K=64, T=1, R=3, S=3, pad_h=1, pad_w=1), 328
ACROSS = Conv3d(N=1, C=16, D=1, H=6, W=5, K=72, T=1, R=3, S=3), 300
WIDEST = Conv3d(N=1, C=16, D=1, H=4, W=5, K=130, T=1, R=3, S=1), 530
ONE = Conv3d(N=1, C=1, D=1, H=1, W=1, K=1, T=1, R=1, S=1), 1
CASES = [RAGGED, TALL, ACROSS, WIDEST, ONE]
MANY = Conv3d(N=5, C=64, D=1, H=56, W=56, K=64, T=1, R=3, S=3, pad_h=1, pad_w=1), 256
ON_GPU = [*some(CASES, len(CASES), 1), MANY]


class Pair:
    """Integers, and a second filter of integers over 64: all sums are exact in float32."""

    def __init__(self, shape, filters, seed=1):
        self.problem = on_ladder("hconv3d", shape)
        rng = np.random.default_rng(seed)
        self.x, self.filt = (rng.integers(-20, 21, s).astype(kind) for s, kind in self.problem.operands[:2])
        self.second = (rng.integers(-3, 4, (filters, 1, 1, 1, shape.K)) / 64).astype(np.float16)
        self.bias = rng.integers(-300, 300, shape.K).astype(np.float32)

    def expected(self, between=lambda sums: sums):
        sums = between(reference.full(self.problem, self.x, self.filt))
        N, D, H, W, C = sums.shape
        after = Conv3d(N=N, C=C, D=D, H=H, W=W, K=len(self.second), T=1, R=1, S=1)
        return reference.full(on_ladder("hconv3d", after), sums.astype(np.float16), self.second).astype(np.float16)

    def run(self, finish=None, module=conv_pair):
        """What the kernel gives."""
        x, filt, second, bias = map(cuda.to_device, (self.x, self.filt, self.second, self.bias))
        y = cuda.to_device(np.full((*self.problem.output_shape[:4], len(self.second)), np.nan, np.float16))
        after = finish(bias) if finish else None
        module.launch(x, step.prepare(filt, self.problem), second, y, self.problem.geometry, after)
        return y.copy_to_host()

    def found(self, *what):
        """What the kernel gives in the tracer, and the kinds of faults that this saw."""
        with Tracer() as tracer:
            return self.run(*what), {fault.kind for fault in tracer.faults()}


def relu(_):
    return conv_pair.relu()


def require_right(pair):
    got, faults = pair.found(relu)
    np.testing.assert_array_equal(got, pair.expected(lambda sums: np.maximum(sums, 0)))
    assert faults == set()


@pytest.mark.parametrize(("shape", "filters"), some(CASES, 4, 1), ids=lambda value: getattr(value, "K", value))
def test_both_convolutions_are_right_to_the_last_bit(shape, filters):
    require_right(Pair(shape, filters))


def test_what_lies_between_is_rounded_and_any_epilogue_may_change_it_before():
    pair = Pair(*ACROSS)
    sums = reference.full(pair.problem, pair.x, pair.filt)
    assert (sums != sums.astype(np.float16)).mean() > 0.05  # so that a kernel that does not round is wrong
    np.testing.assert_array_equal(pair.found()[0], pair.expected())
    after = pair.expected(lambda sums: np.maximum(sums + pair.bias, 0))
    np.testing.assert_array_equal(pair.found(epilogues.bias_relu)[0], after)


def test_a_filter_that_overflows_spoils_only_what_it_belongs_to():
    pair = Pair(*RAGGED)
    pair.filt[-1], pair.second[..., -1] = 6e4, 1  # the columns beyond K repeat the last filter
    got, want = pair.found()[0], pair.expected()
    assert np.isinf(want).any()
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(("tiles", "case"), one_of_each([("NARROW", TALL), ("MIDDLE", ACROSS)], lambda _: "a tile"))
def test_the_smaller_tiles_of_other_cards(tiles, case, monkeypatch):
    smallest = getattr(planning, tiles)[-1]
    monkeypatch.setattr(planning, "plan", lambda K, WORDS: smallest)
    require_right(Pair(*case))


def test_what_does_not_fit_is_refused_by_name():
    pair = Pair(Conv3d(N=1, C=1, D=1, H=1, W=1, K=257, T=1, R=1, S=1), 8)
    with pytest.raises(ValueError, match="filt has K=257 filters; allowed: at most 256"):
        pair.found()
    pair = Pair(*RAGGED)
    pair.second = np.zeros((7, 1, 3, 3, 5), np.float16)
    with pytest.raises(ValueError, match=r"second is \(7, 1, 3, 3, 5\) .* allowed: \(7, 1, 1, 1, 5\) of float16"):
        pair.found()


WRONG = {
    "a block of the second filter is read before all threads' copies have come": (
        "wait_group(PENDING)\n                cuda.syncthreads()", "wait_group(PENDING)"
    ),
    "it is read before its own copies have come": ("wait_group(PENDING)\n", "wait_group(PENDING + 1)\n"),
    "the next block goes where this one is read": ("copy_block(tiles, write,", "copy_block(tiles, read,"),
    "sums of one block of columns stay for the next": ("acc[i] = float32(0.0)", "pass"),
    "the last panel is left out": ("for panel in range(PANELS)", "for panel in range(max(1, PANELS - 1))"),
    "results leave before the warp has written them": (
        "acc, i * ACC_ROW)\n                cuda.syncwarp()", "acc, i * ACC_ROW)"
    ),
    "columns of the tile between lie one block further": ("panel + place(top", "panel + place(uint32(1) ^ top"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", one_of_each(list(WRONG), lambda _: "a mistake"))
def test_a_wrong_kernel_is_found(mistake, write):
    old, new = WRONG[mistake]
    assert SOURCE.count(old) == 1
    path = write("wrong_pair.py", SOURCE.replace(old, new))
    spec = importlib.util.spec_from_file_location("wrong_pair", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    pair = Pair(*ACROSS)
    got, faults = pair.found(relu, module)
    assert faults or (got != pair.expected(lambda sums: np.maximum(sums, 0))).any()


@some_days(1)
def test_sums_stay_in_registers_and_it_takes_no_more_than_the_first_convolution_alone():
    problem = on_ladder("hconv3d", Conv3d(N=1, C=64, D=1, H=56, W=56, K=64, T=1, R=3, S=3, pad_h=1, pad_w=1))
    shapes = *(shape for shape, _ in problem.operands), (256, 1, 1, 1, 64), (*problem.output_shape[:4], 256)
    x, filt, between, second, y = (np.empty(shape, np.float16).view(capture.HostArray) for shape in shapes)
    with codegen.recorded() as seen:
        prepared = step.prepare(filt, problem)
        step.launch(x, prepared, between, problem.geometry)
        conv_pair.launch(x, prepared, second, y, problem.geometry, conv_pair.relu())
    alone, both = seen
    assert (both.grid, both.block) == (alone.grid, alone.block)
    assert both.dynamic_shared_bytes == alone.dynamic_shared_bytes
    for architecture, text in codegen.ptx(both, one_of_each(["8.0", "9.0"], lambda _: "an architecture")).items():
        code, _ = codegen.machine_code(both, architecture, text)
        assert codegen.float64_arithmetic(text) == []
        assert (code.stack_bytes, code.spill_bytes) == (0, 0)
        assert code.registers * both.threads * 2 <= 65536  # two blocks on a multiprocessor


# --- on a GPU ---


@pytest.mark.gpu
@pytest.mark.xdist_group("gpu")
def test_on_a_gpu_it_is_right():
    words = [sys.executable, "-m", "tests.lessons.test_conv_pair"]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(catalog.ROOT / "tests"), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(words, capture_output=True, text=True, cwd=catalog.ROOT, timeout=600, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{case}: 0 wrong" for case in ON_GPU]


def wrong_on_a_gpu():
    capture.opt_in()
    for case in ON_GPU:
        pair = Pair(*case)
        wrong = pair.run(relu) != pair.expected(lambda sums: np.maximum(sums, 0))
        print(f"{case}: {wrong.sum()} wrong", flush=True)


if __name__ == "__main__":
    wrong_on_a_gpu()
