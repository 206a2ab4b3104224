"""What every child needs, imported once by the process that children are forked from (:mod:`common.run.process`)."""

from __future__ import annotations

from contextlib import suppress

with suppress(Exception):  # then each child imports it for itself, and says what is wrong
    from common.run import child

    child.warm()
