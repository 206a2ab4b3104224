"""What every child needs, imported once by the fork server (see :mod:`common.run.isolate`): a fork has it at once."""

from __future__ import annotations

from contextlib import suppress

from common.run import child

with suppress(Exception):  # then each child imports it for itself, and says what is wrong
    child.warm()
    child.rehearse()
