"""The kernels of the oracle against NumPy: in the tracer, compiled, and on a GPU at sizes that pay."""

import json

import numpy as np
import pytest
import texts
from processes import python

from common.catalog import device, inputs, reference
from common.catalog.problems import RAGGED, Conv2d, Conv3d, Gemm, Hconv3d, Hgemm, on_ladder
from common.check import arrays, fullsize
from common.machine_code.capture import replaced
from common.run import child

LAYER = Conv3d(N=8, C=24, D=5, H=27, W=30, K=33, T=3, R=3, S=3, stride_h=2, pad_d=1, pad_h=1, pad_w=2, dilation_w=2)
LARGE = [
    Gemm(M=515, N=516, K=1027), Conv2d(N=8, C=19, H=70, W=66, K=33, R=5, S=4), LAYER, on_ladder("dgrad", LAYER),
    on_ladder("wgrad", LAYER), Hgemm(M=515, N=516, K=1027), Hconv3d(**vars(LAYER)),
]  # fmt: skip


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("problem", [problem for shapes in RAGGED.values() for problem in shapes[:2]], ids=str)
def test_the_kernels_agree_with_numpy_in_pieces_of_a_few_outputs(problem, monkeypatch):
    pieces = {"THREADS": 8, "_ROWS": 2, "OUTPUTS": max(8, np.prod(problem.output_shape) // 2 - 1)}
    for name, value in pieces.items():
        monkeypatch.setattr(fullsize, name, value)
    x, weight = inputs.integers(problem, 1)
    found, right = fullsize.at(problem, x, weight), reference.full(problem, x, weight).reshape(-1)
    np.testing.assert_array_equal(found, right)
    some = np.arange(found.size - 1, -1, -3)
    np.testing.assert_array_equal(fullsize.at(problem, x, weight, some), right[some])


def test_without_a_gpu_and_for_small_problems_the_host_computes(monkeypatch):
    problem = RAGGED["gemm"][0]
    x, weight = inputs.integers(problem, 0)
    at = []
    right = reference.full

    def noting(*given):
        at.append(child._open[-1])
        return right(*given)

    monkeypatch.setattr(device, "gpu_count", lambda: pytest.fail("a GPU is asked for"))
    with replaced(reference, full=noting):
        np.testing.assert_array_equal(arrays.full(problem, x, weight), right(problem, x, weight))
    assert at == ["oracle"]


@pytest.fixture(scope="module")
def differences():
    """For each large problem, in what the GPU and NumPy differ."""
    said = python("-c", texts.of("check")["on_gpu"], env=device.environment(False)).stdout
    return [json.loads(line) for line in said.splitlines()]


@pytest.mark.gpu
@pytest.mark.xdist_group("gpu")
@pytest.mark.parametrize("number", range(len(LARGE)), ids=[str(problem) for problem in LARGE])
def test_the_gpu_agrees_with_numpy(differences, number):
    assert LARGE[number].flops >= 2 * arrays.ON_GPU_FROM
    assert differences[number] == ""
