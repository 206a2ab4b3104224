"""The network of lesson 08: its kernels against the oracle, the oracle against finite differences and PyTorch."""

import json
import os
from importlib import import_module, util

import numpy as np
import pytest
import texts
from processes import python
from sampling import covering, some, some_days

from tests.lessons import network_oracle as oracle

NETWORK = "lessons.08_training.network"
shape_of, batch_of = (import_module(f"{NETWORK}.{name}") for name in ("shape", "batch"))
SMALL = shape_of.SMALL
# a thread of the second layer has one filter, as on 28 x 28; features are fewer than a warp
WIDE_POOL = shape_of.Shape(
    shape_of.Layer(H=8, C=1, K=4, TAPS=3, PAD=1, POOL=2), shape_of.Layer(H=4, C=4, K=6, TAPS=3, PAD=1, POOL=4),
    HIDDEN=5, CLASSES=3,
)  # fmt: skip


pytestmark = pytest.mark.usefixtures("traced")


def network(kind, shape, batch, seed=3, **options):
    """A network of that module with random biases, too, and a random batch in it: all parameters matter."""
    parameters = import_module(f"{NETWORK}.parameters").Parameters(shape, seed)
    random = np.random.default_rng(seed)
    values = parameters.values.copy_to_host() + 0.1 * random.standard_normal(parameters.values.size)
    parameters.restore(values, np.zeros_like(values))
    made = getattr(import_module(f"{NETWORK}.{kind}"), kind.title())(parameters, batch, **options)
    x = random.random((batch, shape.first.H, shape.first.H), np.float32)
    classes = random.integers(0, shape.CLASSES, batch).astype(np.int32)
    made.x.copy_to_device(x.reshape(-1))
    made.classes.copy_to_device(classes)
    return made, x, classes


@pytest.mark.parametrize(("kind", "shape", "batch"), covering([
    ("fused", SMALL, 3), ("fused", WIDE_POOL, 11), ("layered", SMALL, 3), ("layered", WIDE_POOL, 1),
], lambda case: case[0], lambda case: case[1] is SMALL))  # fmt: skip
def test_losses_answers_and_gradients_are_the_oracles(kind, shape, batch, monkeypatch):
    """Of 11 digits a block has two, one after the other, and a thread adds up two of ten parts."""
    monkeypatch.setattr(import_module(f"{NETWORK}.fused"), "PARTS", 10)
    made, x, classes = network(kind, shape, batch)
    weights = made.parameters.on_host()
    made.step()
    losses, logits, wanted = oracle.run(shape, weights, x, classes)
    np.testing.assert_allclose(made.losses.copy_to_host(), losses, rtol=1e-5, atol=2e-7)
    assert made.said.copy_to_host().tolist() == logits.argmax(axis=1).tolist()
    for name, gradient in made.parameters.on_host("gradients").items():
        largest = np.abs(wanted[name]).max()
        assert largest > 0, name
        np.testing.assert_allclose(gradient, wanted[name], atol=3e-6 * largest, rtol=0, err_msg=name)


def test_the_oracle_agrees_with_finite_differences():
    made, x, classes = network("fused", SMALL, 4)
    weights = {name: value.astype(np.float64) for name, value in made.parameters.on_host().items()}
    _, _, wanted = oracle.run(SMALL, weights, x, classes)
    random, step = np.random.default_rng(0), 1e-6
    for name, value in weights.items():
        for at in random.choice(value.size, min(value.size, 12), replace=False):
            sides = []
            for sign in (1, -1):
                moved = value.copy()
                moved.flat[at] += sign * step
                sides.append(oracle.run(SMALL, {**weights, name: moved}, x, classes)[0].mean())
            assert (sides[0] - sides[1]) / (2 * step) == pytest.approx(wanted[name].flat[at], abs=1e-7), (name, at)


@pytest.mark.skipif(util.find_spec("torch") is None, reason="needs PyTorch")
def test_the_oracle_agrees_with_pytorch():
    torch_side, training = (import_module(f"{NETWORK}.{name}") for name in ("torch_side", "training"))
    made, x, classes = network("fused", WIDE_POOL, 5)
    weights = made.parameters.on_host()
    peer = torch_side.Peer(WIDE_POOL, weights, training.Plan(), 5)
    peer.put(x, classes)
    torch_side.strict()
    peer.step()
    losses, _, wanted = oracle.run(WIDE_POOL, made.parameters.on_host(), x, classes)
    assert float(peer.loss) == pytest.approx(losses.mean(), rel=1e-5)
    for name, gradient in peer.gradients().items():
        np.testing.assert_allclose(gradient, wanted[name], atol=3e-6 * np.abs(wanted[name]).max(), err_msg=name)


@pytest.mark.parametrize("kind", ["fused", "layered"])
def test_a_nan_reaches_the_loss(kind):
    """ReLU and pools that compare must not drop it."""
    made, _, _ = network(kind, SMALL, 2)
    values = made.parameters.values.copy_to_host()
    values[made.shape.offsets["bias1"]] = np.nan
    made.parameters.restore(values, np.zeros_like(values))
    made.forward()
    assert np.isnan(made.losses.copy_to_host()).all()


# threads have one filter each, or, of more than 1,024 taps, all of them
@pytest.mark.parametrize("layer", [
    shape_of.Layer(H=6, C=4, K=8, TAPS=3, PAD=1, POOL=3), shape_of.Layer(H=4, C=4, K=12, TAPS=5, PAD=2, POOL=2),
], ids=["few taps", "many"])  # fmt: skip
def test_a_fused_layer_and_its_gradients_are_the_oracles_to_the_bit(layer):
    """Of small integers, whose sums are exact: values are often equal, and often nothing is left after ReLU. Five
    images are summed in two parts."""
    from numba import cuda

    conv_pool = import_module(f"{NETWORK}.conv_pool")
    random, (H, C, K, TAPS) = np.random.default_rng(2), (layer.H, layer.C, layer.K, layer.TAPS)
    x, filt = random.integers(-1, 3, (5, 1, H, H, C)) * 1.0, random.integers(-1, 2, (K, 1, TAPS, TAPS, C)) * 1.0
    bias, dy = -4 - np.arange(K), random.integers(-3, 4, (5, 1, layer.WINDOWS, layer.WINDOWS, K))
    z = oracle.convolve(layer, x, filt) + bias
    wanted, places = oracle.pool(np.maximum(z, 0), layer.POOL)
    d_z = oracle.pool_back(dy, places, layer.POOL) * (z > 0)
    d_x, d_filt = oracle.convolve_back(layer, x, filt, d_z)

    x, filt, bias, dy, d_x_found, y = (
        cuda.to_device(a.astype(np.float32).ravel()) for a in (x, filt, bias, dy, x * np.nan, dy)
    )
    found = cuda.to_device(np.zeros(dy.size, np.uint8))
    conv_pool.launch(layer, x, filt, bias, y, found)
    np.testing.assert_array_equal(y.copy_to_host(), wanted.ravel())
    np.testing.assert_array_equal(found.copy_to_host(), np.where(wanted.ravel() > 0, places.ravel(), 255))
    partials = cuda.to_device(np.full((2, filt.size + K + 3), np.nan, np.float32))
    conv_pool.launch_filter(layer, x, dy, found, partials, 3, 3 + filt.size)
    sums = partials.copy_to_host().sum(axis=0)[3:]
    np.testing.assert_array_equal(sums, [*d_filt.ravel(), *d_z.sum(axis=(0, 1, 2, 3))])
    conv_pool.launch_input(layer, dy, found, filt, d_x_found)
    np.testing.assert_array_equal(d_x_found.copy_to_host(), d_x.ravel())


@pytest.mark.parametrize("kind", ["fused", "layered"])
def test_large_logits_leave_losses_and_gradients_finite_and_each_step_has_its_row(kind):
    made, _, classes = network(kind, WIDE_POOL, 2, steps=3)
    values, at = made.parameters.values.copy_to_host(), made.shape.offsets["bias4"]
    values[at : at + 3] = np.roll([900, 800, 300], classes[0] + 1)  # the first digit's class: the least likely
    made.parameters.restore(values, np.zeros_like(values))
    made.counter.copy_to_device(np.full(1, 1, np.int64))
    made.forward()
    weights = made.parameters.on_host()
    wanted, logits, _ = oracle.run(WIDE_POOL, weights, made.x.copy_to_host().reshape(2, 8, 8), classes)
    assert wanted[0] > 500
    found = made.losses.copy_to_host().reshape(3, 2)
    np.testing.assert_allclose(found, [[0, 0], wanted, [0, 0]], rtol=1e-5, atol=1e-6)
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    slopes = (powers / powers.sum(axis=1, keepdims=True) - np.eye(3)[classes]) / 2
    np.testing.assert_allclose(made.d_logits.copy_to_host().reshape(2, 3), slopes, atol=1e-6)


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
    x, classes = next_batch(images, labels, order, batch_of.drawn(random, 6), 1, 3)
    assert classes.tolist() == [6, 5, 2]
    np.testing.assert_allclose(x, images[[6, 5, 2]] / 255, atol=1e-6)
    moved, turned = batch_of.drawn(random, 2)
    moved[4:], turned[:4] = [1, -2], [0, 1, -1, 0]  # from a row below and two columns to the left; a quarter turn
    x, _ = next_batch(images, labels, np.array([0, 1]), np.stack([moved, turned]), 0, 2)
    wanted = np.zeros((6, 6))
    wanted[:5, 2:] = images[0, 1:, :4] / 255
    np.testing.assert_allclose(x[0], wanted, atol=1e-6)
    np.testing.assert_allclose(x[1], np.rot90(images[1]) / 255, atol=1e-6)


COMPILED = texts.of("lessons")["network"]
QUICK = ("max_pool", "max_pool_relu_backward", "momentum_sgd", "next_batch", "relu_backward", "softmax_cross_entropy")
SLOW = ("conv_relu_pool", "filter_gradient", "head", "input_gradient", "weight_gradients")


@some_days(3)
def test_the_kernels_compile_and_nothing_is_float64():
    names = [*QUICK, *some(SLOW, len(SLOW) + 1, 1)]
    launched, found = json.loads(python("-c", COMPILED, json.dumps(names)).stdout)
    assert launched == sorted([*QUICK, *SLOW])
    assert found == {name: [] for name in names}


@pytest.mark.gpu
def test_on_a_gpu_gradients_are_the_oracles_and_bits_the_same_with_and_without_a_graph(root):
    """A graph, each kernel by itself, and a run that was interrupted: all end with the same bits."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
    found = json.loads(python(root / "tests" / "lessons" / "network_on_gpu.py", env=env).stdout)
    for kind in ("fused", "layered"):
        assert max(found[kind]["errors"].values()) < 1e-5, kind
        assert len(set(found["bits"][kind])) == 1, kind
    assert found["fused"]["kernels"] == 8
