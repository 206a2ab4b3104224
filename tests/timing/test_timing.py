"""Order statistics of known samples, and when collecting stops, by a clock of our own."""

import random
from types import SimpleNamespace

import pytest
from msgspec import to_builtins

from common.catalog import catalog, problems
from common.run.messages import Outcome, Timing
from common.timing import measuring, timing

pytestmark = pytest.mark.usefixtures("traced")


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def source(clock, values, seconds_each=0.0):
    """A ``sample`` that hands out ``values`` in turn while the clock runs; counts what it gave."""
    stream = iter(values)

    def sample(count):
        sample.given += count
        clock.now += count * seconds_each
        return [next(stream) for _ in range(count)]

    sample.given = 0
    return sample


def noise(spread, seed=0):
    rng = random.Random(seed)
    while True:
        yield 10.0 * (1 + spread * (rng.random() - 0.5))


# --- summarise ---


def test_the_interval_of_a_median_runs_between_ranks():
    hundred, three = timing.summarise(range(1, 101)), timing.summarise([3.0, 1.0, 2.0])
    assert (hundred.median_ms, hundred.median_error) == (50.5, (60 - 41) / 2 / 50.5)
    assert (three.median_ms, three.median_error) == (2.0, (3 - 1) / 2 / 2)


def test_the_interval_holds_the_median_as_often_as_it_says():
    rng = random.Random(1)
    inside = 0
    for _ in range(1000):
        result = timing.summarise([rng.uniform(0, 2) for _ in range(40)])
        inside += abs(result.median_ms - 1) <= result.median_error * result.median_ms * 1.3
    # the half-width is centred on the sample median, hence the slack
    assert inside > 900


# --- collect ---


def test_noisy_samples_go_on_until_the_error_is_met():
    clock = Clock()
    result = timing.collect(source(clock, noise(0.2), seconds_each=1e-6), clock, target_error=0.01)
    assert result.median_error <= 0.01
    assert result.repeats > timing.MIN_REPEATS
    tighter = timing.collect(source(clock, noise(0.2), seconds_each=1e-6), clock, target_error=0.003)
    assert tighter.median_error <= 0.003
    assert tighter.repeats > result.repeats
    assert result.median_ms == pytest.approx(10, rel=0.02)


# --- pairs ---


class Laptop:
    """A GPU whose clock drifts and whose neighbours come and go: a launch takes its work times the slowness now."""

    def __init__(self, works, seed=0):
        self.works, self.rng = works, random.Random(seed)
        self.clock, self.launches = Clock(), []

    @property
    def slowness(self):
        busy = 2.5 if int(self.clock.now * 3) % 7 < 2 else 1.0
        return busy * (1 + 0.05 * (self.clock.now - 100)) * (1 + 0.01 * (self.rng.random() - 0.5))

    def launch(self, which):
        self.launches.append(which)
        took = self.works[which] * self.slowness
        self.clock.now += took / 1e3
        return took

    def pair(self, swapped):
        times = {which: self.launch(which) for which in ((1, 0) if swapped else (0, 1))}
        return times[0], times[1]


@pytest.mark.parametrize("truth", [1.0, 1.25, 0.8])
def test_the_ratio_of_pairs_holds_where_neither_time_does(truth):
    laptop = Laptop((200.0 * truth, 200.0))
    paired = timing.collect_pairs(laptop.pair, laptop.clock)
    assert laptop.launches[:8] == [0, 1, 1, 0, 0, 1, 1, 0]  # each comes first in every other pair
    assert paired.ratio == pytest.approx(truth, rel=0.02)
    assert paired.ratio_p20 <= paired.ratio <= paired.ratio_p80
    # one after the other, the same launches mislead
    laptop = Laptop((200.0 * truth, 200.0))
    first, second = (
        timing.collect(lambda count, which=which: [laptop.launch(which) for _ in range(count)], laptop.clock)
        for which in (0, 1)
    )
    assert abs(first.median_ms / second.median_ms / truth - 1) > 0.04


class Machine:
    """A host and a GPU, each with its time: the host queues work, the GPU does it in order."""

    def __init__(self):
        self.now = self.free = 0.0

    def __call__(self):
        return self.now

    def work(self, host, gpu):
        self.now += host
        self.free = max(self.free, self.now) + gpu

    def synchronize(self):
        self.now = max(self.now, self.free)


class Event:
    """A CUDA event of that machine."""

    def __init__(self, machine):
        self.machine = machine

    def record(self):
        self.at = max(self.machine.free, self.machine.now)

    def query(self):
        return self.at <= self.machine.now

    def elapsed_time(self, end):
        assert end.query()  # as CUDA raises an error where the GPU is not there yet
        return 1e3 * (end.at - self.at)


class Nvml:
    """Says one clock after the other, the last again and again; 0 if there is none."""

    def __init__(self, *clocks):
        self.clocks, self.read = list(clocks), 0

    def clock(self):
        self.read += 1
        return self.clocks[min(self.read, len(self.clocks)) - 1] if self.clocks else 0


@pytest.fixture
def machine():
    return Machine()


@pytest.fixture
def stopwatch(machine, monkeypatch):
    watch = timing.Stopwatch.__new__(timing.Stopwatch)
    watch._cuda = machine
    watch._queue = [(Event(machine), Event(machine)) for _ in range(timing.BATCH)]
    watch._lead = 1
    watch._flush = lambda: machine.work(host=1e-5, gpu=1.25e-4)
    watch._clock, watch._clocks = Nvml().clock, []
    monkeypatch.setattr(timing, "WARM_UP_SECONDS", 0.0)
    monkeypatch.setattr(timing, "SETTLED_BY_SECONDS", 0.0)
    return watch


@pytest.mark.parametrize(("host", "kernels"), [(1e-5, 1), (3e-4, 20), (2e-3, 20)])
def test_a_slow_host_stays_out_of_the_time(stopwatch, machine, host, kernels):
    def launch():
        for _ in range(kernels):
            machine.work(host / kernels, 3e-5 / kernels)

    times = stopwatch.measure(launch, clock=machine)
    assert (times.p20_ms, times.median_ms, times.p80_ms) == pytest.approx((0.03, 0.03, 0.03))


def test_a_time_has_the_clock_under_load(stopwatch, machine):
    stopwatch._clock = Nvml(1500, 1400, 1400).clock
    found = stopwatch.measure(lambda: machine.work(1e-5, 1e-3), min_repeats=15, clock=machine)
    assert to_builtins(found)["sm_mhz"] == 1400
    paired = stopwatch.measure_pairs(*[lambda: machine.work(1e-5, 1e-3)] * 2, clock=machine)
    assert (paired.first.sm_mhz, paired.second.sm_mhz) == (1400, 1400)
    stopwatch._clock = Nvml().clock
    assert stopwatch.measure(lambda: machine.work(1e-5, 1e-3), clock=machine).sm_mhz is None


def test_of_a_long_launch_three_repeats_are_enough_and_few_are_queued_together(stopwatch, machine, monkeypatch):
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=machine))
    batches, together = [], stopwatch._times
    monkeypatch.setattr(stopwatch, "_times", lambda launches: batches.append(len(launches)) or together(launches))
    for seconds, queued, repeats in ((0.31, 3, 3), (0.45, 2, 4), (1.5, 1, 3), (0.02, 5, 5), (0.009, 5, 10)):
        batches.clear()
        found = stopwatch.measure(lambda seconds=seconds: machine.work(1e-5, seconds), clock=machine)
        assert (set(batches), found.repeats) == ({queued}, repeats)


def test_a_row_far_below_the_median_clock_is_slow():
    step, tiny = catalog.find("gemm_naive"), problems.preset("tiny-gemm")

    def slow(*clocks):
        times = [Timing(1.0, 1.0, 1.0, 0.0, 9, mhz) for mhz in clocks]
        rows = [
            Outcome(step=step, problem=tiny, preset=str(row), status="right", timing=time)
            for row, time in enumerate(times)
        ]
        return [preset for _, preset in measuring.at_a_low_clock(rows)]

    assert slow(1700, 1500, 1710, None, 1690) == ["1"]
    assert slow(1700, 1540) == slow(None, None) == slow() == []
