"""One reading of a submitted file: the bytes are read once, and the text that is judged is the text that runs."""

from __future__ import annotations

import io
import os
import re
import stat
import tokenize
import unicodedata
from pathlib import Path

SOURCE_BYTES = 1 << 18  # the largest file that is read: the limits on memory and time are of other processes

# Marks that turn the direction of a line: what a reader sees is not what runs.
_TURNING = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_KEPT = "\n\t\f"


class SourceError(ValueError):
    """A file is not one that is graded; says why in one sentence, without the file's name."""


def take(path: Path) -> bytes:
    """A plain file's bytes. Raises SourceError for anything else: a link, a device, a large file."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        handle = os.open(path, flags)
    except (OSError, ValueError) as error:
        raise SourceError(getattr(error, "strerror", None) or "cannot be opened") from None
    state = os.fstat(handle)
    if stat.S_ISDIR(state.st_mode):
        os.close(handle)
        raise SourceError("a folder")
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(state.st_mode):
            raise SourceError("a link, or no plain file")
        if state.st_size > SOURCE_BYTES:
            raise SourceError(f"{state.st_size:,} bytes; at most {SOURCE_BYTES:,} are read")
        try:
            data = file.read(SOURCE_BYTES + 1)
        except OSError as error:
            raise SourceError(error.strerror or "cannot be read") from None
    if len(data) > SOURCE_BYTES:  # it grew
        raise SourceError(f"more than {SOURCE_BYTES:,} bytes; at most {SOURCE_BYTES:,} are read")
    return data


def text_of(data: bytes) -> str:
    """The text of a file's bytes, its lines ended by ``\\n`` alone. Raises SourceError if it is not plain UTF-8."""
    if b"\0" in data:
        raise SourceError("source code cannot contain null bytes")
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    except SyntaxError as error:
        raise SourceError(f"not readable as Python: {error.msg}: a file must be UTF-8") from None
    if encoding not in ("utf-8", "utf-8-sig"):
        raise SourceError(f"its first lines say that it is written in {encoding}: a file must be UTF-8")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SourceError(f"line {line}: not UTF-8") from None
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    for number, said in enumerate(text.split("\n"), 1):
        strange = next((sign for sign in said if _strange(sign)), None)
        if strange is not None:
            sign = f"U+{ord(strange):04X}, {unicodedata.name(strange, 'a control character').lower()}"
            raise SourceError(f"line {number} holds {sign}, which hides what the line says: delete it")
    return text


def _strange(sign: str) -> bool:
    if sign.isascii():
        return not sign.isprintable() and sign not in _KEPT
    return sign in _TURNING or unicodedata.category(sign) in ("Cc", "Cs", "Zl", "Zp")


def printable(text: str) -> str:
    """A text that any file or terminal takes: bytes that are not Unicode, controls and marks that turn, hide or
    break a line are written as their codes."""
    try:
        text = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # surrogates that no file name has
        text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return "".join(_shown(sign) for sign in text)


def in_one_line(text: str, most: int = 1000) -> str:
    """As :func:`printable`, with blanks and line ends made one blank each; what is longer than ``most`` is cut."""
    text = printable(re.sub(r"\s+", " ", text).strip())
    return text if len(text) <= most else f"{text[:most]} ... ({len(text) - most:,} more characters)"


def _shown(sign: str) -> str:
    if sign.isprintable():
        return sign
    code = ord(sign)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 1 << 16 else f"\\U{code:08x}"
