"""The process a submission runs in: it imports the file, and does with it what the other process asks.

Questions and answers are lines of JSON on standard input and output; arrays travel through one file. Nothing said
here is a verdict. Started by :mod:`common.grade.sandbox`, in a folder of its own that holds a copy of the harness.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import shutil
import signal
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import structs, to_builtins
from numpy.typing import NDArray

from common.catalog import catalog, device, problems, schema
from common.grade import audit, confine, messages
from common.grade.messages import Answer, Block, Launched, Traced
from common.run import child

if TYPE_CHECKING:
    from common.grade.ptx_plan import Recorder
    from common.grade.traced_run import TracedRun

PLANS = "plans"
MAX_FAULTS, MAX_PLACES = 3, 512
NOT_SAID = "it is not said why"


class UnjudgedError(Exception):
    """What cannot be judged here, and why."""


class Child:
    """Answers questions about one file. Every public method is a question by its name."""

    module: ModuleType
    stage: TracedRun

    def __init__(self, file: Path, ladder: str, exchange: Path, margin: int, enclosed: int = 0) -> None:
        self.file, self.ladder, self.exchange, self.margin = file, ladder, exchange, margin
        self.enclosed = enclosed
        self.audit = audit.Audit(str(file))
        self.recorder: Recorder | None = None

    def ready(self) -> int:
        """The process is there: the version of Landlock that encloses it, 0 if none does."""
        return self.enclosed

    def start(self) -> None:
        """Import the file; the harness is there, whole, and the audit takes note of it."""
        self.audit.start()
        self.module = catalog.load(self.file, self.ladder)

    def bind(self, shape: dict[str, int]) -> None:
        """Make arrays for a problem, and the step's workspace."""
        from common.grade import traced_run

        problem = problems.from_shape(self.ladder, shape)
        self.stage = traced_run.TracedRun(self.module, problem, self.audit, self.margin)

    def prepare(self) -> None:
        """Take the weights from the exchange and prepare them; the input is not there yet."""
        self._take(1, 1)
        self.stage.prepare()

    def launch(self) -> list[Launched]:
        """Take all operands from the exchange, launch, and put them back."""
        from common.report import tracewords
        from common.trace.state import MistakeError, TraceError

        self._take(0, 3)
        try:
            launched = self.stage.launch()
        except TraceError as error:
            if isinstance(error, MistakeError):
                raise
            raise UnjudgedError(f"cannot be judged here: {error}") from None
        for report in self.stage.tracer.reports():
            for fault in report.faults:
                self.audit.note("unsound", tracewords.fault_sentence(fault.as_dict()))
        self.stage.tracer.forget()
        with self.exchange.open("r+b") as file:
            for buffer in self.stage.buffers:
                file.write(buffer.tobytes())
        return launched

    def trace(self, shape: dict[str, int], seed: int = 0) -> Traced:
        """Trace the kernels at a shape: what they read and write, what their costliest accesses are, and what is
        unsound."""
        from common.grade import limits
        from common.report import tracewords
        from common.trace import trace
        from common.trace.state import TraceError

        try:
            found = trace.run(self.module, problems.from_shape(self.ladder, shape), every=True, seed=seed)
        except TraceError as error:
            return Traced(str(error) or NOT_SAID)
        kernels = found.as_dict()["kernels"]
        faults = [tracewords.fault_sentence(fault) for kernel in kernels for fault in kernel["faults"]]
        figures = {name: float(figure) for name, figure in limits.touched(found).items()}
        reads: dict[str, float] = {}
        for kernel in found.kernels:
            for access in kernel.select("global", "read", "copy"):
                reads[access.array] = reads.get(access.array, 0) + access.accesses
        flat = np.asarray(found.output).reshape(-1)
        places, values = _some(flat, np.arange(flat.size), seed)
        return Traced("", figures, reads, faults[:MAX_FAULTS], places, values)

    def sample(self, shape: dict[str, int], seed: int, block: list[int] | None) -> Block:
        """Trace one block of each kernel, the middle one if none is named, and say what it wrote and took for it."""
        from common.trace import trace
        from common.trace.state import TraceError

        problem = problems.from_shape(self.ladder, shape)
        try:
            found = trace.run(self.module, problem, (block[0], block[1], block[2]) if block else None, seed=seed)
        except TraceError as error:
            return Block(str(error) or NOT_SAID)
        flat = np.asarray(found.output).reshape(-1)
        written = np.flatnonzero(~np.isnan(flat))
        places, values = _some(flat, written, seed)
        return Block(
            launched=[(kernel.name, kernel.grid, kernel.block) for kernel in found.kernels],
            fma=sum(kernel.fma for kernel in found.kernels),
            written=len(written),
            places=places,
            values=values,
        )

    def record(self, shape: dict[str, int], architecture: str, name: str) -> None:
        """Write down what the step would start on a GPU, with the weights of the exchange."""
        from common.grade import ptx_plan

        problem = problems.from_shape(self.ladder, shape)
        if self.recorder is None:
            self.recorder = ptx_plan.Recorder(self.module, self.ladder, self.audit)
        weight = np.fromfile(self.exchange, problem.weight_dtype, int(np.prod(problem.weight_shape)))
        try:
            plan = self.recorder.record(problem, weight.reshape(problem.weight_shape), architecture)
        except ptx_plan.PlanError as error:
            raise UnjudgedError(f"cannot be judged here: {error}") from None
        folder = self.exchange.parent / PLANS
        folder.mkdir(exist_ok=True)
        for digest, text in self.recorder.texts.items():
            Path(folder, f"{digest}.ptx").write_text(text, encoding="utf-8")
        Path(folder, f"{name}.json").write_text(json.dumps(ptx_plan.save(plan, folder, name)), encoding="utf-8")

    def _take(self, first: int, count: int) -> None:
        """Read buffers from the exchange, which holds input, weights and output one after the other."""
        sizes = [buffer.nbytes for buffer in self.stage.buffers]
        with self.exchange.open("rb") as file:
            file.seek(sum(sizes[:first]))
            for buffer in self.stage.buffers[first : first + count]:
                buffer[:] = np.frombuffer(file.read(buffer.nbytes), buffer.dtype)


def _some(flat: NDArray[Any], written: NDArray[Any], seed: int) -> tuple[list[int], list[float]]:
    """Some of these places of an output, and what lies there."""
    shown = np.random.default_rng(seed).permutation(written)[:MAX_PLACES]
    return shown.tolist(), [float(value) for value in flat[shown]]


def answer(box: Child, text: bytes) -> Answer:
    """What is said to a question."""
    try:
        question = schema.read(json.loads(text), messages.QUESTIONS, "question")
        name = str(question.__struct_config__.tag)
        found: dict[str, object] = {"status": "done", "found": getattr(box, name)(**structs.asdict(question))}
    except (Exception, SystemExit) as error:
        found = {**child.failure(error, box.file)}
        if isinstance(error, UnjudgedError):
            found = {"status": "unjudged", "message": str(error)}
        elif isinstance(error, SystemExit):
            code = f"it ends its process with exit code {error.code or 0} in place of an output"
            found |= {"status": "exited", "message": f"{code}: an exit code is no verdict"}
        elif isinstance(error, MemoryError):
            found["message"] = "it takes more memory than it is given"
    box.audit.look()
    return schema.read({**found, "notes": list(box.audit.notes)}, Answer, "answer")


def _end_with_the_grader(folder: Path) -> None:
    """Where the system says so: when nobody can ask any more, end, with all that was started and the folder.

    A process beside this one sees to it: behind walls no process can remove the folder that it may write in.
    """
    if os.name != "posix" or os.fork():
        return
    line = select.poll()
    line.register(0, select.POLLHUP)
    for number in (1, 2):  # whoever reads them waits for this one's end otherwise
        os.close(number)
    line.poll()
    shutil.rmtree(folder, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


def _import_all() -> None:
    """What any question needs, before the file can change where it comes from."""
    names = ("explain.faults", "code.codegen", "grading.traced_run", "grading.ptx_plan", "report.tracewords")
    for name in names:
        importlib.import_module(f"common.{name}")


def main(text: str) -> None:
    options = schema.read(json.loads(text), messages.Options, "options")
    own = Path(options.exchange).parent.parent
    _end_with_the_grader(own)
    _import_all()
    device.play()
    confine.keep_private()
    confine.give_up_privileges()
    confine.limit(options.memory_bytes, options.cpu_seconds, options.file_bytes)
    enclosed = confine.enclose(own, Path(options.hidden))
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # what the file prints goes to the log, and what it reads is nothing
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    box = Child(Path(options.file), options.ladder, Path(options.exchange), options.margin, enclosed)
    for line in questions:
        answers.write(json.dumps(to_builtins(answer(box, line))).encode() + b"\n")
        answers.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
