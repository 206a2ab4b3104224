"""Shapes: what is refused and how, work and traffic against figures worked out by hand."""

import pytest

from common.catalog import problems
from common.catalog.problems import PRESETS, RAGGED, Conv3d, Dgrad, Wgrad

CONV3D = {"N": 1, "C": 1, "D": 4, "H": 5, "W": 6, "K": 1, "T": 2, "R": 3, "S": 2}
GEMM = {"M": 1, "N": 1, "K": 1}
SMALLEST = {"gemm": GEMM, "wgrad": CONV3D}


@pytest.mark.parametrize("value", [0, -1, 2.0, "2", True, None])
@pytest.mark.parametrize(("ladder", "key"), [("gemm", "M"), ("wgrad", "T")])
def test_an_extent_must_be_a_positive_integer(ladder, key, value):
    with pytest.raises(ValueError) as caught:
        problems.from_shape(ladder, {**SMALLEST[ladder], key: value})
    assert str(caught.value) == f"{key}={value!r}: must be a positive integer"


@pytest.mark.parametrize(("changes", "names"), [
    ({"T": 5}, ("T=5", "spans 5", "D = 4")),
    ({"R": 3, "dilation_h": 3}, ("R=3", "spans 7", "H = 5")),
    ({"S": 9, "pad_w": 1}, ("S=9", "spans 9", "W + 2*pad_w = 8")),
])  # fmt: skip
def test_conv3d_dilated_filter_must_fit_the_padded_input(changes, names):
    with pytest.raises(ValueError) as caught:
        Conv3d(**{**CONV3D, **changes})
    for name in names:
        assert name in str(caught.value)


@pytest.mark.parametrize(("text", "message"), [
    ("M=1 N=1", "'K' is missing"), ("M=1 N=1 K=1 M=1", "'M' is given twice"),
    ("M=1 N=1 K", "'K' in the shape: must be KEY=INTEGER"), ("M=1 N=1 K=1.5", "K='1.5': must be a positive integer"),
    ("M=1,N=1,K=1", "'N' is missing: gemm needs M N K"),
    ("m=1 N=1 K=1", "'m' is unknown for gemm: allowed are M N K"),
])  # fmt: skip
def test_shape_text_that_cannot_be_used(text, message):
    with pytest.raises(ValueError) as caught:
        problems.parse_shape("gemm", text)
    assert message in str(caught.value)


@pytest.mark.parametrize("problem", [*PRESETS.values(), *(p for shapes in RAGGED.values() for p in shapes)], ids=str)
def test_text_and_mapping_give_the_same_problem_back(problem):
    assert problems.parse_shape(problem.ladder, str(problem)) == problem
    assert problems.from_shape(problem.ladder, problem.shape()) == problem


# 2 * 4096**3; three matrices of 4096 * 4096 * 4 bytes
# layer 1: y is 10000 x 12 x 66 x 66 = 522 720 000, each the sum of 25 products; x 49 000 000; filter 300
# layer 2: y is 10000 x 24 x 29 x 29 = 201 840 000, each the sum of 300; x 130 680 000; filter 7200
# c3d: y is 16 x 8 x 28 x 28 x 256 = 25 690 112, each the sum of 27 * 128 = 3456
# resnet50: y is 64 x 28 x 28 x 128 = 6 422 528, each the sum of 9 * 128 = 1152
@pytest.mark.parametrize(
    ("name", "flops", "least_bytes"),
    [
        ("gemm-4096", 137_438_953_472, 201_326_592),
        ("ece408-layer1", 26_136_000_000, 4 * (49_000_000 + 300 + 522_720_000)),
        ("ece408-layer2", 121_104_000_000, 4 * (130_680_000 + 7_200 + 201_840_000)),
        ("c3d-conv3a", 177_570_054_144, 4 * (12_845_056 + 884_736 + 25_690_112)),
        ("resnet50-conv3", 14_797_504_512, 4 * (6_422_528 + 147_456 + 6_422_528)),
        ("hgemm-4096", 137_438_953_472, 100_663_296),
        # 256 x 7 x 7 x 512, each the sum of 9 * 512
        ("hresnet50-conv5-n256", 59_190_018_048, 2 * (6_422_528 + 2_359_296 + 6_422_528)),
        # gradients: the forward convolution's work, and its arrays
        ("dgrad-c3d-conv3a", 177_570_054_144, 4 * (12_845_056 + 884_736 + 25_690_112)),
        # 64 x 28 x 28 x 128, each the sum of 9 * 128; x has 64 x 56 x 56 x 128
        ("wgrad-resnet50-strided", 14_797_504_512, 4 * (25_690_112 + 147_456 + 6_422_528)),
    ],
)
def test_work_and_least_traffic(name, flops, least_bytes):
    problem = PRESETS[name]
    assert problem.flops == flops
    assert problem.least_bytes == least_bytes


def test_gradients_have_the_arrays_of_their_convolution():
    options = {"stride_h": 2, "pad_w": 1, "dilation_d": 2}
    forward, dgrad, wgrad = (kind(**CONV3D, **options) for kind in (Conv3d, Dgrad, Wgrad))
    x, filt, y = (1, 4, 5, 6, 1), (1, 2, 3, 2, 1), (1, 2, 2, 7, 1)
    assert (forward.input_shape, forward.weight_shape, forward.output_shape) == (x, filt, y)
    assert (dgrad.input_shape, dgrad.weight_shape, dgrad.output_shape) == (y, filt, x)
    assert (wgrad.input_shape, wgrad.weight_shape, wgrad.output_shape) == (x, y, filt)
    assert forward.geometry == dgrad.geometry == wgrad.geometry
