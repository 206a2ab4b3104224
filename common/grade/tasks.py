"""What a child process does of grading: it judges one kernel file without a GPU, up to the first reason not to pass.

Started as a program, it is what runs in bubblewrap: it reads tasks from a file and writes their results.
"""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np

from common.catalog import catalog, problems, reference
from common.catalog.boundstep import BoundStep
from common.catalog.patching import replaced
from common.catalog.problems import Problem
from common.check import check, inputs
from common.check.check import Finding
from common.grade import limits
from common.grade.messages import Judge, Judged
from common.run import child, isolate, process
from common.run.limits import confine
from common.run.messages import Result, Task

FRESH = 8  # fresh shapes at most that a file must be right at, of those at which the solution is
TOLD = 3  # of what is unsound
TRACED = 2  # of an exercise's own shapes at which its reads are counted
SAMPLED = 512  # elements of a block that are compared at the size that is counted
SPARE = 1.25  # multiply-adds of a block for each that its results take
NEEDED = (
    "read what the output takes, and no more often: a thread beyond an edge reads nothing (with an index that min or "
    "max keeps inside, it reads a value once more); if a tile is staged, it must be what is multiplied"
)


def judge_task(task: Judge) -> Judged:
    """Judge a file, question by question, until one has a reason not to pass it."""
    if task.memory_bytes:
        confine(task.memory_bytes, process.FILE_BYTES)
    judging = _Judging(task)
    questions = (
        judging.works_on_the_host, judging.is_wrong_at_its_shapes, judging.reads_too_much,
        judging.is_wrong_at_fresh_shapes, judging.does_not_compile, judging.is_wrong_in_one_block,
    )  # fmt: skip
    found = next(filter(None, (question() for question in questions)), [])
    return {
        "status": "wrong" if found else "right",
        "findings": list(found),
        "notes": judging.notes,
        "figures": judging.figures,
    }


class _Judging:
    """One file and what was found out about it. Each question's method gives reasons not to pass, or nothing."""

    def __init__(self, task: Judge) -> None:
        self.task, self.notes = task, list[str]()
        self.figures: dict[str, float] = {}
        self.problems = [problems.from_shape(task.ladder, shape) for shape in task.shapes]
        self._modules: dict[str, tuple[ModuleType, Any]] = {}
        self.module = self._loaded(task.path)[0]

    def _loaded(self, path: str) -> tuple[ModuleType, Any]:
        """A file's module and a tracer of its own, the same at each call: what is kept from shape to shape shows."""
        from common.trace.trace import Tracer

        if path not in self._modules:
            tracer = Tracer()
            with tracer:  # a file may make arrays when it is imported
                module = catalog.load(Path(path), self.task.ladder, self.task.home, self.task.helpers)
            self._modules[path] = module, tracer
        return self._modules[path]

    def works_on_the_host(self) -> list[Finding]:
        """Does ``launch`` itself read or write elements, or make arrays? No kernel runs meanwhile."""
        from common.trace import device_arrays, trace

        launches: list[trace.Launch] = []
        problem = self.problems[0]
        with trace.in_place_of_the_device(launches.append):
            from numba import cuda

            x, weight, y = (cuda.to_device(np.ones(shape, dtype)) for shape, dtype in problem.operands)
            step = BoundStep(self.module, problem)
            step.allocate()
            step.prepare(weight)
            before = np.array(y)
            try:
                with _kernels_alone():
                    step.launch(x, y)
            except HostWorkError as error:
                return [Finding("host_access", f"launch {error}")]
        if not np.array_equal(np.asarray(y), before):
            return [Finding("host_access", "the output changed while no kernel ran: launch wrote it from the host")]
        for launch in launches:
            arrays = [one for one in launch.arguments if isinstance(one, np.ndarray) and one.ndim]
            if not all(isinstance(one, device_arrays.DeviceArray) for one in arrays):
                given = f"launch hands {launch.function.__name__} an array that neither prepare nor workspace made"
                return [Finding("host_access", given)]
        return []

    def is_wrong_at_its_shapes(self) -> list[Finding]:
        """Is it wrong or unsound at one of the shapes of its exercise, or its step's?"""
        for problem in self.problems:
            if found := self._checked(self.task.path, problem, brief=False):
                return found
        return []

    def is_wrong_at_fresh_shapes(self) -> list[Finding]:
        """Is it wrong at a shape that its author could not know, and the solution is right there?"""
        compared = 0
        for shape in self.task.fresh:
            problem = problems.from_shape(self.task.ladder, shape)
            found = self._tried(self.task.path, problem)
            if found and self._tried(self.task.solution, problem):
                continue  # the exercise asks for no such shape
            if found:
                return [Finding(one.kind, f"{one.message}: a shape that was drawn for this grade") for one in found]
            compared += 1
            if compared == FRESH:
                break
        return []

    def _tried(self, path: str, problem: Problem) -> list[Finding]:
        """As :meth:`_checked`, briefly; an error is a reason, too."""
        try:
            return self._checked(path, problem, brief=True)
        except Exception as error:
            failed = child.failure(error, Path(path))
            return [Finding(failed["status"], f"at {problem}: {failed['message']}")]

    def _checked(self, path: str, problem: Problem, brief: bool) -> list[Finding]:
        """What a check of a file at a shape finds on the tracer; what is unsound first, as it may be the cause."""
        from common.explain import faults
        from common.report import tracetables
        from common.trace.bench import TracedBench
        from common.trace.state import MistakeError, TraceError

        task = self.task
        module, tracer = self._loaded(path)
        tracer.forget()
        try:
            bench = TracedBench(module, problem, tracer)
            if brief:
                verdict = check.check_once(bench, task.seed, "", task.precision, task.algorithm)
            else:
                verdict = check.check_bench(bench, task.seed, 1, task.precision, task.algorithm)
        except MistakeError as error:
            told = faults.of_mistake(str(error), Path(path), error.line)
            return [Finding("crashed", f"at {problem}: {told.what}; look at: {told.look_at}")]
        except TraceError as error:
            self._compiles(module, problem)
            return [Finding("unjudged", f"cannot be judged here: {error}")]
        unsound = [tracetables.fault_sentence(fault) for fault in tracer.faults()[:TOLD]]
        found = [*(Finding("unsound", said) for said in unsound), *verdict.findings]
        return [Finding(one.kind, f"at {problem}: {one.message}") for one in found]

    def _compiles(self, module: ModuleType, problem: Problem) -> None:
        """What the tracer does not know may be what no GPU takes: raises what Numba has against it."""
        from common.machine_code import codegen

        for launch in codegen.distinct(codegen.launches(module, problem)):
            codegen.ptx(launch, [self.task.architecture])

    def reads_too_much(self) -> list[Finding]:
        """Does it read more of global memory than the solution? What a trace counts is noted in any case."""
        if not (self.task.traced or self.task.most_reads):
            return []
        from common.trace import trace

        for number, problem in enumerate(self.problems[:TRACED]):
            found = trace.run(self.module, problem, every=True)
            if number == 0:
                self.figures |= limits.touched(found)
            if self.task.most_reads:
                needed = trace.run(self._loaded(self.task.solution)[0], problem, every=True)
                reads, most = _reads(found), _reads(needed)
                if number == 0:
                    allowed = f"at most {self.task.most_reads * most['all arrays']:,.0f} allowed"
                    read = f"{reads['all arrays']:,.0f} values read from global memory at {problem}"
                    self.notes.append(f"{read}, {allowed}")
                for name, count in most.items():
                    if reads.get(name, 0) > self.task.most_reads * count:
                        said = f"{reads[name]:,.0f} values of {name} are read from global memory"
                        needs = f"the exercise solved needs {count:,.0f}"
                        return [Finding("reads", f"at {problem}: {said}; {needs}: {NEEDED}")]
        return []

    def does_not_compile(self) -> list[Finding]:
        """Count what is limited of its compiled code. Compiling raises what Numba has against it."""
        from common.machine_code import codegen

        asked = [(self.problems[0], list(limits.EVERYWHERE))]
        if self.task.counted:
            asked.append((problems.from_shape(self.task.ladder, self.task.counted_shape), self.task.counted))
        try:
            for problem, names in asked:
                found = limits.compiled(self.module, problem, names, self.task.least, self.task.architecture)
                self.figures |= found
        except codegen.ToolMissingError as error:
            return [Finding("unjudged", f"cannot be judged here: {error}")]
        except codegen.RegistersError as error:
            return [Finding("uncompiled", f"it cannot be compiled: {error}")]
        return []

    def is_wrong_in_one_block(self) -> list[Finding]:
        """At the size that is counted: does the middle block make what is right, with no multiply-adds for show?"""
        if not self.task.counted:
            return []
        from common.trace import trace
        from common.trace.state import TraceError

        problem = problems.from_shape(self.task.ladder, self.task.counted_shape)
        try:
            found = trace.run(self.module, problem, seed=self.task.seed)
        except TraceError as error:
            text = f"what it does on {problem} cannot be looked at: {error}"
            return [Finding("unjudged", f"cannot be judged here: {text}")]
        flat = np.asarray(found.output).reshape(-1)
        written = np.flatnonzero(~np.isnan(flat))
        some = np.random.default_rng(self.task.seed).permutation(written)[:SAMPLED]
        places = np.unravel_index(some, problem.output_shape)
        x, weight = inputs.integers(problem, self.task.seed)
        right = reference.stored(problem, reference.at(problem, x, weight, places))
        wrong, done = int(np.count_nonzero(flat[some] != right)), sum(kernel.fma for kernel in found.kernels)
        if wrong or not len(written):
            text = f"the size that is counted, {wrong} of {len(some)} sampled elements of the middle block are wrong"
            return [Finding("wrong", f"on {problem}, {text}")]
        if done > SPARE * len(written) * problem.reduction:
            text = f"a block does {done:,} multiply-adds for results that take {len(written) * problem.reduction:,}"
            return [Finding("padded", f"on {problem}, {text}: those too many would be counted as work")]
        return []


class HostWorkError(Exception):
    """``launch`` does on the host what only kernels may; says what."""


@contextmanager
def _kernels_alone() -> Iterator[None]:
    """Meanwhile who touches elements of device arrays on the host, or makes arrays, gets HostWorkError."""
    from numba import cuda

    from common.trace.device_arrays import DeviceArray

    reaches, item = "reaches into an operand from the host ({}): only kernels may", DeviceArray.__getitem__

    def refusing(said: str) -> Any:
        def refuse(*_: Any, **__: Any) -> Any:
            raise HostWorkError(said)

        return refuse

    def computed(_: Any, function: Any, *__: Any, **___: Any) -> Any:
        raise HostWorkError(f"computes on the host (numpy.{function.__name__}): only kernels may compute")

    def part(array: Any, index: Any) -> Any:
        found = item(array, index)
        if not isinstance(found, np.ndarray):
            raise HostWorkError(reaches.format("[...]"))
        return found

    makes = ("to_device", "device_array", "device_array_like", "mapped_array", "managed_array")
    made = {name: refusing(f"calls cuda.{name}: arrays come from prepare or workspace") for name in makes}
    copied = {name: refusing(reaches.format(f".{name}()")) for name in ("copy_to_host", "copy_to_device")}
    whole = {"__setitem__": refusing(reaches.format("[...] = ...")), "__getitem__": part}
    whole |= {"__array_ufunc__": computed, "__array_function__": computed}
    with replaced(cuda, **made), replaced(DeviceArray, **copied, **whole):
        yield


def _reads(found: Any) -> dict[str, int]:
    """Values that are read from global memory, by array and of all arrays together."""
    reads: dict[str, int] = {}
    for kernel in found.kernels:
        for access in kernel.select("global", "read", "copy"):
            reads[access.array] = reads.get(access.array, 0) + access.accesses
    return {**reads, "all arrays": sum(reads.values())}


def main(given: str, told: str) -> None:
    """Do the tasks of the file ``given``, and write their results to ``told``."""
    tasks, simulated, seconds = pickle.loads(Path(given).read_bytes())
    asked: list[Task[Result]] = tasks
    results = [result for _, result in isolate.run(asked, simulated, seconds)]
    Path(told).write_text(json.dumps(msgspec.to_builtins(results)), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
