"""The process a submission runs in: it imports the file, and does with it what the other process asks.

Questions and answers are lines of JSON on standard input and output; arrays travel through one file. Nothing said
here is a verdict. Started by :mod:`common.grading.referee`, in a folder of its own that holds a copy of the harness.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import shutil
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

from common import catalog, child, device, problems
from common.grading import watch

Answer = dict[str, Any]

PLANS = "plans"
PR_SET_DUMPABLE = 4  # prctl(2)
THREAD_STACK = 1 << 18  # a block of the simulator has up to 1024 Python threads


class Player:
    """Answers questions about one file. Every public method is a question by its name."""

    def __init__(self, file: Path, ladder: str, exchange: Path, margin: int) -> None:
        self.file, self.ladder, self.exchange, self.margin = file, ladder, exchange, margin
        self.watch = watch.Watch(str(file))
        self.module: Any = None
        self.stage: Any = None
        self.recorder: Any = None

    def ready(self) -> Answer:
        """Nothing: the process is there."""
        return {}

    def start(self) -> Answer:
        """Import the file."""
        # before the watch takes note of what the harness has
        importlib.import_module("common.grading.rehearse" if _simulated() else "common.grading.plans")
        self.watch.start()
        self.module = catalog.load(self.file, self.ladder)
        return {}

    def bind(self, shape: dict[str, int]) -> Answer:
        """Make arrays for a problem, and the step's workspace, in the simulator."""
        from common.grading import rehearse

        problem = problems.from_shape(self.ladder, shape)
        self.stage = rehearse.Rehearsal(self.module, problem, self.watch, self.margin)
        return {}

    def prepare(self) -> Answer:
        """Take the weights from the exchange and prepare them; the input is not there yet."""
        self._take(1, 1)
        self.stage.prepare()
        return {}

    def launch(self) -> Answer:
        """Take all operands from the exchange, launch, and put them back."""
        self._take(0, 3)
        launched = self.stage.launch()
        with self.exchange.open("r+b") as file:
            for buffer in self.stage.buffers:
                file.write(buffer.tobytes())
        return {"launched": launched}

    def touch(self, shape: dict[str, int]) -> Answer:
        """Trace the kernels at a shape, and say what the costliest accesses are; nothing if they cannot be traced."""
        from common.tracing import lanes, trace

        try:
            found = trace.run(self.module, problems.from_shape(self.ladder, shape), every=True)
        except lanes.TraceError as error:
            return {"figures": {}, "message": str(error)}
        return {"figures": trace.worst(found.as_dict())}

    def record(self, shape: dict[str, int], architecture: str, name: str) -> Answer:
        """Write down what the step would start on a GPU, with the weights of the exchange."""
        from common.grading import plans

        problem = problems.from_shape(self.ladder, shape)
        if self.recorder is None:
            self.recorder = plans.Recorder(self.module, self.ladder, self.watch)
        weight = np.fromfile(self.exchange, np.float32, int(np.prod(problem.weight_shape)))
        try:
            plan = self.recorder.record(problem, weight.reshape(problem.weight_shape), architecture)
        except plans.PlanError as error:
            return {"status": "unjudged", "message": f"cannot be judged here: {error}"}
        folder = self.exchange.parent / PLANS
        folder.mkdir(exist_ok=True)
        for digest, text in self.recorder.texts.items():
            Path(folder, f"{digest}.ptx").write_text(text, encoding="utf-8")
        Path(folder, f"{name}.json").write_text(json.dumps(plans.save(plan, folder, name)), encoding="utf-8")
        return {"plan": f"{name}.json"}

    def _take(self, first: int, count: int) -> None:
        """Read buffers from the exchange, which holds input, weights and output one after the other."""
        sizes = [buffer.nbytes for buffer in self.stage.buffers]
        with self.exchange.open("rb") as file:
            file.seek(sum(sizes[:first]))
            for buffer in self.stage.buffers[first : first + count]:
                buffer[:] = np.frombuffer(file.read(buffer.nbytes), np.float32)


def answer(player: Player, question: dict[str, Any]) -> Answer:
    """One answer: ``status``, what was asked for, and the notes so far."""
    try:
        found = {"status": "done", **getattr(player, question.pop("ask"))(**question)}
    except (Exception, SystemExit) as error:
        found = child.failure(error, player.file)
        if isinstance(error, SystemExit):
            found["status"] = "exited"
            code = f"it ends its process with exit code {error.code or 0} in place of an output"
            found["message"] = f"{code}: an exit code is no verdict"
        elif isinstance(error, MemoryError):
            found["message"] = "it takes more memory than it is given"
    player.watch.look()
    return {**found, "notes": list(player.watch.notes)}


def confine(memory_bytes: int, cpu_seconds: int, file_bytes: int) -> None:
    """Limit this process and all it starts, where the system can."""
    threading.stack_size(THREAD_STACK)
    if os.name != "posix":
        return
    import resource

    limits = {"AS": memory_bytes, "CPU": cpu_seconds, "FSIZE": file_bytes, "CORE": 0}
    for name, limit in limits.items():
        # macOS does not limit memory
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (limit, limit))


def keep_private() -> None:
    """Other processes of this user may not look into this one's memory (Linux; an administrator still may)."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def _simulated() -> bool:
    return os.environ.get(device.SIMULATOR_SWITCH) == "1"


def _end_with_the_grader(folder: Path) -> None:
    """Where the system says so: when nobody can ask any more, end, with all that was started and the folder."""
    if os.name != "posix":
        return
    line = select.poll()
    line.register(os.dup(0), select.POLLHUP)

    def wait() -> None:
        line.poll()
        shutil.rmtree(folder, ignore_errors=True)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def main(text: str) -> None:
    options = json.loads(text)
    keep_private()
    confine(options["memory_bytes"], options["cpu_seconds"], options["file_bytes"])
    _end_with_the_grader(Path(options["exchange"]).parent.parent)
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # what the file prints goes to the log, and what it reads is nothing
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    if _simulated():
        from common import simulator

        simulator.install()
    player = Player(Path(options["file"]), options["ladder"], Path(options["exchange"]), options["margin"])
    for line in questions:
        answers.write(json.dumps(answer(player, json.loads(line))).encode() + b"\n")
        answers.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
