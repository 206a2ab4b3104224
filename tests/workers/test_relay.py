"""The order of work on one GPU, with tasks that only say when they ran."""

import threading
import time
from functools import partial
from pathlib import Path

import pytest

from common.workers import relay
from common.workers.messages import Task


class Turn(Task, kw_only=True, frozen=True, tag="tests.turn"):
    gate: str
    number: int


class Named(Task, kw_only=True, frozen=True, tag="tests.named"):
    group: int
    name: str


class Machine:
    """Does tasks as child processes would, and writes down what happened, in order."""

    def __init__(self, fail=None):
        self.events, self.lock, self.fail = [], threading.Lock(), fail

    def say(self, *event):
        with self.lock:
            self.events.append(event)

    def go(self, tasks, stop):
        group = tasks[1].group
        self.say("ready", group)
        while not Path(tasks[0].gate).exists():
            if stop.is_set():
                return
            time.sleep(0.001)
        yield tasks[0], {"status": "right"}
        for task in tasks[1:]:
            self.say("begin", group, task.name)
            if self.fail == task.name:
                raise RuntimeError("no more")
            self.say("end", group, task.name)
            yield task, {"status": "right", "name": task.name}
        self.say("over", group)


def groups(*sizes):
    return [
        (partial(Turn, number=n), [Named(group=n, name=f"{n}.{i}") for i in range(size)])
        for n, size in enumerate(sizes)
    ]


def test_results_come_in_order_without_those_of_getting_ready():
    machine = Machine()
    found = list(relay.run(groups(2, 1, 3), machine.go))
    assert [(number, result["name"]) for number, _, result in found] == [
        (0, "0.0"), (0, "0.1"), (1, "1.0"), (2, "2.0"), (2, "2.1"), (2, "2.2"),
    ]  # fmt: skip


def test_one_group_at_a_time_has_the_gpu():
    machine = Machine()
    list(relay.run(groups(2, 2, 2, 2), machine.go))
    busy = [event for event in machine.events if event[0] in ("begin", "over")]
    assert [group for _, group, *_ in busy] == sorted(group for _, group, *_ in busy)


def test_the_next_group_gets_ready_meanwhile_and_not_all_of_them():
    machine = Machine()
    running = relay.run(groups(1, 1, 1, 1), machine.go, ahead=1)
    next(running)
    deadline = time.monotonic() + 30
    while ("ready", 1) not in machine.events and time.monotonic() < deadline:
        time.sleep(0.001)
    assert ("ready", 1) in machine.events
    assert ("ready", 2) not in machine.events
    assert ("begin", 1, "1.0") not in machine.events  # group 0 has not ended: its last result was just handed over
    running.close()


def test_who_stops_reading_ends_every_group():
    machine = Machine()
    running = relay.run(groups(3, 3), machine.go)
    next(running)
    running.close()
    assert not [thread for thread in threading.enumerate() if "_follow" in thread.name]
    assert ("begin", 1, "1.0") not in machine.events


def test_what_a_group_raises_reaches_the_caller():
    with pytest.raises(RuntimeError, match="no more"):
        list(relay.run(groups(1, 2, 1), Machine(fail="1.1").go))


def test_a_process_that_dies_before_its_turn_goes_on_when_it_is_its_turn():
    """Tasks of a dead process go on in a fresh one: the turn is asked for again, and waited for."""

    def go(tasks, stop):
        yield tasks[0], {"status": "crashed"}
        for task in tasks[1:]:
            yield task, {"status": "right", "name": task.name}

    assert [result["name"] for _, _, result in relay.run(groups(1, 1), go)] == ["0.0", "1.0"]
