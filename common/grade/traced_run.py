"""A step file, traced, with an eye on its operands: during ``launch`` only kernels may touch them.

Runs in the submission's own process, as Python, so what is noted here is a matter of good faith;
:mod:`common.grade.ptx_plan` is the way that needs none.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import Any

import numpy as np
from numba import cuda
from numba.cuda.dispatcher import CUDADispatcher
from numpy.typing import NDArray

from common.catalog.boundstep import BoundStep
from common.catalog.patching import replaced
from common.catalog.problems import Problem
from common.grade.audit import Audit, identity
from common.grade.messages import Launched
from common.machine_code import capture, tensormaps
from common.trace.device_arrays import DeviceArray
from common.trace.trace import Tracer


class Handed:
    """An operand as ``launch`` gets it. During a launch and outside a kernel, a look at its elements is noted."""

    def __init__(self, array: Any, stage: TracedRun) -> None:
        self._raw, self.stage = array, stage

    def _like(self, array: Any) -> Handed:
        return Handed(array, self.stage)

    def __getattr__(self, name: str) -> Any:
        if name in ("__array_struct__", "__array__"):
            self.stage.accessed("numpy.asarray")
        if name in ("stage", "_raw"):
            raise AttributeError(name)
        return getattr(self._raw, name)

    def __getitem__(self, index: Any) -> Any:
        value = self._raw[index]
        if isinstance(value, np.ndarray):
            return self._like(value)
        self.stage.accessed("[...]")
        return value

    def __setitem__(self, index: Any, value: Any) -> None:
        self.stage.accessed("[...] = ...")
        self._raw[index] = value

    def copy_to_host(self, *args: Any, **options: Any) -> Any:
        self.stage.accessed(".copy_to_host()")
        return self._raw.copy_to_host(*args, **options)

    def copy_to_device(self, source: Any, *args: Any, **options: Any) -> Any:
        self.stage.accessed(".copy_to_device()")
        return self._raw.copy_to_device(getattr(source, "_raw", source), *args, **options)

    def __len__(self) -> int:
        return len(self._raw)

    def bind(self, stream: Any = 0) -> Handed:
        return self._like(self._raw)

    def transpose(self, axes: Any = None) -> Handed:
        return self._like(np.transpose(self._raw, axes))

    def ravel(self, *args: Any, **options: Any) -> Handed:
        return self._like(self._raw.ravel(*args, **options))

    def reshape(self, *args: Any, **options: Any) -> Handed:
        return self._like(self._raw.reshape(*args, **options))

    def view(self, *args: Any, **options: Any) -> Handed:
        return self._like(self._raw.view(*args, **options))


class TracedRun:
    """One step file bound to one problem. The buffers are flat, margins included."""

    def __init__(self, module: ModuleType, problem: Problem, audit: Audit, margin: int) -> None:
        self.step, self.audit, self.tracer = BoundStep(module, problem), audit, Tracer()
        self.inside = False  # a kernel is running
        self.launched: list[Launched] = []
        self.known: list[tuple[int, int]] = []
        self.buffers: list[NDArray[Any]] = []
        self.arrays: list[Handed] = []
        with self.tracer:
            for shape, dtype in problem.operands:
                whole: DeviceArray = cuda.to_device(np.zeros(int(np.prod(shape)) + 2 * margin, dtype))
                self.arrays.append(Handed(whole[margin : len(whole) - margin].reshape(shape), self))
                self.buffers.append(np.asarray(whole))
                self._know(whole)
            with self._noting_allocations():
                self.step.allocate()
        self._last_y = self.buffers[2].copy()

    def prepare(self) -> None:
        """Call the file's ``prepare``, if it has one. The input and the output hold nothing yet."""
        for buffer in (self.buffers[0], self.buffers[2]):
            buffer[:] = 0
        if getattr(self.step.module, "prepare", None):
            self.audit.phase = "prepare"
        with self.tracer, self._noting_allocations(), self._observed():
            self.step.prepare(self.arrays[1])

    def launch(self) -> list[Launched]:
        """Call ``launch``; returns the kernels it started."""
        self.audit.phase, self.launched = "launch", []
        self.tracer.order = "backward" if self.tracer.order == "forward" else "forward"
        self._last_y = self.buffers[2].copy()
        with self.tracer, self._noting_allocations(), self._observed():
            self.step.launch(self.arrays[0], self.arrays[2])
        self._outside_kernels()
        self.audit.phase = "import"
        return self.launched

    def accessed(self, how: str) -> None:
        """An operand's elements were asked for; in a launch only kernels may."""
        if self.audit.phase == "launch" and not self.inside:
            self.audit.note("host_access", f"launch reaches into an operand from the host ({how}): only kernels may")

    def started(self, launched: Any, arguments: tuple[Any, ...]) -> None:
        """A kernel is about to run."""
        if self.audit.phase != "launch":
            return
        self._outside_kernels()
        function = launched.dispatcher.py_func
        grid, block = (tuple(map(int, point)) for point in (launched.griddim, launched.blockdim))
        self.launched.append((function.__name__, grid, block, *identity(function)))
        for array in arguments:
            array = array.array if tensormaps.is_map(array) else array
            raw = getattr(array, "_raw", array)
            if isinstance(raw, np.ndarray) and not self._knows(raw):
                said = f"launch hands {function.__name__} an array that neither prepare nor workspace made"
                self.audit.note("foreign_array", said)

    def ended(self) -> None:
        """A kernel has run: what the output holds now is its work."""
        self._last_y = self.buffers[2].copy()

    def _outside_kernels(self) -> None:
        if not np.array_equal(self.buffers[2].view(np.uint8), self._last_y.view(np.uint8)):
            self.audit.note("host_write", "the output changed while no kernel ran: launch wrote it from the host")
            self._last_y = self.buffers[2].copy()

    def _know(self, array: Any) -> None:
        raw = getattr(array, "_raw", array)
        start = raw.__array_interface__["data"][0]
        self.known.append((start, start + raw.nbytes))

    def _knows(self, raw: Any) -> bool:
        start = raw.__array_interface__["data"][0]
        return any(low <= start < high for low, high in self.known)

    def _noting_allocations(self) -> AbstractContextManager[None]:
        """Arrays made in ``prepare`` and ``workspace`` are known; those made in ``launch`` are noted."""

        def wrapped(name: str, make: Callable[..., Any]) -> Callable[..., Any]:
            def allocate(*args: Any, **options: Any) -> Any:
                array = make(*args, **options)
                if self.audit.phase == "launch":
                    self.audit.note("allocates", f"launch calls cuda.{name}: arrays come from prepare or workspace")
                else:
                    self._know(array)
                return array

            return allocate

        names = ("to_device", "device_array", "device_array_like", "mapped_array", "pinned_array")
        return capture.host(**{name: wrapped(name, getattr(cuda, name)) for name in names})

    @contextmanager
    def _observed(self) -> Iterator[None]:
        """While it lasts, kernels report to this run."""
        stage, configure = self, CUDADispatcher.__getitem__

        def called(launched: Any, *arguments: Any) -> Any:
            stage.started(launched, arguments)
            stage.inside = True
            try:
                return call(launched, *map(_bare, arguments))
            finally:
                stage.inside = False
                stage.ended()

        def configured(dispatcher: Any, given: Any) -> Any:
            if isinstance(given, tuple) and len(given) > 2 and given[2]:
                name = dispatcher.py_func.__name__
                stage.audit.note("stream", f"{name} runs on a stream of its own: use the default stream")
                given = (*given[:2], 0, *given[3:])
            return configure(dispatcher, given)

        with (
            capture.launches(called) as call,
            replaced(CUDADispatcher, __getitem__=configured),
            capture.host(stream=object),  # a launch on it is noted
        ):
            yield


def _bare(argument: Any) -> Any:
    """An argument of a kernel as the tracer takes it."""
    if isinstance(argument, tuple):
        return getattr(argument, "_make", tuple)(map(_bare, argument))
    if tensormaps.is_map(argument):
        argument = copy.copy(argument)
        argument.array = _bare(argument.array)
    return getattr(argument, "_raw", argument) if isinstance(argument, Handed) else argument
