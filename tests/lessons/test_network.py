"""The network of lesson 08: its kernels against the oracle, the oracle against finite differences and PyTorch."""

import json
import os
import subprocess
import sys
from importlib import import_module, util

import numpy as np
import pytest

from common.microscope import simulator

NETWORK = "lessons.08_training.network"
shape_of, oracle, batch_of = (import_module(f"{NETWORK}.{name}") for name in ("shape", "oracle", "batch"))
SMALL = shape_of.SMALL
# a thread of the second layer has one filter, as on 28 x 28; features are fewer than a warp
WIDE_POOL = shape_of.Shape(SIZE=8, CHANNELS=(4, 6), TAPS=3, PADS=(1, 1), POOLS=(2, 4), HIDDEN=5, CLASSES=3)


@pytest.fixture(autouse=True)
def fast_simulator():
    simulator.install()


def network(kind, shape, batch, seed=3, **options):
    """A network of that module with random biases, too, and a random batch in it: all parameters matter."""
    parameters = import_module(f"{NETWORK}.parameters").Parameters(shape, seed)
    random = np.random.default_rng(seed)
    values = parameters.values.copy_to_host() + 0.1 * random.standard_normal(parameters.values.size)
    parameters.restore(values, np.zeros_like(values))
    made = getattr(import_module(f"{NETWORK}.{kind}"), kind.title())(parameters, batch, **options)
    x = random.random((batch, shape.SIZE, shape.SIZE), np.float32)
    classes = random.integers(0, shape.CLASSES, batch).astype(np.int32)
    made.x.copy_to_device(x.reshape(-1))
    made.classes.copy_to_device(classes)
    return made, x, classes


@pytest.mark.parametrize(("kind", "shape", "batch"), [
    ("fused", SMALL, 3), ("fused", WIDE_POOL, 2), ("layered", SMALL, 3), ("layered", WIDE_POOL, 1),
])  # fmt: skip
def test_losses_answers_and_gradients_are_the_oracles(kind, shape, batch):
    made, x, classes = network(kind, shape, batch)
    weights = made.parameters.on_host()
    made.step()
    wanted, losses = oracle.gradients(shape, weights, x, classes)
    np.testing.assert_allclose(made.losses.copy_to_host(), losses, rtol=1e-5)
    logits = oracle.losses(shape, weights, x, classes)[1][-2]
    assert made.said.copy_to_host().tolist() == logits.argmax(axis=1).tolist()
    for name, gradient in made.parameters.on_host("gradients").items():
        largest = np.abs(wanted[name]).max()
        assert largest > 0, name
        np.testing.assert_allclose(gradient, wanted[name], atol=3e-6 * largest, rtol=0, err_msg=name)


def test_the_oracle_agrees_with_finite_differences():
    made, x, classes = network("fused", SMALL, 4)
    weights = {name: value.astype(np.float64) for name, value in made.parameters.on_host().items()}
    wanted, _ = oracle.gradients(SMALL, weights, x, classes)
    random, step = np.random.default_rng(0), 1e-6
    for name, value in weights.items():
        for at in random.choice(value.size, min(value.size, 12), replace=False):
            sides = []
            for sign in (1, -1):
                moved = value.copy()
                moved.flat[at] += sign * step
                sides.append(oracle.losses(SMALL, {**weights, name: moved}, x, classes)[0].mean())
            assert (sides[0] - sides[1]) / (2 * step) == pytest.approx(wanted[name].flat[at], abs=1e-7), (name, at)


@pytest.mark.skipif(util.find_spec("torch") is None, reason="needs PyTorch")
def test_the_oracle_agrees_with_pytorch():
    torch_side = import_module(f"{NETWORK}.torch_side")
    made, x, classes = network("fused", WIDE_POOL, 5)
    weights = made.parameters.on_host()
    peer = torch_side.Peer(WIDE_POOL, weights, 5, rate=0.0)
    peer.put(x, classes)
    with torch_side.strict():
        peer.step()
    wanted, losses = oracle.gradients(WIDE_POOL, weights, x, classes)
    assert float(peer.loss) == pytest.approx(losses.mean(), rel=1e-5)
    for name, gradient in peer.gradients().items():
        np.testing.assert_allclose(gradient, wanted[name], atol=3e-6 * np.abs(wanted[name]).max(), err_msg=name)


@pytest.mark.parametrize("kind", ["fused", "layered"])
def test_a_step_is_the_same_to_the_bit_each_time(kind):
    """The simulator runs threads and blocks in another order each time."""

    def after():
        made, _, _ = network(kind, SMALL, 2)
        made.rate.copy_to_device(np.full(1, 0.1, np.float32))
        made.step()
        made.counter.copy_to_device(np.zeros(1, np.int64))
        made.step()
        return made.parameters.values.copy_to_host().tobytes()

    assert after() == after()


def test_momentum_and_decay_are_as_in_pytorch():
    made, _, _ = network("fused", SMALL, 2, momentum=0.5, decay=0.25)
    rate = np.float32(0.125)
    made.rate.copy_to_device(np.full(1, rate))
    values, velocities = made.parameters.values.copy_to_host(), 0.0
    for number in range(2):
        made.counter.copy_to_device(np.zeros(1, np.int64))
        made.step()
        velocities = 0.5 * velocities + made.parameters.gradients.copy_to_host() + 0.25 * values
        values = values - rate * velocities
        np.testing.assert_allclose(made.parameters.values.copy_to_host(), values, atol=1e-6, err_msg=str(number))
    assert made.counter.copy_to_host().tolist() == [1]


@pytest.mark.parametrize("kind", ["fused", "layered"])
def test_a_nan_reaches_the_loss(kind):
    """ReLU and pools that compare must not drop it."""
    made, _, _ = network(kind, SMALL, 2)
    values = made.parameters.values.copy_to_host()
    values[made.shape.offsets["bias1"]] = np.nan
    made.parameters.restore(values, np.zeros_like(values))
    made.forward()
    assert np.isnan(made.losses.copy_to_host()).all()


def test_of_equal_values_a_pool_takes_the_first_and_none_where_all_are_zero():
    from numba import cuda

    pool = import_module(f"{NETWORK}.pool")
    y = np.zeros((1, 4, 4, 2), np.float32)
    y[0, :2, 2:, 0] = [[3, 5], [5, 1]]
    on_device, pooled, places = (
        cuda.to_device(a) for a in (y, y[:, :2, :2].copy(), np.zeros((1, 2, 2, 2), np.uint8))
    )
    pool.launch(on_device, 2, pooled, places)
    assert pooled.copy_to_host()[0, :, :, 0].tolist() == [[0, 5], [0, 0]]
    assert places.copy_to_host()[0, :, :, 0].tolist() == [[pool.NONE, 1], [pool.NONE, pool.NONE]]
    back = cuda.to_device(np.full_like(y, np.nan))
    pool.launch_backward(cuda.to_device(np.full((1, 2, 2, 2), 7, np.float32)), places, 2, back)
    wanted = np.zeros_like(y)
    wanted[0, 0, 3, 0] = 7
    np.testing.assert_array_equal(back.copy_to_host(), wanted)


# row by row, the values of a window, what is left of it and where: max_pool of PyTorch takes the last NaN
WITH_NANS = [
    ([np.nan, 1, 2, 3], np.nan, 0), ([1, np.nan, 2, 3], np.nan, 1), ([5, 1, 2, np.nan], np.nan, 3),
    ([-1, -2, np.nan, -3], np.nan, 2), ([np.nan, 7, np.nan, 1], np.nan, 2), ([1, 4, 2, 3], 4, 1),
]  # fmt: skip


@pytest.mark.parametrize(("window", "largest", "place"), WITH_NANS)
def test_a_nan_anywhere_in_its_window_is_what_a_pool_takes_and_gets_the_gradient(window, largest, place):
    from numba import cuda

    pool = import_module(f"{NETWORK}.pool")
    y = cuda.to_device(np.array(window, np.float32).reshape(1, 2, 2, 1))
    pooled, d_pooled = (cuda.to_device(np.full((1, 1, 1, 1), value, np.float32)) for value in (0, 7))
    places, back = cuda.to_device(np.zeros((1, 1, 1, 1), np.uint8)), cuda.to_device(np.full((1, 2, 2, 1), -1.0, "f4"))
    pool.launch(y, 2, pooled, places)
    np.testing.assert_array_equal(pooled.copy_to_host().item(), largest)
    pool.launch_backward(d_pooled, places, 2, back)
    assert back.copy_to_host().ravel().tolist() == [7 * (at == place) for at in range(4)]


@pytest.mark.parametrize(("window", "largest", "place"), WITH_NANS)
def test_a_nan_anywhere_in_its_window_leaves_the_fused_layer_and_gets_the_gradient(window, largest, place):
    """One tap makes a window's sums the image's values; its gradients then name the pixel they came from."""
    from numba import cuda

    names = ("conv_pool", "conv_pool_backward")
    forward, backward = (import_module(f"{NETWORK}.{name}") for name in names)
    layer = shape_of.Layer(H=2, C=4, K=4, TAPS=1, PAD=0, POOL=2)
    x, filt = np.zeros((4, 4), np.float32), np.eye(4, dtype=np.float32)  # pixels x channels, filters x channels
    x[:, 1] = window
    filt[[0, 2, 3]] = 0
    # 0 * NaN is one, too: all filters have it where it stands
    wanted = np.full(4, largest) if np.isnan(window).any() else np.array([0, largest, 0, 0])
    y, dy, dx = (cuda.to_device(np.full(size, value, np.float32)) for size, value in ((4, 0), (4, 7), (16, -1)))
    places = cuda.to_device(np.zeros(4, np.uint8))
    bias = cuda.to_device(np.zeros(4, np.float32))
    on_device = cuda.to_device(filt.ravel())
    forward.launch(layer, cuda.to_device(x.ravel()), on_device, bias, y, places)
    np.testing.assert_array_equal(y.copy_to_host(), wanted)
    assert places.copy_to_host()[1] == place
    backward.launch_input(layer, dy, places, on_device, dx)
    assert dx.copy_to_host().reshape(4, 4)[:, 1].tolist() == [7 * (at == place) for at in range(4)]


def next_batch(images, labels, order, changes, step, count):
    from numba import cuda

    steps = len(order) // count
    x, classes = (
        cuda.to_device(np.zeros(count * images[0].size, np.float32)),
        cuda.to_device(np.zeros(count, np.int32)),
    )
    rate, rates = cuda.to_device(np.zeros(1, np.float32)), np.arange(steps, dtype=np.float32)
    counter = cuda.to_device(np.full(1, step, np.int64))
    given = (images, labels, order.astype(np.int32), changes.reshape(-1), rates)
    batch_of.launch(*(cuda.to_device(array) for array in given), counter, x, classes, rate)
    assert rate.copy_to_host().tolist() == [step]
    return x.copy_to_host().reshape(count, *images.shape[1:]), classes.copy_to_host()


def test_a_batch_is_the_digits_that_the_order_names_changed_as_they_should_be():
    random = np.random.default_rng(2)
    images, labels = random.integers(0, 256, (7, 6, 6)).astype(np.uint8), np.arange(7, dtype=np.int32)
    order = np.array([3, 1, 4, 6, 5, 2])
    x, classes = next_batch(images, labels, order, batch_of.unchanged(6), 1, 3)
    assert classes.tolist() == [6, 5, 2]
    np.testing.assert_allclose(x, images[[6, 5, 2]] / 255, atol=1e-6)
    moved, turned = batch_of.unchanged(2)
    moved[4:], turned[:4] = [1, -2], [0, 1, -1, 0]  # from a row below and two columns to the left; a quarter turn
    x, _ = next_batch(images, labels, np.array([0, 1]), np.stack([moved, turned]), 0, 2)
    wanted = np.zeros((6, 6))
    wanted[:5, 2:] = images[0, 1:, :4] / 255
    np.testing.assert_allclose(x[0], wanted, atol=1e-6)
    np.testing.assert_allclose(x[1], np.rot90(images[1]) / 255, atol=1e-6)


def test_changes_that_are_drawn_stay_within_their_bounds():
    drawn = batch_of.drawn(np.random.default_rng(0), 500, turn=10, stretch=0.1, slant=0.0, way=2)
    assert np.abs(drawn[:, 4:]).max() <= 2
    lengths = np.hypot(drawn[:, 0], drawn[:, 2])
    assert lengths.min() >= 0.9 - 1e-6
    assert lengths.max() <= 1.1 + 1e-6
    assert np.abs(np.rad2deg(np.arctan2(drawn[:, 2], drawn[:, 0]))).max() <= 10 + 1e-4


@pytest.mark.parametrize(("fields", "said"), [
    ({"SIZE": 30}, "OUT=17 must be a multiple of POOL=4"), ({"PADS": (3, 3)}, "OUT=14 must be"),
])  # fmt: skip
def test_a_shape_whose_windows_leave_pixels_out_is_refused(fields, said):
    with pytest.raises(ValueError, match=said):
        _ = shape_of.Shape(**fields).second


@pytest.mark.gpu
def test_on_a_gpu_gradients_are_the_oracles_and_bits_the_same_with_and_without_a_graph(root):
    """A graph, each kernel by itself, and a run that was interrupted: all end with the same bits."""
    env = {name: value for name, value in os.environ.items() if name != "NUMBA_ENABLE_CUDASIM"}
    script = root / "tests" / "lessons" / "network_on_gpu.py"
    words, paths = [sys.executable, str(script)], os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        words, cwd=root, env={**env, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for kind in ("fused", "layered"):
        assert max(found[kind]["errors"].values()) < 1e-5, kind
        assert len(set(found["bits"][kind])) == 1, kind
    assert found["fused"]["kernels"] == 8
