"""Runs a Numba CUDA program without a GPU: its kernels in the tracer, its host code as it is. Numba compiles each
kernel for the arguments of its launches: what it refuses is refused here, too, and its types say where float64 comes
in. What the tracer does not know ends the program, and is said. What the program finds in ``numba.cuda`` does
everything at once and in order, on the CPU; nothing is timed."""

import ast
import builtins
import importlib
import inspect
import itertools
import linecache
import math
import os
import re
import runpy
import sys
import textwrap
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import lru_cache, partial, reduce
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from common.catalog import limits
from common.explain import faults
from common.explain.faults import Fault, cut
from common.machine_code import capture
from common.machine_code.capture import replaced
from common.run import child
from common.run.messages import Status
from common.trace import trace
from common.trace.functions import scope_of
from common.trace.messages import ScriptResult, TracedKernel, TraceOptions
from common.trace.state import MistakeError, TraceError
from common.trace.translate import waits

_RECORDED = 3  # launches of a kernel whose accesses are counted
_OF_THE_DRIVER = {"CudaSupportError", "CudaAPIError", "NvvmSupportError", "NvvmError", "CUDAError"}


class EndError(BaseException):
    """The program ends: the tracer does not know what it does, or it was to stop at the first fault. No
    ``except Exception`` of the program hides it."""


class Program:
    """Stands in for a GPU while a program runs; then has what its kernels did."""

    def __init__(self, stop: bool = False, kept: int = 0) -> None:
        self.tracer = trace.Tracer(recording=True)
        self.tracer.options = TraceOptions(kept=kept)
        self.stop = stop
        self.notes: set[str] = set()  # these three: as ScriptResult has them
        self.unknown: list[str] = []
        self.faults: list[Fault] = []
        self._launched: dict[Any, Any] = {}  # kernels, by their functions
        self._lock = threading.RLock()  # programs may have threads

    @contextmanager
    def standing_in(self) -> Iterator[None]:
        """Meanwhile the program's kernels, arrays and streams are the tracer's."""
        from numba import cuda
        from numba.cuda import api, dispatcher, vectorizers
        from numba.cuda.cudadrv import devices

        with (
            capture.no_device() as gpu, replaced(cuda, **_functions(gpu)), _as_numba_cuda_mlir(),
            capture.launches(lambda *given, **named: self.launch(*given, **named)),
            replaced(
                dispatcher.CUDADispatcher, compile=lambda kernel, types: self.compile(kernel, types),
                get_max_threads_per_block=lambda *_: limits.MAX_THREADS_PER_BLOCK,
            ),
            replaced(
                trace.DeviceArray, said=self.notes, __cuda_ndarray__=True,
                __cuda_array_interface__=property(trace.interface),
            ),
            replaced(dispatcher, get_context=lambda *_: gpu), replaced(api, current_context=lambda *_: gpu),
            replaced(devices, get_context=lambda *_: gpu, gpus=gpu),
            replaced(cuda.runtime, get_version=lambda: (12, 8)), replaced(builtins, exec=_remembered),
            replaced(vectorizers.CUDAUFuncMechanism, broadcast_device=_spread),
            replaced(
                vectorizers.CUDAGeneralizedUFunc, _broadcast_scalar_input=_spread, _broadcast_add_axis=_spread
            ),
        ):  # fmt: skip
            yield

    def compile(self, kernel: Any, signature: Any) -> Any:
        """In place of Numba's own, which asks the driver: types and lowers the kernel for these arguments."""
        from numba.cuda.compiler import compile_cuda
        from numba.cuda.core import sigutils
        from numba.cuda.types import void

        types, _ = sigutils.normalize_signature(signature)
        if types not in kernel.overloads:
            options = {name: bool(kernel.targetoptions.get(name)) for name in ("debug", "lineinfo", "fastmath")}
            with child.stage(child.COMPILE):
                typed = compile_cuda(kernel.py_func, void, types, cc=capture.Device.compute_capability, **options)
            kernel.overloads[types] = Compiled(typed)
        return kernel.overloads[types]

    def launch(self, launched: Any, *arguments: Any, **named: Any) -> None:
        """In place of ``kernel[grid, block](...)``: runs the launch in the tracer; raises EndError if the program is
        to end here, and with ``debug=True`` what a thread raises."""
        kernel, function = launched.dispatcher, launched.dispatcher.py_func
        launch, asked = trace.launch_of(launched, arguments, named, _has_clusters(function)), kernel.targetoptions
        if asked.get("extensions"):
            self.unknown.append(f"{function.__name__}: extensions=... of cuda.jit is not known to the tracer")
            raise EndError
        with self._lock:
            launch = replace(launch, arguments=self._fitted(kernel, tuple(map(trace.plain, arguments))))
            ledger = self.tracer.ledgers.get(function)
            self.tracer.recording = ledger is None or len(ledger.launches) < _RECORDED
            self._launched[function] = kernel
            try:
                with child.stage(child.KERNEL):
                    self.tracer.run(launch, alone=_waits(function))
            except TraceError as error:
                endless = isinstance(error, MistakeError) and "goes on for more than" in str(error)
                if not endless:  # another mistake is none, as Numba has compiled it
                    self.unknown.append(str(error))
                    raise EndError from error
                self.stop = True
            finally:
                self.tracer.print(function)
            if asked.get("debug"):  # then the host is told what the first thread raises
                self._raise(function)
            if self.stop and any(ledger.faults for ledger in self.tracer.ledgers.values()):
                raise EndError

    def _raise(self, function: Any) -> None:
        """Raise on the host what a thread has raised, with the thread's and the block's indices, as Numba does."""
        faults = self.tracer.ledgers[function].faults
        for key in [key for key, one in faults.items() if one.kind == "raises"]:
            fault = faults.pop(key)
            said = re.match(r"(\w+)(?:\((.*)\))? is raised", fault.what)
            name, text = (said[1], said[2] or "") if said else ("RuntimeError", "")
            kind = getattr(builtins, name, None) or function.__globals__.get(name, RuntimeError)
            raise kind(f"tid={list(fault.thread or ())} ctaid={list(fault.block or ())}: {text}")

    def _fitted(self, kernel: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments as the signature has them that suits them best; raises TypeError as Numba does."""
        from numba.cuda.typing.typeof import Purpose, typeof

        given = tuple(typeof(one, Purpose.argument) for one in arguments)
        if kernel.specialized:  # then Numba does not look at the types
            types = next(iter(kernel.overloads))
        elif kernel._can_compile:
            self.compile(kernel, given)
            types = given
        else:
            name, cases = kernel.py_func.__name__, [made.signature for made in kernel.overloads.values()]
            fitting = kernel.typingctx.resolve_overload(name, cases, given, {})
            if fitting is None:
                known = "; ".join(str(types) for types in kernel.overloads)
                raise TypeError(f"No matching definition for argument type(s) {', '.join(map(str, given))}: "
                                f"{name} is compiled for {known}")  # fmt: skip
            types = fitting.args
        return tuple(trace.fitted(one, kind) for one, kind in zip(arguments, types, strict=False))

    def kernels(self) -> list[TracedKernel]:
        """What each kernel did, all of its launches together. Of its faults some are notes, or nothing, in a program
        of anybody's (:func:`_looked_at`, :func:`_meant`)."""
        found = self.tracer.reports()
        for kernel, function in zip(found, self.tracer.ledgers, strict=True):
            meant = [one for one in kernel.faults if _meant(one, kernel.file)]
            looks = [one for one in kernel.faults if _looked_at(one, kernel.file)]
            kernel.faults = [one for one in kernel.faults if one not in meant + looks]
            kernel.notes |= {f"line {one.line}: {one.what}; what is read may be old or new": 1 for one in looks}
            text = "computes in float64, as a float32 meets one, or an integer: most GPUs have few units for it"
            for line in sorted(set(_widened(self._launched[function]))):
                kernel.notes.pop(f"line {line} multiplies and adds in float64", None)
                kernel.notes[f"line {line} {text}"] = 1
        return found


class Compiled:
    """A kernel compiled for one signature, as programs and Numba ask it: its types, and its entry point's name."""

    def __init__(self, typed: Any) -> None:
        self.typed, self.signature, self.entry_point = typed, typed.signature, typed.entry_point
        self._type_annotation = typed.type_annotation

    def max_cooperative_grid_blocks(self, blockdim: Any, dynsmemsize: int = 0) -> int:
        threads = int(np.prod(blockdim))
        return limits.occupancy("9.0", threads, 0, dynsmemsize).blocks * capture.MULTIPROCESSORS


def _called(kernel: Any) -> list[Any]:
    """A kernel, and the functions that it calls, and those that they call."""
    found = [kernel]
    for one in found:  # which grows meanwhile
        function = getattr(one, "py_func", one)
        scope, code = scope_of(function), function.__code__
        named = [scope[name] for name in code.co_names + code.co_freevars if name in scope]
        found += [one for one in named if inspect.isfunction(getattr(one, "py_func", one)) and one not in found]
    return found


def _widened(kernel: Any) -> Iterator[int]:
    """The lines of a kernel, and of what it calls, in which a float32 becomes a float64."""
    for made in [made for one in _called(kernel) for made in getattr(one, "overloads", {}).values()]:
        annotated = getattr(made, "typed", made).type_annotation
        for one in [one for block in annotated.blocks.values() for one in block.body]:
            value: Any = getattr(one, "value", None)
            if getattr(value, "op", "") in ("binop", "inplace_binop"):
                to, *sides = (str(annotated.typemap.get(side.name)) for side in (one.target, value.lhs, value.rhs))
                if to == "float64" and "float32" in sides:
                    yield one.loc.line


@lru_cache(maxsize=256)
def _has_clusters(function: Callable[..., Any]) -> bool:
    """Does it call what is there for clusters?"""
    codes = (getattr(one, "py_func", one).__code__ for one in _called(function))
    return any("cluster" in name for code in codes for name in code.co_names)


@lru_cache(maxsize=256)
def _waits(function: Callable[..., Any]) -> bool:
    """May its blocks wait for each other in a loop? Then they run one after the other."""
    for one in _called(function):
        with suppress(OSError, SyntaxError):
            tree = ast.parse(textwrap.dedent(inspect.getsource(getattr(one, "py_func", one))))
            loops = [node for node in ast.walk(tree) if isinstance(node, ast.While)]
            if any("atomic" in ast.unparse(node) or waits(node) for node in loops):
                return True
    return False


def _meant(fault: Fault, file: str) -> bool:
    """Is a negative index one that is written as such, ``a[-1]`` or ``a[-i]``, which counts from the end?"""
    text = linecache.getline(file, fault.line or 0)
    return fault.kind == "negative-index" and re.search(r"\[([^\[\]]*,)?\s*-", text) is not None


def _looked_at(fault: Fault, file: str) -> bool:
    """Does a thread only look at an element, to find out whether, or from what, to change it atomically?"""
    kinds = re.findall(r"(read|changed atomically) by \w+ \([\d, ]*\) in line (\d+)", fault.what)
    lines = [int(line) for kind, line in kinds if kind == "read"]
    return len(kinds) == 2 and len(lines) == 1 and lines[0] in _lines_that_look("".join(linecache.getlines(file)))


def _elements(nodes: Iterable[ast.AST]) -> list[tuple[str, int]]:
    """Of arrays, wherever they stand in these: the array's name, and the line."""
    found = [one for node in nodes for one in ast.walk(node) if isinstance(one, ast.Subscript)]
    return [(ast.unparse(one).partition("[")[0], one.lineno) for one in found]


@lru_cache(maxsize=64)
def _lines_that_look(text: str) -> frozenset[int]:
    """The lines of a source text that read an array's element in a condition, or into a variable, before or beside a
    call that changes the same array atomically: ``if x > best[0]: cuda.atomic.max(best, 0, x)``."""
    found = set[int]()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.If(test) | ast.While(test) | ast.Assign(value=test):  # is it worth it
                looked, names = [test], ""
            case ast.FunctionDef():  # what compare-and-swap is to find, or a minimum is compared with, before that
                inside = [one for one in ast.walk(node) if isinstance(one, ast.If | ast.While | ast.Assign)]
                looked = [one.test for one in inside if not isinstance(one, ast.Assign)]
                looked += [one.value for one in inside if isinstance(one, ast.Assign) and not _elements(one.targets)]
                names = "comp|cas|min|max|nan"
            case _:
                continue
        calls = [one for one in ast.walk(node) if isinstance(one, ast.Call) and one.args]
        calls = [one for one in calls if re.search(rf"\batomic\.({names})", ast.unparse(one.func))]
        calls.sort(key=lambda one: one.lineno)
        last = {ast.unparse(one.args[0]).partition("[")[0]: one.lineno for one in calls}
        found |= {line for array, line in _elements(looked) if line <= last.get(array, 0)}
    return frozenset(found)


def run(path: Path, words: list[str], stop: bool = False, kept: int = 0) -> ScriptResult:
    """Run a program's file as the main program, with these words as its arguments; what came of it."""
    program = Program(stop, kept)
    with replaced(sys, argv=[str(path), *words], path=[str(path.parent), *sys.path]), program.standing_in():
        try:
            with suppress(EndError):
                runpy.run_path(str(path), run_name="__main__")
        except SystemExit as end:
            if end.code not in (None, 0):
                coded = f"the program ends with exit code {int(end.code)}" if isinstance(end.code, int) else end.code
                program.faults.append(Fault("uncaught", str(coded)))
        except BaseException as error:
            _ended(error, path, program)
    sys.stdout.flush()
    kernels = program.kernels()
    faults = [*program.faults, *(fault for kernel in kernels for fault in kernel.faults)]
    status: Status = "wrong" if faults else "unjudged" if program.unknown else "right"
    return ScriptResult(
        status=status, kernels=kernels, others=program.faults, unknown=program.unknown, notes=sorted(program.notes)
    )


def _ended(error: BaseException, path: Path, program: Program) -> None:
    """The program raised what it does not catch: its fault, or what the tracer does not know."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [at for at, one in enumerate(frames) if os.path.realpath(one.filename) == os.path.realpath(path)]
    line = frames[own[-1]].lineno if own else getattr(error, "lineno", None)
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    kinds = {kind.__name__ for kind in type(error).__mro__}
    lacking = isinstance(error, trace.HostError | ImportError | KeyboardInterrupt) or kinds & _OF_THE_DRIVER
    ours = isinstance(getattr(error, "obj", None), trace.DeviceArray | capture.Device | Stream | Compiled)
    if lacking or (ours and getattr(error, "name", "") not in trace.numpy_only()):
        program.unknown.append(f"{path.name}:{line}: {cut(text, 400)}")
        return
    # from Numba's compiler, or of a launch that no GPU takes
    compiled = "NumbaError" in kinds or isinstance(error, limits.LaunchLimitError)
    compiled = compiled or any(frame.name == "compile_cuda" for frame in frames)
    fault = faults.of_error(error, path) if compiled else None
    if fault is None:
        place = rf'{re.escape(path.name)}", line (\d+)'
        said = re.findall(place, str(error))[:1] if compiled else []
        # Numba names a function's returns in any order: the last one is what does not fit those before it
        said = re.findall(f"Return of: (?:(?!Return of: ).)*?{place}", str(error), re.DOTALL) or said
        line = max(map(int, said), default=line)
        code = cut(linecache.getline(str(path), line or 0).strip())
        fault = Fault("not-compiled" if compiled else "uncaught", cut(text, 600), line, code)
        traceback.print_exception(error, limit=(own[0] if own else 0) - len(frames))
    program.faults.append(replace(fault, line=fault.line or line))


# --- what a program finds in numba.cuda on the host: all is done at once and in order, on the CPU ---


class Stream:
    """A stream, or an event: whatever was asked for is done."""

    handle = 0

    def __int__(self) -> int:
        return 0

    def synchronize(self, *_: Any) -> None:
        pass

    record = wait = synchronize

    def auto_synchronize(self) -> Any:
        return nullcontext(self)

    def add_callback(self, callback: Any, arg: Any = None) -> None:
        callback(self, 0, arg)

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Any) -> float:
        trace.DeviceArray.said.add("no kernel was timed: cuda.event_elapsed_time gives nan here")
        return math.nan


def _reduction(functor: Any) -> Any:
    """``cuda.reduce``: the function is applied to one element after the other."""
    function = getattr(functor, "py_func", functor)

    def reduced(arr: Any, size: int | None = None, res: Any = None, init: Any = 0, stream: Any = 0) -> Any:
        if arr.ndim != 1:
            raise TypeError("only support 1D array")
        values = np.array(arr[:size])
        with np.errstate(all="ignore"):
            total = values.dtype.type(reduce(function, values, values.dtype.type(init)))
        if res is None or not len(values):
            return total
        res[:1].copy_to_device(np.array([total], values.dtype))
        return None

    return reduced


_numbers, _exec = itertools.count(), exec


def _remembered(source: Any, scope: Any = None, names: Any = None, /, **options: Any) -> None:
    """``exec`` that keeps the source for :mod:`linecache`: the tracer reads a kernel's source, and a program, or
    Numba's ``vectorize``, may make a kernel from a string."""
    if isinstance(source, str):
        file = f"<text that is executed, {next(_numbers)}>"
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        source = compile(source, file, "exec", dont_inherit=True)
    frame = sys._getframe(1)
    scope, names = (frame.f_globals, frame.f_locals) if scope is None else (scope, scope if names is None else names)
    _exec(source, scope, names, **options)
    for name, made in list(scope.items()) if "__core__" in scope and "__cuda__" in scope else ():
        if name.startswith(("__vectorized_", "__gufunc_")):  # by vectorize: lines are told of the user's function
            made.home = scope["__core__"].py_func.__code__.co_filename


def _spread(self: Any, array: Any, shape: Any) -> Any:
    """An argument of a function of ``vectorize`` or ``guvectorize``, broadcast to this shape: a view of it."""
    wanted = np.broadcast_to(np.asarray(array), shape)
    return as_strided(array, wanted.shape, wanted.strides, subok=True)


@contextmanager
def _mapped(*arrays: Any, **_: Any) -> Iterator[Any]:
    """``cuda.mapped``: arrays of the host as arrays on the device, copied back at the end."""
    made = [trace.allocate(array.shape, array.dtype, array) for array in arrays]
    yield made[0] if len(made) == 1 else made
    for array, held in zip(arrays, made, strict=True):
        np.copyto(array, np.asarray(held))


@contextmanager
def _as_numba_cuda_mlir() -> Iterator[None]:
    """Meanwhile ``import numba_cuda_mlir``, the name of Numba CUDA's successor, imports Numba, whether the successor
    is installed or not."""
    for name in ("random", "libdevice", "extending"):
        importlib.import_module(f"numba.cuda.{name}")
    before = {name: sys.modules.pop(name) for name in [*sys.modules] if name.partition(".")[0] == "numba_cuda_mlir"}
    numba = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "numba"}
    added = {f"numba_cuda_mlir{name[5:]}": module for name, module in numba.items()}
    sys.modules.update(added)
    try:
        yield
    finally:
        for name in added:
            sys.modules.pop(name, None)
        sys.modules.update(before)


def _functions(gpu: capture.Device) -> dict[str, Any]:
    """What stands in for the functions of ``numba.cuda`` that would ask the driver, by their names."""
    stream, made = Stream(), capture.arrays(trace.allocate)
    as_numba_has_it = lambda make, *given, **named: make(*given, **named).view(trace.DeviceNDArray)  # noqa: E731
    for name in ("device_array", "device_array_like", "to_device"):
        made[name] = partial(as_numba_has_it, made[name])
    nothing = lambda *_, **__: None  # noqa: E731
    return {
        **made, "mapped": _mapped, "as_cuda_array": trace.as_cuda_array, "gpus": gpu,
        **{f"{kind}default_stream": lambda: stream for kind in ("", "legacy_", "per_thread_")},
        "stream": Stream, "external_stream": lambda ptr: Stream(), "event": lambda timing=True: Stream(),
        "event_elapsed_time": lambda start, end: start.elapsed_time(end), "cuda_error": nothing,
        "profile_start": nothing, "profile_stop": nothing, "profiling": nullcontext,
        "detect": lambda: print(f"Found 1 CUDA devices\nid 0    {gpu.name}") is None,
        "reduce": _reduction, "Reduce": _reduction,
    }  # fmt: skip
