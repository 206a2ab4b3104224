"""What a step would start on a GPU, written down without one: kernels as PTX, grids, blocks and arguments.

``launch`` and ``prepare`` run on stand-ins for device arrays, and every kernel launch is recorded in place of being
made. The plan is all that leaves the submission's process: :mod:`common.grade.ptx_run` runs it elsewhere, on
operands that this process never sees. So nothing that ``launch`` does on the host can change a result or a time.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from types import ModuleType
from typing import Any, TypedDict, cast

import numpy as np

from common.catalog.boundstep import BoundStep
from common.catalog.limits import LaunchLimitError, require_cluster
from common.catalog.problems import Problem
from common.grade.audit import Audit, identity
from common.machine_code import capture, codegen, tensormaps

ALIGNMENT = 256  # what the driver gives an allocation
MAX_LAUNCHES = 20_000
SIMPLE = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64", "boolean")
ROLES = ("x", "weight", "y", "workspace", "prepared")


class PlanError(ValueError):
    """The step does something that a plan cannot hold."""


class PlanBuffer(TypedDict):
    """One of ROLES, and its size. ``data``: its first contents, once saved the name of their file; None: nothing."""

    role: str
    bytes: int
    data: Any


class PlanLaunch(TypedDict):
    """A kernel, by the SHA-256 of its PTX, and how it is started.

    ``identity``  where its source lies, as :func:`common.grade.audit.identity`
    ``grid``      in blocks; ``cluster`` of them along x run as a cluster
    ``shared``    dynamic shared memory in bytes
    ``arguments`` ``["array", buffer, offset, shape, strides, itemsize]``, in bytes; ``["map", buffer, offset,
                  fields]``, a tensor map of an array there, which the runner encodes anew
                  (:class:`common.machine_code.tensormaps.MapFields`); or a type of SIMPLE and a number
    """

    kernel: str
    name: str
    grid: list[int]
    block: list[int]
    cluster: int
    identity: list[int | str]
    shared: int
    arguments: list[list[Any]]


class Plan(TypedDict):
    """What a step starts at one ``shape``, compiled for one compute capability."""

    shape: dict[str, int]
    architecture: str
    buffers: list[PlanBuffer]
    prepare: list[PlanLaunch]
    launch: list[PlanLaunch]


@dataclass(eq=False)
class Buffer:
    """One allocation of the plan. ``data`` are its first contents, None if nothing is in it yet."""

    role: str
    array: np.ndarray[Any, Any]
    written: bool = False

    @property
    def start(self) -> int:
        return int(self.array.__array_interface__["data"][0])

    @property
    def bytes(self) -> int:
        return int(self.array.nbytes)


class StandIn(np.ndarray[Any, Any]):
    """Stands in for a device array. What the host does with its elements is noted."""

    recorder: Recorder | None = None

    def __array_finalize__(self, origin: Any) -> None:
        self.recorder = getattr(origin, "recorder", None)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {**self.__array_interface__, "version": 3}

    def copy_to_host(self, ary: Any = None, stream: Any = 0) -> Any:
        self._touched(".copy_to_host()")
        plain = np.array(self)
        if ary is None:
            return plain
        ary[...] = plain
        return ary

    def copy_to_device(self, ary: Any, stream: Any = 0) -> None:
        self._touched(".copy_to_device()")
        np.copyto(np.asarray(self), np.asarray(ary))
        self._written()

    def __getitem__(self, index: Any) -> Any:
        value = super().__getitem__(index)
        if not isinstance(value, np.ndarray):
            self._touched("[...]")
        return value

    def __setitem__(self, index: Any, value: Any) -> None:
        self._touched("[...] = ...")
        np.asarray(self)[index] = np.asarray(value)
        self._written()

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        self._computed(ufunc.__name__)
        if "out" in options:
            options["out"] = tuple(map(_plain, options["out"]))
        return getattr(ufunc, method)(*map(_plain, inputs), **options)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        self._computed(function.__name__)
        return super().__array_function__(function, types, args, kwargs)

    def _touched(self, how: str) -> None:
        if self.recorder:
            self.recorder.accessed(how)

    def _computed(self, name: str) -> None:
        if self.recorder and self.recorder.audit.phase == "launch":
            said = f"launch computes on the host (numpy.{name}): only kernels may compute"
            self.recorder.audit.note("host_access", said)

    def _written(self) -> None:
        if self.recorder:
            self.recorder.find(self)[0].written = True


def _plain(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, StandIn) else value


@dataclass
class Recorder:
    """Records one step file's launches; one problem at a time."""

    module: ModuleType
    ladder: str
    audit: Audit
    buffers: list[Buffer] = field(default_factory=list)
    launches: list[PlanLaunch] = field(default_factory=list)
    kernels: dict[tuple[int, str, str], tuple[Any, str]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    def record(self, problem: Problem, weight: np.ndarray[Any, Any], architecture: str) -> Plan:
        """The plan for one problem and one set of weights.

        Launches name kernels by the SHA-256 of their PTX, which :attr:`texts` holds. Raises PlanError if a plan
        cannot hold what the step does, and whatever the step raises.
        """
        self.buffers, self.launches = [], []
        x, filt, y = (
            self._allocate(role, shape, dtype)
            for role, (shape, dtype) in zip(ROLES[:3], problem.operands, strict=True)
        )
        np.asarray(filt)[...] = weight
        step = BoundStep(self.module, problem)
        with self._recording(architecture):
            self.audit.phase = "workspace"
            step.allocate()
            self.audit.phase = "prepare"
            step.prepare(filt)
            before, self.launches = self.launches, []
            contents = [
                np.asarray(buffer.array).copy() if buffer.role == "prepared" and buffer.written else None
                for buffer in self.buffers
            ]
            # on inputs that it has seen before, a step must start what it started at first
            arguments = step.arguments(x, y)
            self.audit.phase = "launch"
            self.module.launch(*arguments)
            first, self.launches = self.launches, []
            self.module.launch(*arguments)
        self.audit.phase = "import"
        if [entry["kernel"] for entry in first] != [entry["kernel"] for entry in self.launches]:
            self.audit.note(
                "remembers", remembered(*([one["name"] for one in part] for part in (first, self.launches)))
            )
        return {
            "shape": problem.shape(),
            "architecture": architecture,
            "buffers": [
                {"role": buffer.role, "bytes": buffer.bytes, "data": content}
                for buffer, content in zip_longest(self.buffers, contents)
            ],
            "prepare": before,
            "launch": first,
        }

    def accessed(self, how: str) -> None:
        """An operand's elements were asked for on the host; in a launch only kernels may."""
        if self.audit.phase == "launch":
            self.audit.note("host_access", f"launch reaches into an operand from the host ({how}): only kernels may")
        elif self.audit.phase == "prepare" and how == ".copy_to_host()" and self.launches:
            raise PlanError("prepare reads back what a kernel wrote: a plan holds kernels after host work only")

    def find(self, array: Any) -> tuple[Buffer, int]:
        """The buffer an array lies in, and its offset there in bytes."""
        return self._holding(int(array.__array_interface__["data"][0]))

    def _holding(self, start: int) -> tuple[Buffer, int]:
        for buffer in self.buffers:
            if buffer.start <= start < buffer.start + max(1, buffer.bytes):
                return buffer, start - buffer.start
        raise PlanError("a kernel is given an array that was not made by cuda.to_device or cuda.device_array")

    def _allocate(self, role: str, shape: Any, dtype: Any) -> StandIn:
        kind = np.dtype(dtype)
        shape = tuple(int(extent) for extent in (shape if isinstance(shape, tuple | list) else (shape,)))
        size = int(np.prod(shape)) * kind.itemsize
        raw = np.empty(size + ALIGNMENT, np.uint8)
        skip = -raw.__array_interface__["data"][0] % ALIGNMENT
        array = raw[skip : skip + size].view(kind).reshape(shape)
        self.buffers.append(Buffer(role, array))
        stand_in: StandIn = array.view(StandIn)
        stand_in.recorder = self
        return stand_in

    def _made(self, name: str, shape: Any, dtype: Any, values: Any) -> StandIn:
        """What the step's own call of ``cuda.NAME`` gives."""
        if self.audit.phase == "launch":
            self.audit.note("allocates", f"launch calls cuda.{name}: arrays come from prepare or workspace")
        made = self._allocate("workspace" if self.audit.phase == "workspace" else "prepared", shape, dtype)
        if values is not None:
            np.copyto(np.asarray(made), np.asarray(values))
            made._written()
        return made

    @contextmanager
    def _recording(self, architecture: str) -> Iterator[None]:
        import numba
        from numba import types

        recorder = self

        def type_of(value: Any) -> Any:
            if isinstance(value, np.ndarray):
                layout = "C" if value.flags.c_contiguous else "F" if value.flags.f_contiguous else "A"
                return types.Array(numba.from_dtype(value.dtype), value.ndim, layout)
            return tensormaps.typed() if tensormaps.is_map(value) else numba.typeof(value)

        def record(self: Any, *arguments: Any) -> None:
            kernel, name = self.dispatcher, self.dispatcher.py_func.__name__
            if self.stream:
                recorder.audit.note("stream", f"{name} runs on a stream of its own: use the default stream")
            if len(recorder.launches) >= MAX_LAUNCHES:
                raise PlanError(f"launch starts more than {MAX_LAUNCHES} kernels")
            signature = types.void(*map(type_of, arguments))
            launch = codegen.Launch.of(self, signature)
            recorder.launches.append(
                {
                    "kernel": recorder._compiled(launch, architecture),
                    "name": name,
                    "grid": list(launch.grid),
                    "block": list(launch.block),
                    "cluster": launch.cluster,
                    "identity": list(identity(kernel.py_func)),
                    "shared": int(launch.dynamic_shared_bytes),
                    "arguments": [
                        part
                        for kind, value in zip(signature.args, arguments, strict=True)
                        for part in recorder._argument(kind, value)
                    ],
                }
            )

        with (
            capture.without_driver(),
            capture.launches(record),
            # nothing runs, so there is nothing to wait for; a launch on such a stream is noted
            capture.host(**capture.arrays(self._made), stream=object, synchronize=lambda: None),
        ):
            yield

    def _argument(self, kind: Any, value: Any) -> Iterator[list[Any]]:
        """One argument as a plan has it: an array's place, or a number and its type."""
        if isinstance(value, np.ndarray):
            buffer, offset = self.find(value)
            place = self.buffers.index(buffer)
            yield ["array", place, offset, list(value.shape), list(value.strides), value.itemsize]
        elif tensormaps.is_map(value):
            buffer, offset = self._holding(value.address)
            yield ["map", self.buffers.index(buffer), offset, tensormaps.fields(value)]
        elif isinstance(value, tuple):
            for item_kind, item in zip(kind, value, strict=True):
                yield from self._argument(item_kind, item)
        elif str(kind) in SIMPLE or str(kind) == "bool":
            name = "boolean" if str(kind) == "bool" else str(kind)
            yield [name, float(value) if name.startswith("float") else int(value)]
        else:
            raise PlanError(f"a kernel argument of type {kind}: a plan holds arrays, numbers and tuples of them")

    def _compiled(self, launch: codegen.Launch, architecture: str) -> str:
        key = id(launch.kernel), str(launch.signature), architecture
        if key not in self.kernels:
            text = codegen.ptx(launch, [architecture])[architecture]
            if "vprintf" in text:
                raise PlanError(f"{launch.name} prints: delete print from the kernel")
            if re.search(r"^\.extern \.func", text, re.MULTILINE):
                raise PlanError(f"{launch.name} calls functions that Numba adds later, as for float16 arithmetic")
            limit = launch.kernel.targetoptions.get("max_registers")
            text = f"// max_registers {limit or 0}\n{text}"
            digest = hashlib.sha256(text.encode()).hexdigest()
            self.texts[digest] = text
            self.kernels[key] = launch.kernel, digest  # holding the kernel keeps its id taken
        return self.kernels[key][1]


def entry(text: str) -> tuple[str, int]:
    """The kernel's symbol in a plan's PTX, and the registers that it is limited to (0: no limit)."""
    names = re.findall(r"\.visible\s+\.entry\s+([\w$]+)\s*\(", text)
    limit = re.match(r"// max_registers (\d+)\n", text)
    if len(names) != 1 or limit is None:
        raise PlanError(f"PTX must hold one kernel and its register limit; it holds {len(names)} kernels")
    return names[0], int(limit[1])


def save(plan: Plan, folder: Path, prefix: str) -> Plan:
    """The plan with its buffers' contents in files ``PREFIX-NUMBER.bin`` of ``folder``: what can be sent as JSON."""
    buffers: list[PlanBuffer] = []
    for number, buffer in enumerate(plan["buffers"]):
        name = None
        if buffer["data"] is not None:
            name = f"{prefix}-{number}.bin"
            Path(folder, name).write_bytes(buffer["data"].tobytes())
        buffers.append({**buffer, "data": name})
    return {**plan, "buffers": buffers}


def checked(plan: Any) -> Plan:
    """A plan that came from elsewhere, if it is one; raises PlanError naming what it is not."""
    if not isinstance(plan, dict) or not all(
        isinstance(plan.get(key), list) for key in ("buffers", "prepare", "launch")
    ):
        raise PlanError("a plan must have buffers, prepare and launch")
    for buffer in plan["buffers"]:
        name = buffer.get("data")
        if buffer.get("role") not in ROLES or not _whole([buffer.get("bytes")]):
            raise PlanError("a buffer of a plan must have a role and a size")
        if name is not None and not (isinstance(name, str) and re.fullmatch(r"[\w-]+\.bin", name)):
            raise PlanError("a buffer's data must be a file of the plan")
    clusters: dict[str, int] = {}
    for launch in (*plan["prepare"], *plan["launch"]):
        if not isinstance(launch.get("kernel"), str) or not re.fullmatch(r"[0-9a-f]{64}", launch["kernel"]):
            raise PlanError("a launch of a plan must name its kernel")
        extents = [*launch.get("grid", [None]), *launch.get("block", [None])]
        if len(extents) != 6 or not _whole([launch.get("shared"), launch.get("cluster"), *extents]):
            raise PlanError("a launch's grid, block, cluster and shared memory must be whole numbers")
        try:
            require_cluster(tuple(launch["grid"]), launch["cluster"])
        except LaunchLimitError as error:
            raise PlanError(str(error)) from None
        if clusters.setdefault(launch["kernel"], launch["cluster"]) != launch["cluster"]:
            raise PlanError("a kernel of a plan must be launched in clusters of one size")
        for argument in launch["arguments"]:
            _check_argument(argument, plan["buffers"])
    return cast(Plan, plan)


def _check_argument(argument: Any, buffers: list[PlanBuffer]) -> None:
    kind, *rest = argument
    if kind == "array":
        place, offset, shape, strides, itemsize = rest
        if not _whole([place, offset, itemsize, *shape]) or place >= len(buffers):
            raise PlanError("an array of a plan must lie in one of its buffers")
    elif kind == "map":
        place, offset, described = rest
        if not _whole([place, offset]) or place >= len(buffers):
            raise PlanError("the array of a map must lie in one of the plan's buffers")
        amiss = tensormaps.wrong(described, buffers[place]["bytes"] - offset)
        if amiss:
            raise PlanError(amiss)
    elif kind not in SIMPLE or not isinstance(rest[0], int | float):
        raise PlanError(f"a plan has no arguments of type {kind}")


def _whole(values: list[object]) -> bool:
    return all(isinstance(value, int) and value >= 0 for value in values)


def remembered(first: list[str], again: list[str]) -> str:
    """What is said of a launch that starts other kernels, named here, when it sees the same operands again."""
    if first == again:
        names = ", ".join(dict.fromkeys(first))
        return (
            f"launch starts another {names} when it sees the same operands again: it must do its work each time, "
            "and keep the kernel if it makes one, as with lru_cache"
        )
    once, more = (" and ".join(dict.fromkeys(names)) or "no kernel" for names in (first, again))
    return (
        f"launch starts {once} the first time and {more} when it sees the same operands again: "
        "it must do its work each time"
    )
