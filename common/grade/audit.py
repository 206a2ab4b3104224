"""What a submission does beside starting kernels, as seen from inside its own process.

What is seen here explains a verdict. It is no wall: code in this process can evade it. Whether a result is right, and
how long it took, is found out by another process (see :mod:`common.grade.sandbox`).
"""

from __future__ import annotations

import builtins
import os
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from types import FrameType, ModuleType
from typing import Any

import numpy as np

STDLIB = sysconfig.get_path("stdlib")
# Audit events (Python's own list) that a file with a kernel and its launch has no use for.
_EVENTS = (
    "ctypes.", "gc.", "os.", "pty.", "shutil.", "signal.", "socket.", "subprocess.", "sys._current_frames",
    "sys._getframe", "sys.setprofile", "sys.settrace", "tempfile.",
)  # fmt: skip
_HARMLESS = ("os.listdir", "os.scandir", "os.walk", "os.fwalk", "os.putenv", "os.unsetenv", "os.add_dll_directory")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Audit:
    """Notes on one file's doings. ``phase`` is what it is doing: import, prepare or launch."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.phase = "import"
        self.notes: dict[tuple[str, str], None] = {}
        self._busy: set[int] = set()
        self._tools: dict[tuple[str, str], tuple[Any, Any]] = {}

    def note(self, kind: str, message: str) -> None:
        """Keep a note, once."""
        self.notes.setdefault((kind, message))

    def start(self) -> None:
        """Audit from now on; a hook lasts as long as its process."""
        self._tools = dict(_tools())
        sys.addaudithook(self._heard)

    def look(self) -> None:
        """Note which functions of NumPy, Numba, the clock and the harness are not those they were at the start."""
        for (owner, name), (place, value) in self._tools.items():
            if place.get(name) is not value:
                self.note("replaced", f"replaces {owner}.{name}: the verdict is another process's, with its own")
                self._tools[owner, name] = place, place.get(name)

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" and (not event.startswith(_EVENTS) or event in _HARMLESS):
            return
        thread = threading.get_ident()
        if thread in self._busy:
            return
        self._busy.add(thread)
        try:
            frame = sys._getframe(1)
            # the standard library asks for frames too, on the file's behalf
            if not self._responsible(frame, event != "sys._getframe"):
                return
            if event == "open":
                path, _, flags = arguments
                if isinstance(flags, int) and flags & _WRITING:
                    self.note("reaches_out", f"{self.phase} opens {os.fspath(path)!r} for writing")
            else:
                self.note("reaches_out", f"{self.phase} calls {event}: a kernel file has no use for it")
        finally:
            self._busy.discard(thread)

    def _responsible(self, frame: FrameType | None, through_library: bool) -> bool:
        while frame is not None:
            name = frame.f_code.co_filename
            if name == self.file:
                return True
            library = name.startswith((STDLIB, "<frozen")) and "site-packages" not in name
            if not (through_library and library):
                return False
            frame = frame.f_back
        return False


def identity(function: Any) -> tuple[int, str]:
    """The line a kernel begins at, and the numbers and names that it was made with: those of its own file."""
    code = function.__code__
    cells = zip(code.co_freevars, function.__closure__ or (), strict=False)
    named = {name: cell.cell_contents for name, cell in cells}
    named |= {name: function.__globals__[name] for name in code.co_names if name in function.__globals__}
    simple = {name: value for name, value in named.items() if _simple(value)}
    return code.co_firstlineno, repr(sorted(simple.items()))


def _simple(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_simple, value))
    return type(value) in (bool, int, float, str)


def _tools() -> Iterator[tuple[tuple[str, str], tuple[Any, Any]]]:
    """What a submission might replace: (owner, name) to the namespace it lies in and its value."""
    modules = [np, np.testing, builtins, time, os, *_ours()]
    for module in modules:
        for name, value in list(vars(module).items()):
            if callable(value) and not (name.startswith("__") and name != "__import__"):
                yield (module.__name__, name), (vars(module), value)
                if isinstance(value, type) and value.__module__ == module.__name__.removesuffix(".__init__"):
                    yield from _methods(value)


def _methods(kind: type) -> Iterator[tuple[tuple[str, str], tuple[Any, Any]]]:
    for name, value in list(vars(kind).items()):
        if callable(value):
            yield (kind.__qualname__, name), (vars(kind), value)


def _ours() -> list[ModuleType]:
    names = ("common.", "numba.cuda.dispatcher", "numba.cuda.api")
    found = [module for name, module in sys.modules.items() if name.startswith(names)]
    return [module for module in found if isinstance(module, ModuleType)]
