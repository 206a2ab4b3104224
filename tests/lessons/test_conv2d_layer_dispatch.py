"""conv2d_layer_dispatch: every candidate is right, the choice is reasoned and kept."""

import functools
import json
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest
from numba import cuda
from sampling import one_of_each

from common.catalog import catalog, problems, reference
from common.catalog.problems import Conv2d

pytestmark = pytest.mark.usefixtures("traced")
STEP = catalog.find("conv2d_layer_dispatch")
LAYER1, LAYER2 = (problems.PRESETS[name] for name in ("ece408-layer1", "ece408-layer2"))


@pytest.fixture
def dispatch():
    return catalog.load(STEP.path, STEP.ladder)


# --- the candidates ---

# one channel with even and odd maps; many channels with more filters than a tile; long rows of taps; no rows to pair
SMALL = [
    Conv2d(N=3, C=1, H=8, W=12, K=5, R=3, S=3), Conv2d(N=2, C=1, H=9, W=11, K=3, R=5, S=2),
    Conv2d(N=1, C=3, H=8, W=6, K=7, R=3, S=3), Conv2d(N=1, C=4, H=12, W=5, K=7, R=7, S=1),
    Conv2d(N=1, C=1, H=4, W=24, K=2, R=3, S=19),
]  # fmt: skip


def operands(problem, seed, integers):
    rng = np.random.default_rng(seed)
    shapes = problem.input_shape, problem.weight_shape
    if integers:
        return [rng.integers(-8, 9, shape).astype(np.float32) for shape in shapes]
    return [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]


def output(dispatch, candidate, problem, x, filt):
    y = cuda.to_device(np.full(problem.output_shape, np.nan, np.float32))
    dispatch.bind(candidate, cuda.to_device(filt), problem)(cuda.to_device(x), y)
    return y.copy_to_host()


@pytest.mark.filterwarnings("ignore:invalid value encountered in scalar:RuntimeWarning")
@pytest.mark.parametrize(
    "problem", one_of_each(SMALL, lambda _: "a layer"), ids=lambda problem: str(problem).replace(" ", "-")
)
def test_every_candidate_is_right_in_the_tracer(dispatch, problem):
    x, filt = operands(problem, 0, integers=True)
    normal_x, normal_filt = operands(problem, 1, integers=False)
    exact = reference.full(problem, x, filt)
    expected = reference.full(problem, normal_x, normal_filt)
    bound = reference.error_bound(problem, reference.full(problem, abs(normal_x), abs(normal_filt)))
    rounded = set()
    for candidate in dispatch.candidates(problem):
        assert np.array_equal(output(dispatch, candidate, problem, x, filt), exact), candidate
        if candidate.kernel in rounded:  # in what precision a kernel adds does not depend on its tile
            continue
        rounded.add(candidate.kernel)
        error = abs(output(dispatch, candidate, problem, normal_x, normal_filt) - expected)
        assert (error <= bound).all(), candidate


# --- the choice ---


@pytest.fixture
def on_gpu(dispatch, monkeypatch):
    """The dispatch as on a GPU, its measurement replaced: calls are counted, the last candidate is fastest."""
    calls = []

    def measure(near, problem, filt):
        calls.append(near)
        return {candidate: 1.0 / (i + 1) for i, candidate in enumerate(near)}

    monkeypatch.setattr(dispatch, "gpu_name", lambda: "NVIDIA Test 9")
    monkeypatch.setattr(dispatch, "measure", measure)
    return SimpleNamespace(calls=calls, filt=SimpleNamespace(__cuda_array_interface__={}))


def test_on_a_gpu_those_near_the_models_best_are_measured_once(dispatch, on_gpu):
    choice = dispatch.choose(LAYER2, on_gpu.filt)
    assert dispatch.choose(LAYER2, on_gpu.filt) is choice
    (near,) = on_gpu.calls
    best = min(e.ms for e in choice.estimates.values())
    assert set(near) == {c for c, e in choice.estimates.items() if e.ms <= dispatch.NEAR * best}
    assert choice.candidate == near[-1]  # the measurement decides, not the model
    assert "measured" in choice.why
    assert "NVIDIA Test 9" in choice.why


def test_a_recorded_layer_is_not_measured(dispatch, on_gpu, tmp_path, monkeypatch):
    slow, fast = list(dispatch.candidates(LAYER1))[:2]
    file = tmp_path / "choices.json"
    times = {str(slow): 2.0, str(fast): 1.0, "kernel_of_old TILE=3": 0.5}
    file.write_text(json.dumps({"NVIDIA Test 9": {str(LAYER1): times}}))
    monkeypatch.setattr(dispatch, "CHOICES", file)
    choice = dispatch.choose(LAYER1, on_gpu.filt)
    assert (choice.candidate, choice.why) == (fast, "recorded as fastest on NVIDIA Test 9")
    dispatch.choose(LAYER2, on_gpu.filt)  # not recorded
    assert len(on_gpu.calls) == 1


def test_the_shipped_records_are_of_candidates_there_are(dispatch):
    shapes = json.loads(dispatch.CHOICES.read_text(encoding="utf-8"))["NVIDIA H200"]
    assert set(shapes) == {str(LAYER1), str(LAYER2)}
    for problem in (LAYER1, LAYER2):
        assert set(shapes[str(problem)]) <= {str(candidate) for candidate in dispatch.candidates(problem)}


# --- the explanation ---


@pytest.fixture
def choose(call):
    own = {"choose": import_module("lessons.05_implicit_gemm.__main__").choose_parser}
    return functools.partial(call, "choose", lesson="05_implicit_gemm", own=own)


@pytest.mark.parametrize(("layer", "kernel"), [
    ("N=9 C=1 H=9 W=9 K=1 R=2 S=2", "one_channel_pairs"), ("ece408-layer2", "minimal_filtering"),
])  # fmt: skip
def test_the_command_line_explains(choose, layer, kernel):
    code, out, err = choose(layer, "--sim")
    assert code == 0, err
    assert f"kernel: {kernel}" in out
