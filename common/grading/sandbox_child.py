"""The process a submission runs in: it imports the file, and does with it what the other process asks.

Questions and answers are lines of JSON on standard input and output; arrays travel through one file. Nothing said
here is a verdict. Started by :mod:`common.grading.sandbox`, in a folder of its own that holds a copy of the harness.
"""

from __future__ import annotations

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

from common.book import catalog, device, problems
from common.grading import audit, confine
from common.workers import child

Answer = dict[str, Any]

PLANS = "plans"
MAX_FAULTS, MAX_PLACES = 3, 512


class Child:
    """Answers questions about one file. Every public method is a question by its name."""

    def __init__(self, file: Path, ladder: str, exchange: Path, margin: int) -> None:
        self.file, self.ladder, self.exchange, self.margin = file, ladder, exchange, margin
        self.audit = audit.Audit(str(file))
        self.module: Any = None
        self.stage: Any = None
        self.recorder: Any = None

    def ready(self) -> Answer:
        """Nothing: the process is there."""
        return {}

    def start(self) -> Answer:
        """Import the file; the harness is there, whole, and the audit takes note of it."""
        self.audit.start()
        self.module = catalog.load(self.file, self.ladder)
        return {}

    def bind(self, shape: dict[str, int]) -> Answer:
        """Make arrays for a problem, and the step's workspace, in the simulator."""
        from common.grading import simulated_run

        problem = problems.from_shape(self.ladder, shape)
        self.stage = simulated_run.SimulatedRun(self.module, problem, self.audit, self.margin)
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

    def trace(self, shape: dict[str, int]) -> Answer:
        """Trace the kernels at a shape: what they read, what their costliest accesses are, and what is unsound.

        Without ``figures`` if they cannot be traced: the message says why.
        """
        from common.grading import limits
        from common.microscope import lanes, trace
        from common.report import tracewords

        try:
            found = trace.run(self.module, problems.from_shape(self.ladder, shape), every=True)
        except lanes.TraceError as error:
            return {"message": str(error)}
        kernels = found.as_dict()["kernels"]
        faults = [tracewords.fault_sentence(fault) for kernel in kernels for fault in kernel["faults"]]
        reads: dict[str, int] = {}
        for kernel in found.kernels:
            for access in kernel.select("global", "read", "copy"):
                reads[access.array] = reads.get(access.array, 0) + access.accesses
        return {"figures": limits.touched(found), "reads": reads, "unsound": faults[:MAX_FAULTS]}

    def sample(self, shape: dict[str, int], seed: int, block: list[int] | None) -> Answer:
        """Trace one block of each kernel, the middle one if none is named, and say what it wrote and took for it."""
        from common.microscope import lanes, trace

        problem = problems.from_shape(self.ladder, shape)
        try:
            found = trace.run(self.module, problem, (block[0], block[1], block[2]) if block else None, seed=seed)
        except lanes.TraceError as error:
            return {"message": str(error)}
        flat = np.asarray(found.output).reshape(-1)
        written = np.flatnonzero(~np.isnan(flat))
        shown = np.random.default_rng(seed).permutation(written)[:MAX_PLACES]
        return {
            "launched": [[kernel.name, list(kernel.grid), list(kernel.block)] for kernel in found.kernels],
            "fma": sum(kernel.fma for kernel in found.kernels),
            "written": len(written),
            "places": shown.tolist(),
            "values": [float(value) for value in flat[shown]],
        }

    def record(self, shape: dict[str, int], architecture: str, name: str) -> Answer:
        """Write down what the step would start on a GPU, with the weights of the exchange."""
        from common.grading import ptx_plan

        problem = problems.from_shape(self.ladder, shape)
        if self.recorder is None:
            self.recorder = ptx_plan.Recorder(self.module, self.ladder, self.audit)
        weight = np.fromfile(self.exchange, problem.weight_dtype, int(np.prod(problem.weight_shape)))
        try:
            plan = self.recorder.record(problem, weight.reshape(problem.weight_shape), architecture)
        except ptx_plan.PlanError as error:
            return {"status": "unjudged", "message": f"cannot be judged here: {error}"}
        folder = self.exchange.parent / PLANS
        folder.mkdir(exist_ok=True)
        for digest, text in self.recorder.texts.items():
            Path(folder, f"{digest}.ptx").write_text(text, encoding="utf-8")
        Path(folder, f"{name}.json").write_text(json.dumps(ptx_plan.save(plan, folder, name)), encoding="utf-8")
        return {"plan": f"{name}.json"}

    def _take(self, first: int, count: int) -> None:
        """Read buffers from the exchange, which holds input, weights and output one after the other."""
        sizes = [buffer.nbytes for buffer in self.stage.buffers]
        with self.exchange.open("rb") as file:
            file.seek(sum(sizes[:first]))
            for buffer in self.stage.buffers[first : first + count]:
                buffer[:] = np.frombuffer(file.read(buffer.nbytes), buffer.dtype)


def answer(box: Child, question: dict[str, Any]) -> Answer:
    """One answer: ``status``, what was asked for, and the notes so far."""
    try:
        found: Answer = {"status": "done", **getattr(box, question.pop("ask"))(**question)}
    except (Exception, SystemExit) as error:
        found = {**child.failure(error, box.file)}
        if isinstance(error, SystemExit):
            found["status"] = "exited"
            code = f"it ends its process with exit code {error.code or 0} in place of an output"
            found["message"] = f"{code}: an exit code is no verdict"
        elif isinstance(error, MemoryError):
            found["message"] = "it takes more memory than it is given"
    box.audit.look()
    return {**found, "notes": list(box.audit.notes)}


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


def _import_all() -> None:
    """What any question needs, before the file can change where it comes from."""
    names = ["explain.faults", "code.codegen"]
    names += (
        ["grading.simulated_run", "microscope.trace", "report.tracewords"] if _simulated() else ["grading.ptx_plan"]
    )
    for name in names:
        importlib.import_module(f"common.{name}")


def main(text: str) -> None:
    options = json.loads(text)
    _import_all()
    own = Path(options["exchange"]).parent.parent
    confine.keep_private()
    confine.give_up_privileges()
    confine.limit(options["memory_bytes"], options["cpu_seconds"], options["file_bytes"])
    confine.enclose(own, Path(options["hidden"]))
    _end_with_the_grader(own)
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # what the file prints goes to the log, and what it reads is nothing
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    if _simulated():
        from common.microscope import simulator

        simulator.install()
    box = Child(Path(options["file"]), options["ladder"], Path(options["exchange"]), options["margin"])
    for line in questions:
        answers.write(json.dumps(answer(box, json.loads(line))).encode() + b"\n")
        answers.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
