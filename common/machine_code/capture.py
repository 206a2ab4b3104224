"""Runs a step's functions on the host, and answers what it asks of Numba CUDA there: arrays, launches."""

import inspect
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from common.catalog import device, limits
from common.catalog.problems import Problem

MULTIPROCESSORS = 132  # of the card that steps are told of where none is: an H200's


# --- a step on one problem ---


class BoundStep:
    """One step bound to one problem: ``allocate`` comes first, then ``prepare``, then ``launch`` as often as wanted;
    ``run`` does all three. ``tile``: constants that ``launch`` takes by keyword, and the others if they take any.
    ``workspace`` and ``prepared`` are what ``launch`` gets last, and in the weights' place."""

    def __init__(self, module: ModuleType, problem: Problem, tile: dict[str, int] | None = None) -> None:
        self.module, self.problem, self.tile = module, problem, tile or {}
        self.workspace: Any = None
        self.prepared: Any = None

    def allocate(self) -> None:
        self.workspace = self._made("workspace", None)

    def prepare(self, weight: Any) -> None:
        """Prepare the weights, if the step does; else they go to ``launch`` as they are."""
        self.prepared = self._made("prepare", weight, weight)

    def _made(self, name: str, without: Any, *given: Any) -> Any:
        make = getattr(self.module, name, None)
        if make is None:
            return without
        return make(*given, self.problem, **(self.tile if self.tile and _takes_keywords(make) else {}))

    def arguments(self, x: Any, y: Any) -> tuple[Any, ...]:
        """What ``launch`` takes in order, for an input and an output of the problem's shapes."""
        last = getattr(self.problem, "geometry", None), self.workspace
        return (x, self.prepared, y, *(item for item in last if item is not None))

    def launch(self, x: Any, y: Any) -> None:
        self.module.launch(*self.arguments(x, y), **self.tile)

    def run(self, x: Any, weight: Any, y: Any) -> None:
        self.allocate()
        self.prepare(weight)
        self.launch(x, y)


def takes_tile(module: ModuleType, tile: Mapping[str, int]) -> bool:
    """Does ``launch`` take these tile constants as keywords, as in steps that choose a tile for each problem?"""
    return _takes_keywords(module.launch) or inspect.signature(module.launch).parameters.keys() >= tile.keys()


def _takes_keywords(function: Callable[..., Any]) -> bool:
    return any(p.kind is p.VAR_KEYWORD for p in inspect.signature(function).parameters.values())


# --- what it asks of Numba ---


@contextmanager
def replaced(target: Any, **values: Any) -> Iterator[None]:
    """While open, these attributes of ``target``, a module, a class or another object, have these values."""
    before = {name: vars(target)[name] for name in values if name in vars(target)}  # a static method as it lies there
    try:
        for name, value in values.items():
            setattr(target, name, value)
        yield
    finally:
        for name in values:
            if name in before:
                setattr(target, name, before[name])
            elif name in vars(target):
                delattr(target, name)


class HostArray(np.ndarray[Any, Any]):
    """Stands in for a device array where there is no device. Copies raise what Numba's do."""

    stream = 0

    def copy_to_host(self, ary: Any = None, stream: Any = None) -> np.ndarray[Any, Any]:
        if ary is None:
            return np.array(self)
        _require_alike(self, ary, *(("shape", "strides") if self.size else ("shape",)))
        np.copyto(ary, np.asarray(self))
        return np.asarray(ary)

    def copy_to_device(self, ary: Any, stream: Any = None) -> None:
        given = np.asarray(ary)
        if given.size:
            order_of(self)  # which raises
            _require_alike(self, given, "shape")
            self[...] = given.reshape(self.shape)

    def is_c_contiguous(self) -> bool:
        return self.flags.c_contiguous

    def is_f_contiguous(self) -> bool:
        return self.flags.f_contiguous


def _require_alike(one: Any, other: Any, *names: str) -> None:
    if one.dtype != other.dtype:
        raise TypeError(f"incompatible dtype: {one.dtype} vs. {other.dtype}")
    for name in names:
        if getattr(np.asarray(one).squeeze(), name) != getattr(np.asarray(other).squeeze(), name):
            raise ValueError(f"incompatible {name}: {getattr(one, name)} vs. {getattr(other, name)}")


def order_of(array: Any, whole: bool = True) -> str:
    """Raises ValueError, with Numba's words, for a ``whole`` array that is contiguous in no order."""
    if whole and not array.flags.forc:
        said = "Array contains non-contiguous buffer and cannot be transferred as a single memory region. Please "
        raise ValueError(f"{said}ensure contiguous buffer with numpy .ascontiguousarray()")
    return "F" if array.flags.fnc else "C"


def arrays(allocate: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """What makes arrays, in place of ``numba.cuda``'s: by ``allocate(shape, dtype, values or None, order)``."""

    def empty(shape: Any, dtype: Any = np.float64, strides: Any = None, order: str = "C", **_: Any) -> Any:
        return allocate(shape, dtype, None, order)

    def zeros(shape: Any, dtype: Any = np.float64, strides: Any = None, order: str = "C", **_: Any) -> Any:
        return allocate(shape, dtype, np.zeros(shape, dtype), order)

    def to_device(obj: Any, stream: Any = 0, copy: bool = True, to: Any = None) -> Any:
        if to is not None:
            to.copy_to_device(obj)
            return to
        values = np.asanyarray(obj)
        own = values[tuple(slice(None) if stride else 0 for stride in values.strides)] if values.size else values
        held = allocate(own.shape, own.dtype, own, order_of(own))
        return held if held.ndim == values.ndim else as_strided(held, values.shape, values.strides, subok=True)

    return {
        "device_array": empty, "managed_array": zeros, "mapped_array": zeros, "to_device": to_device,
        "device_array_like": lambda ary, **_: empty(ary.shape, ary.dtype, order=order_of(ary, False)),
        "mapped_array_like": lambda ary, **_: zeros(ary.shape, ary.dtype, order=order_of(ary, False)),
        "pinned_array": lambda shape, dtype=np.float64, strides=None, order="C": np.zeros(shape, dtype, order),
        "pinned_array_like": np.zeros_like,
    }  # fmt: skip


@contextmanager
def launches(called: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """While open, calling a kernel on the host is ``called(launched, *arguments)``; gives what it was before.
    ``launched`` is what Numba makes of ``kernel[grid, block]``; its ``sharedmem`` is in bytes."""
    from numba.cuda.dispatcher import _LaunchConfiguration as owner

    before = owner.__call__
    with replaced(owner, __call__=called):
        yield before


def bounds(kernel: Any) -> tuple[int, ...]:
    """The kernel's ``launch_bounds``: threads, perhaps resident blocks and blocks of a cluster; empty without."""
    given = kernel.targetoptions.get("launch_bounds") or ()
    return tuple(given) if isinstance(given, tuple | list) else (given,)


@contextmanager
def no_device(multiprocessors: int = MULTIPROCESSORS, card: Callable[[], Any] | None = None) -> Iterator["Device"]:
    """While open, nothing that a step asks of ``numba.cuda`` on the host needs a driver or a GPU, but for arrays and
    launches. Gives the device, an H200 that nobody has; ``card``: in place of it, what a step finds as its card.
    :mod:`common.catalog.limits` refuses launches."""
    from numba import cuda
    from numba.cuda import dispatcher

    def configured(self: Any, given: Any) -> Any:
        grid, block, shared = limits.require_configuration(self.py_func.__name__, given)
        hash(given)  # as Numba's memory of configurations does, which takes no list
        # not through ``configure``, which would keep it for launches on a GPU
        return dispatcher._LaunchConfiguration(self, grid, block, 0, shared)

    def by_name(self: Any, griddim: Any, blockdim: Any, stream: Any = 0, sharedmem: Any = 0) -> Any:
        return configured(self, (griddim, blockdim, stream, sharedmem))

    def unconfigured(self: Any, *_: Any, **named: Any) -> None:
        limits.require_kernel(self.py_func.__name__, bool(self.targetoptions.get("device")), None, named)

    own = Device(multiprocessors)
    with (
        replaced(
            dispatcher.CUDADispatcher, __getitem__=configured, configure=by_name, __call__=unconfigured,
            specialize=lambda self, *_: self,
        ),
        replaced(dispatcher._LaunchConfiguration, __init__=configure),
        replaced(dispatcher.ForAll, _compute_thread_per_block=lambda self, _: self.thread_per_block or 128),
        replaced(
            cuda, synchronize=lambda: None, close=lambda: None, is_available=lambda: True,
            pinned=lambda *_: nullcontext(), defer_cleanup=nullcontext, get_current_device=card or (lambda: own),
            current_context=lambda *_: own, select_device=lambda *_: own, **limits.STREAMS,
        ),
    ):  # fmt: skip
        yield own


MemoryInfo = namedtuple("MemoryInfo", "free total")  # in bytes


class Device:
    """A card, its context, and the list of all cards: an H200 with the limits of a compute capability, else of the
    played card, and what is ``told``. ``asked``: did one ask how many multiprocessors it has?"""

    name, id, compute_capability = "NVIDIA H200", 0, (9, 0)
    WARP_SIZE, MAX_THREADS_PER_BLOCK, L2_CACHE_SIZE = 32, limits.MAX_THREADS_PER_BLOCK, 60 << 20
    MAX_BLOCK_DIM_X, MAX_BLOCK_DIM_Y, MAX_BLOCK_DIM_Z = limits.MAX_BLOCK
    MAX_GRID_DIM_X, MAX_GRID_DIM_Y, MAX_GRID_DIM_Z = limits.MAX_GRID
    MAX_THREADS_PER_MULTI_PROCESSOR, MAX_REGISTERS_PER_BLOCK = 2048, limits.REGISTERS
    MAX_SHARED_MEMORY_PER_BLOCK, TOTAL_CONSTANT_MEMORY = limits.MAX_SHARED, limits.MAX_CONSTANT
    CLOCK_RATE, MEMORY_CLOCK_RATE, GLOBAL_MEMORY_BUS_WIDTH = 1_980_000, 2_619_000, 5120
    supports_float16 = supports_bfloat16 = supports_fp8 = True

    def __init__(self, multiprocessors: int = MULTIPROCESSORS, capability: str | None = None, **told: object) -> None:
        has = limits.limits(capability or device.played() or device.USUAL_CARD)
        self.asked, self._multiprocessors = False, multiprocessors
        self.MAX_SHARED_MEMORY_PER_MULTIPROCESSOR = has.shared_bytes
        self.RESERVED_SHARED_MEMORY_PER_BLOCK = has.reserved_bytes
        self.device, self.lst = self, [self]
        self.deallocations = SimpleNamespace(clear=self.synchronize)
        vars(self).update(told)

    @property
    def MULTIPROCESSOR_COUNT(self) -> int:  # noqa: N802 - the driver's name
        self.asked = True
        return self._multiprocessors

    def get_memory_info(self) -> Any:
        return MemoryInfo(free=140 << 30, total=141 << 30)

    def synchronize(self) -> None:
        pass

    def __getitem__(self, number: int) -> "Device":
        return self.lst[number]

    def __len__(self) -> int:
        return 1

    def __enter__(self) -> "Device":
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    reset, get_primary_context, current = synchronize, __enter__, property(__enter__)


def configure(self: Any, kernel: Any, griddim: Any, blockdim: Any, stream: Any = 0, sharedmem: Any = 0) -> None:
    """A launch's configuration, made without asking the driver: ``stream`` is as given."""
    self.dispatcher, self.griddim, self.blockdim = kernel, griddim, blockdim
    self.stream, self.sharedmem = stream, sharedmem
    self.pre_launch_callbacks, self._kernel_launch_config_sensitive = [], None


# --- with a GPU ---
# CUDA C++ Programming Guide, "Shared Memory" of compute capability 8.x and 9.0: kernels that rely on more than 48 KiB
# for each block use dynamic shared memory and opt in, by cudaFuncSetAttribute there and cuKernelSetAttribute here.


def opt_in() -> None:
    """From now on a launch that the GPU cannot make, or the played card, is refused with LaunchLimitError before the
    driver sees it; steps find the played card's limits; and launches may have more than 48 KiB, and clusters."""
    from numba.cuda import dispatcher
    from numba.cuda.cudadrv import driver

    launch, configure = dispatcher._Kernel.launch, dispatcher.CUDADispatcher.__getitem__
    if getattr(launch, "opts_in", False):
        return
    has = device.bounds()
    if device.played():
        driver.Device.MAX_SHARED_MEMORY_PER_MULTIPROCESSOR = limits.limits(str(has)).shared_bytes
        driver.Device.RESERVED_SHARED_MEMORY_PER_BLOCK = limits.limits(str(has)).reserved_bytes

    def configured(self: Any, given: Any) -> Any:
        limits.require_configuration(self.py_func.__name__, given)
        return configure(self, given)

    def tell(function: Any, attribute: str, value: int) -> None:
        named = getattr(driver.binding.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{attribute}")
        driver.driver.cuKernelSetAttribute(named, value, function.handle, function.device.id)

    def as_cluster(cluster: int, function: Any) -> Any:
        make = dispatcher.LaunchConfig
        try:
            for axis, blocks in {"WIDTH": cluster, "HEIGHT": 1, "DEPTH": 1}.items():
                tell(function, f"REQUIRED_CLUSTER_{axis}", blocks)
        except driver.CudaAPIError:  # some drivers want to hear it at the launch, and the grid counted in clusters
            counted = {"cluster": (cluster, 1, 1)}
            return lambda grid, **others: make(grid=(grid[0] // cluster, *grid[1:]), **counted, **others)
        return make

    def launched(self: Any, args: Any, griddim: Any, blockdim: Any, stream: Any = 0, sharedmem: int = 0) -> Any:
        cluster = limits.cluster_of(getattr(self, "launch_bounds", None))
        config: AbstractContextManager[None] = nullcontext()
        limits.require_launch(tuple(griddim), tuple(blockdim), sharedmem, has, cluster)
        if sharedmem or cluster > 1:
            function = self._codelibrary.get_cufunc()
            limits.require_shared(function.attrs.shared, sharedmem, has)
            if function.attrs.shared + sharedmem > limits.MAX_SHARED:
                tell(function, "MAX_DYNAMIC_SHARED_SIZE_BYTES", sharedmem)
            if cluster > 1:
                config = replaced(dispatcher, LaunchConfig=as_cluster(cluster, function))
        try:
            with config:
                return launch(self, args, griddim, blockdim, stream, sharedmem)
        except Exception as error:
            if "OUT_OF_RESOURCES" in str(error):
                limits.require_registers(tuple(blockdim), self.regs_per_thread)
            raise

    launched.opts_in = True  # type: ignore[attr-defined]
    dispatcher._Kernel.launch, dispatcher.CUDADispatcher.__getitem__ = launched, configured
