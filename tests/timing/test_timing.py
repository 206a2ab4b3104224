"""Order statistics of known samples, and when collecting stops, by a clock of our own."""

import math
import random
from types import SimpleNamespace

import pytest
from msgspec import to_builtins
from numba import cuda

from common.timing import clocks, timing

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


def forever(value):
    while True:
        yield value


def noise(spread, seed=0):
    rng = random.Random(seed)
    while True:
        yield 10.0 * (1 + spread * (rng.random() - 0.5))


# --- summarise ---


def test_median_and_percentiles_of_known_samples():
    result = timing.summarise([float(n) for n in range(101)])  # 0, 1, ... 100
    assert (result.median_ms, result.p20_ms, result.p80_ms, result.repeats) == (50, 20, 80, 101)


def test_order_does_not_matter_and_one_outlier_moves_no_median():
    assert timing.summarise([3.0, 1.0, 2.0]).median_ms == 2
    assert timing.summarise([1.0] * 20 + [1000.0]).median_ms == 1
    assert timing.summarise([1.0, 2.0]).median_ms == 1.5


def test_equal_samples_have_no_error():
    assert timing.summarise([7.0] * 10).median_error == 0


@pytest.mark.parametrize(("count", "low", "high"), [(100, 41, 60), (10, 2, 9), (4, 1, 4), (3, 1, 3), (1, 1, 1)])
def test_the_median_s_error_lies_between_two_ranks(count, low, high):
    # one based; Conover 1999, table A3, has 40 and 61 of a hundred, and 2 and 9 of ten
    result = timing.summarise([float(n) for n in range(1, count + 1)])
    assert result.median_ms == (count + 1) / 2
    assert result.median_error == pytest.approx((high - low) / 2 / result.median_ms)
    quick = timing.summarise([n / 1000 for n in range(1, count + 1)])
    assert quick.median_error == pytest.approx(result.median_error)  # a share of the median


def test_a_median_of_nothing_has_no_error_that_would_do():
    assert timing.summarise([0.0] * 10).median_error == math.inf


def test_the_interval_holds_the_median_as_often_as_it_says():
    rng = random.Random(1)
    inside = 0
    for _ in range(1000):
        result = timing.summarise([rng.uniform(0, 2) for _ in range(40)])
        inside += abs(result.median_ms - 1) <= result.median_error * result.median_ms * 1.3
    # the half-width is centred on the sample median, hence the slack
    assert inside > 900


def test_the_median_error_shrinks_with_the_root_of_the_count():
    rng = random.Random(2)
    samples = [rng.gauss(100, 5) for _ in range(3600)]
    errors = [timing.summarise(samples[:count]).median_error for count in (25, 100, 400, 3600)]
    assert errors == sorted(errors, reverse=True)
    assert errors[3] == pytest.approx(errors[1] / 6, rel=0.5)


def test_a_timing_as_json():
    assert to_builtins(timing.summarise([2.0] * 4)) == {
        "median_ms": 2.0,
        "p20_ms": 2.0,
        "p80_ms": 2.0,
        "median_error": 0.0,
        "repeats": 4,
    }


# --- collect ---


def test_steady_samples_stop_at_the_least_repeats():
    clock = Clock()
    sample = source(clock, forever(3.0))
    assert timing.collect(sample, clock).repeats == timing.MIN_REPEATS == 10
    assert sample.given == 10


def test_the_least_repeats_can_be_raised():
    clock = Clock()
    result = timing.collect(source(clock, forever(3.0)), clock, min_repeats=32)
    assert 32 <= result.repeats < 32 + timing.BATCH


def test_noisy_samples_go_on_until_the_error_is_met():
    clock = Clock()
    result = timing.collect(source(clock, noise(0.2), seconds_each=1e-6), clock, target_error=0.01)
    assert result.median_error <= 0.01
    assert result.repeats > timing.MIN_REPEATS
    tighter = timing.collect(source(clock, noise(0.2), seconds_each=1e-6), clock, target_error=0.003)
    assert tighter.median_error <= 0.003
    assert tighter.repeats > result.repeats
    assert result.median_ms == pytest.approx(10, rel=0.02)


def test_the_deadline_stops_what_never_settles():
    clock = Clock()
    wild = (1.0 if i % 2 else 100.0 for i in range(10**6))
    each = 1 / 32
    result = timing.collect(source(clock, wild, each), clock, max_seconds=2.0)
    assert result.median_error > timing.TARGET_ERROR  # said, not hidden
    assert (result.repeats - timing.BATCH) * each < 2.0 <= result.repeats * each


def test_an_error_just_as_large_as_asked_for_will_do():
    halves = [15.0, 17.0] * 10  # the second and the ninth of ten are 2 apart, which is twice 1/16 of 16
    result = timing.collect(source(Clock(), halves), Clock(), target_error=1 / 16)
    assert (result.median_ms, result.median_error, result.repeats) == (16.0, 1 / 16, 10)
    pairs = iter([(15.0, 1.0), (17.0, 1.0)] * 10)
    paired = timing.collect_pairs(lambda swapped: next(pairs), Clock(), target_error=1 / 16, min_pairs=10)
    assert (paired.ratio_error, paired.first.repeats) == (1 / 16, 10)


def test_at_the_deadline_it_is_over():
    clock = Clock()
    wild = (1.0 if i % 2 else 100.0 for i in range(10**6))
    assert timing.collect(source(clock, wild, seconds_each=0.2), clock, max_seconds=3.0).repeats == 15


def test_the_deadline_does_not_cut_the_least_repeats():
    clock = Clock()
    result = timing.collect(source(clock, noise(0.5), seconds_each=60.0), clock, max_seconds=2.0)
    assert result.repeats == timing.MIN_REPEATS


def test_the_defaults_are_those_the_pages_promise():
    assert timing.TARGET_ERROR == 0.01


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
    assert paired.ratio == pytest.approx(truth, rel=0.02)
    assert paired.ratio_p20 <= paired.ratio <= paired.ratio_p80
    # one after the other, the same launches mislead
    laptop = Laptop((200.0 * truth, 200.0))
    first, second = (
        timing.collect(lambda count, which=which: [laptop.launch(which) for _ in range(count)], laptop.clock)
        for which in (0, 1)
    )
    assert abs(first.median_ms / second.median_ms / truth - 1) > 0.04


def test_the_order_within_a_pair_alternates():
    laptop = Laptop((1.0, 1.0))
    timing.collect_pairs(laptop.pair, laptop.clock, min_pairs=6, max_seconds=0.0)
    assert laptop.launches == [0, 1, 1, 0] * 3


def test_who_runs_first_gains_nothing():
    # the first launch of each pair finds a cold chip
    def sample(swapped):
        return (10.0, 13.0) if swapped else (13.0, 10.0)

    paired = timing.collect_pairs(sample, Clock(), min_pairs=20, max_seconds=0.0)
    assert paired.ratio_p20 < 1 < paired.ratio_p80


def test_steady_pairs_stop_at_the_least_count_and_wild_ones_at_the_deadline():
    clock = Clock()
    steady = timing.collect_pairs(lambda swapped: (2.0, 1.0), clock)
    assert (steady.ratio, steady.ratio_error, steady.first.repeats) == (2.0, 0.0, timing.MIN_PAIRS)
    wild = random.Random(3)

    def sample(swapped):
        clock.now += 0.125
        return wild.uniform(1, 9), 1.0

    result = timing.collect_pairs(sample, clock, max_seconds=2.0)
    assert result.ratio_error > timing.TARGET_ERROR
    assert result.first.repeats == result.second.repeats == 16


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
    """Says one clock after the other, the last again and again; none at all if there is none."""

    def __init__(self, *clocks):
        self.clocks, self.read = list(clocks), 0

    def clock(self):
        self.read += 1
        return self.clocks[min(self.read, len(self.clocks)) - 1] if self.clocks else None


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
    watch._nvml, watch._clocks = Nvml(), []
    monkeypatch.setattr(timing, "WARM_UP_SECONDS", 0.0)
    monkeypatch.setattr(timing, "SETTLED_BY_SECONDS", 0.0)
    return watch


def test_a_stopwatch_times_either_launch_wherever_it_stands_in_the_pair(stopwatch, machine):
    order = []

    def launch(name, seconds):
        order.append(name)
        machine.work(1e-5, seconds)

    paired = stopwatch.measure_pairs(lambda: launch("a", 3.0), lambda: launch("b", 2.0), clock=machine)
    assert (paired.ratio, paired.ratio_p20, paired.ratio_p80) == pytest.approx((1.5, 1.5, 1.5))
    assert (paired.first.median_ms, paired.second.median_ms) == pytest.approx((3000.0, 2000.0))
    assert order[:6] == ["a", "b", "a", "b", "b", "a"]  # the first turn warms up


@pytest.mark.parametrize("host", [1e-5, 3e-4, 2e-3])
@pytest.mark.parametrize("kernels", [1, 20])
def test_a_slow_host_stays_out_of_the_time(stopwatch, machine, host, kernels):
    def launch():
        for _ in range(kernels):
            machine.work(host / kernels, 3e-5 / kernels)

    times = stopwatch.measure(launch, clock=machine)
    assert (times.p20_ms, times.median_ms, times.p80_ms) == pytest.approx((0.03, 0.03, 0.03))


@pytest.mark.parametrize("slow", ["first", "second", "both"])
@pytest.mark.parametrize("host", [1e-4, 2e-3])
def test_a_slow_host_of_either_stays_out_of_a_ratio(stopwatch, machine, slow, host):
    """A Numba launch takes the CPU longer than a short kernel takes the GPU, and than a library's launch."""
    costs = {name: host if slow in (name, "both") else 4e-6 for name in ("first", "second")}

    def launch(name, seconds):
        machine.work(costs[name], seconds)

    paired = stopwatch.measure_pairs(lambda: launch("first", 3e-5), lambda: launch("second", 4e-5), clock=machine)
    assert (paired.ratio_p20, paired.ratio, paired.ratio_p80) == pytest.approx((0.75, 0.75, 0.75))
    assert (paired.first.median_ms, paired.second.median_ms) == pytest.approx((0.03, 0.04))


def test_a_host_that_is_held_up_after_the_launch_stays_out_of_the_time(stopwatch, machine):
    """The kernel is queued in time, but not the event after it."""

    class Held(Event):
        def record(self):
            machine.now += 4e-4
            super().record()

    stopwatch._queue = [(Event(machine), Held(machine)) for _ in range(timing.BATCH)]
    times = stopwatch.measure(lambda: machine.work(1e-5, 3e-5), clock=machine)
    assert (times.p20_ms, times.median_ms, times.p80_ms) == pytest.approx((0.03, 0.03, 0.03))


def test_a_launch_that_waits_for_the_gpu_itself_is_timed_as_it_is(stopwatch, machine):
    def launch():
        machine.work(1e-4, 1e-3)
        machine.synchronize()

    assert stopwatch.measure(launch, clock=machine).median_ms == pytest.approx(1.0)
    assert stopwatch._lead == timing.MAX_LEAD


def test_a_quick_host_queues_one_overwrite(stopwatch, machine):
    before = []
    stopwatch.measure(lambda: machine.work(1e-5, 1e-3), lambda: before.append(machine.now), clock=machine)
    assert stopwatch._lead == 1
    assert len(before) >= timing.MIN_REPEATS


@pytest.fixture
def warm_up(machine, monkeypatch):
    """Warming up takes ten 1024ths of a second of that machine's."""
    machine.now = machine.free = 64.0
    monkeypatch.setattr(timing, "WARM_UP_SECONDS", 10 / 1024)
    monkeypatch.setattr(timing, "SETTLED_BY_SECONDS", 100 / 1024)
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=machine))


def test_launches_warm_the_gpu_up_before_they_are_timed(stopwatch, machine, warm_up):
    done = []

    def launch():
        done.append("launch")
        machine.work(0.0, 1 / 1024)

    stopwatch.measure(launch, lambda: done.append("before"), lambda: done.append("after"), clock=machine)
    each = ["before", "launch"]
    assert done == 10 * each + 2 * (timing.BATCH * each + ["after"])
    done.clear()
    stopwatch.measure(launch, clock=machine)
    assert done == ["launch"] * (10 + timing.MIN_REPEATS)


def test_pairs_warm_the_gpu_up_too(stopwatch, machine, warm_up):
    done = []

    def launch(name):
        done.append(name)
        machine.work(0.0, 1 / 1024)

    stopwatch.measure_pairs(lambda: launch("a"), lambda: launch("b"), clock=machine)
    assert done[:12] == 6 * ["a", "b"]  # two parts of three turns
    assert done[12:] == timing.MIN_PAIRS // 2 * ["a", "b", "b", "a"]


@pytest.mark.parametrize(("settles", "turns"), [(20, 30), (10**6, 95)])
def test_warming_up_goes_on_until_the_clock_has_settled_but_not_for_ever(stopwatch, machine, warm_up, settles, turns):
    """Launches grow slower until so many are done: two parts of the warm-up agree then, or the time is over."""
    done = []

    def launch():
        done.append(1)
        machine.work(0.0, (1 + min(len(done), settles) / 100) / 1024)

    stopwatch._warm_up(launch)
    assert len(done) == pytest.approx(turns, abs=40 if settles > 100 else 6)
    assert machine.now - 64.0 < 110 / 1024


def test_a_time_has_the_clock_under_load_and_what_held_it_down(stopwatch, machine):
    stopwatch._nvml = Nvml(clocks.Clock(1500, ("power",)), clocks.Clock(1400, ()), clocks.Clock(1400, ("heat",)))
    found = stopwatch.measure(lambda: machine.work(1e-5, 1e-3), min_repeats=15, clock=machine)
    assert (found.sm_mhz, found.held_by) == (1400, ("heat", "power"))
    assert to_builtins(found)["sm_mhz"] == 1400
    paired = stopwatch.measure_pairs(*[lambda: machine.work(1e-5, 1e-3)] * 2, clock=machine)
    assert (paired.first.sm_mhz, paired.second.sm_mhz) == (1400, 1400)
    stopwatch._nvml = Nvml()
    assert stopwatch.measure(lambda: machine.work(1e-5, 1e-3), clock=machine).sm_mhz is None


def test_of_a_long_launch_three_repeats_are_enough_and_few_are_queued_together(stopwatch, machine, monkeypatch):
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=machine))
    batches, together = [], stopwatch._times
    monkeypatch.setattr(
        stopwatch, "_times", lambda launches, before: batches.append(len(launches)) or together(launches, before)
    )
    for seconds, queued, repeats in ((0.31, 3, 3), (0.45, 2, 4), (1.5, 1, 3), (0.15, 5, 10)):
        batches.clear()
        found = stopwatch.measure(lambda seconds=seconds: machine.work(1e-5, seconds), clock=machine)
        assert (set(batches), found.repeats) == ({queued}, repeats)


def test_a_row_far_below_the_median_clock_is_slow():
    assert clocks.slow([1700, 1500, 1710, None, 1690]) == [False, True, False, False, False]
    assert clocks.slow([1700, 1540]) == [False, False]
    assert clocks.slow([None, None]) == [False, False]
    assert clocks.slow([]) == []


def test_without_nvml_there_is_no_clock(monkeypatch):
    monkeypatch.setattr(clocks, "_LIBRARY", "no-such-library.so")
    assert clocks.Nvml().clock() is None


@pytest.mark.parametrize(("l2_bytes", "taken"), [(6 << 20, 64 << 20), (60 << 20, 480 << 20)])
def test_what_is_overwritten_is_far_larger_than_the_cache(monkeypatch, l2_bytes, taken):
    monkeypatch.setattr(cuda, "event", lambda timing: timing)
    watch = timing.Stopwatch(l2_bytes)
    assert watch._scratch.nbytes == taken
    assert (watch._lead, watch._queue, watch._cuda) == (1, [(True, True)] * timing.BATCH, cuda)
    filled = []
    monkeypatch.setattr("numba.cuda.cudadrv.driver.device_memset", lambda *given: filled.append(given))
    watch._flush()
    assert filled == [(watch._scratch, 0, taken)]


def test_pairs_as_json():
    paired = timing.collect_pairs(lambda swapped: (3.0, 2.0), Clock())
    entry = to_builtins(paired)
    assert (entry["ratio"], entry["first"]["median_ms"], entry["second"]["median_ms"]) == (1.5, 3.0, 2.0)
