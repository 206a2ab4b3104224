"""A step file in the simulator, with an eye on its operands: during ``launch`` only kernels may touch them.

Runs in the submission's own process. In the simulator everything is Python, so what is noted here is a matter of
good faith; :mod:`common.grading.ptx_plan` is the way that needs none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import Any

import numpy as np
from numba import cuda
from numba.cuda.simulator import kernel
from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

from common.book.boundstep import BoundStep
from common.book.patching import replaced
from common.book.problems import Problem
from common.code import capture, tensormaps
from common.grading.audit import Audit, identity
from common.grading.messages import Launched

ALIGNMENT = 256


class Handed(FakeCUDAArray):  # type: ignore[misc]
    """An operand as ``launch`` gets it. During a launch and outside a kernel, a look at its elements is noted."""

    stage: SimulatedRun

    @property
    def _ary(self) -> Any:
        if self.stage.audit.caller():
            self.stage.accessed("._ary")
        return self._raw

    @_ary.setter
    def _ary(self, value: Any) -> None:
        self._raw = value

    def _like(self, array: Any) -> Handed:
        other = Handed(array, self.stream)
        other.stage = self.stage
        return other

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
        return FakeCUDAArray(self._raw).copy_to_host(*args, **options)

    def copy_to_device(self, source: Any, *args: Any, **options: Any) -> Any:
        self.stage.accessed(".copy_to_device()")
        return FakeCUDAArray(self._raw).copy_to_device(getattr(source, "_raw", source), *args, **options)

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


class SimulatedRun:
    """One step file bound to one problem. The buffers are flat, margins included."""

    def __init__(self, module: ModuleType, problem: Problem, audit: Audit, margin: int) -> None:
        self.step, self.audit = BoundStep(module, problem), audit
        self.inside = False  # a kernel is running
        self.launched: list[Launched] = []
        self.known: list[tuple[int, int]] = []
        self.buffers = [_aligned(int(np.prod(shape)) + 2 * margin, dtype) for shape, dtype in problem.operands]
        self.arrays = []
        for buffer, (shape, _) in zip(self.buffers, problem.operands, strict=True):
            array = Handed(buffer[margin : len(buffer) - margin].reshape(shape))
            array.stage = self
            self.arrays.append(array)
            self._know(buffer)
        with self._noting_allocations():
            self.step.allocate()
        self._last_y = self.buffers[2].copy()

    def prepare(self) -> None:
        """Call the file's ``prepare``, if it has one. The input and the output hold nothing yet."""
        for buffer in (self.buffers[0], self.buffers[2]):
            buffer[:] = 0
        if getattr(self.step.module, "prepare", None):
            self.audit.phase = "prepare"
        with self._noting_allocations(), self._observed():
            self.step.prepare(self.arrays[1])

    def launch(self) -> list[Launched]:
        """Call ``launch``; returns the kernels it started."""
        self.audit.phase, self.launched = "launch", []
        self._last_y = self.buffers[2].copy()
        with self._noting_allocations(), self._observed():
            self.step.launch(self.arrays[0], self.arrays[2])
        self._outside_kernels()
        self.audit.phase = "import"
        return self.launched

    def accessed(self, how: str) -> None:
        """An operand's elements were asked for; in a launch only kernels may."""
        if self.audit.phase == "launch" and not self.inside:
            self.audit.note("host_access", f"launch reaches into an operand from the host ({how}): only kernels may")

    def started(self, fake: Any, arguments: tuple[Any, ...]) -> None:
        """A kernel is about to run."""
        if self.audit.phase != "launch":
            return
        self._outside_kernels()
        grid, block = (tuple(map(int, point)) for point in (fake.grid_dim, fake.block_dim))
        self.launched.append((fake.fn.__name__, grid, block, *identity(fake.fn)))
        for array in arguments:
            array = array.array if tensormaps.is_map(array) else array
            raw = getattr(array, "_raw", getattr(array, "_ary", array))
            if isinstance(raw, np.ndarray) and not self._knows(raw):
                said = f"launch hands {fake.fn.__name__} an array that neither prepare nor workspace made"
                self.audit.note("foreign_array", said)

    def ended(self) -> None:
        """A kernel has run: what the output holds now is its work."""
        self._last_y = self.buffers[2].copy()

    def _outside_kernels(self) -> None:
        if not np.array_equal(self.buffers[2].view(np.uint8), self._last_y.view(np.uint8)):
            self.audit.note("host_write", "the output changed while no kernel ran: launch wrote it from the host")
            self._last_y = self.buffers[2].copy()

    def _know(self, array: Any) -> None:
        raw = getattr(array, "_raw", getattr(array, "_ary", array))
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
        stage, configure = self, kernel.FakeCUDAKernel.__getitem__

        def called(fake: Any, *arguments: Any) -> Any:
            if fake._device or kernel._kernel_context:
                return call(fake, *arguments)
            stage.started(fake, arguments)
            stage.inside = True
            try:
                return call(fake, *arguments)
            finally:
                stage.inside = False
                stage.ended()

        def configured(fake: Any, configuration: Any) -> Any:
            if len(configuration) > 2 and configuration[2]:
                stage.audit.note("stream", f"{fake.fn.__name__} runs on a stream of its own: use the default stream")
                configuration = (*configuration[:2], 0, *configuration[3:])
            return configure(fake, configuration)

        with (
            capture.launches(called) as call,
            replaced(kernel.FakeCUDAKernel, __getitem__=configured),
            capture.host(stream=object),  # a launch on it is noted
        ):
            yield


def _aligned(count: int, dtype: np.dtype[Any]) -> Any:
    """Zeros that start where a device array would, on a boundary of 256 bytes."""
    size = count * dtype.itemsize
    raw = np.zeros(size + ALIGNMENT, np.uint8)
    skip = -raw.__array_interface__["data"][0] % ALIGNMENT
    return raw[skip : skip + size].view(dtype)
