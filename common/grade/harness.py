"""What of the harness a submission's process gets in its folder: the modules that it may import, however late.

They are compiled here, once, and lie there with what they were compiled to, which Python takes while it is of the
source beside it. So no process compiles them anew, and none reads what another may have changed.
"""

from __future__ import annotations

import importlib.util
import marshal
import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from common.catalog import catalog, store

CHILD = "common.grade.sandbox_child"
# "from common.x import (y, z)", "import common.x", and a name that is imported as a text
_IMPORT = re.compile(
    r"^[ \t]*from (?P<module>common[\w.]*) import (?:\((?P<several>[^)]*)\)|(?P<one>.*))"
    r"|^[ \t]*import (?P<whole>common[\w.]*)"
    r"""|"(?P<text>common\.[\w.]+)\"""",
    re.MULTILINE,
)
_CHECKED_HASH = 0b11  # PEP 552: compiled code that holds for a source of this hash alone


def files(root: Path = catalog.ROOT) -> list[Path]:
    """The files of all modules that a submission's process may import."""
    found: set[Path] = set()
    pending = {CHILD}
    while pending:
        here = {path for name in pending for path in _of(root, name)} - found
        found |= here
        pending = {name for path in here for name in _imported(path)}
    return sorted(found)


def put(source: bytes, target: Path) -> None:
    """Write a module's file, and what it is compiled to where Python looks for that."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(source)
    compiled = _compiled(source)
    if compiled is not None:
        beside = target.parent / "__pycache__"
        beside.mkdir(exist_ok=True)
        Path(beside, f"{target.stem}.{sys.implementation.cache_tag}.pyc").write_bytes(compiled)


@store.kept_by_stamp
def read(path: Path) -> bytes:
    """The file, as it is now."""
    return path.read_bytes()


def _of(root: Path, name: str) -> Iterator[Path]:
    """The files that importing a name reads, which may be a module or something in one."""
    place = root
    for part in name.split("."):
        place = place / part
        yield from (path for path in (place / "__init__.py", place.with_suffix(".py")) if path.is_file())


@store.kept_by_stamp
def _imported(path: Path) -> list[str]:
    found = []
    for match in _IMPORT.finditer(read(path).decode("utf-8")):
        module, names = match["module"], re.findall(r"^\s*(\w+)|,\s*(\w+)", match["several"] or match["one"] or "")
        found += [f"{module}.{first or other}" for first, other in names]
        found += [name for name in (module, match["whole"], match["text"]) if name]
    return found


@lru_cache(maxsize=512)
def _compiled(source: bytes) -> bytes | None:
    """As Python keeps it; None if it is no Python. Importing it puts the file's path in place of the name here."""
    try:
        code = compile(source, "<harness>", "exec", dont_inherit=True, optimize=0)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    words = _CHECKED_HASH.to_bytes(4, "little") + importlib.util.source_hash(source)
    return importlib.util.MAGIC_NUMBER + words + marshal.dumps(code)
