"""The first kernels of the book; where no GPU is, they are traced."""

import os
import sys
import traceback

from common.catalog import device

os.environ.update(device.PLAIN)  # before Numba is imported
if device.gpu_count() == 0:
    from common.catalog.limits import LaunchLimitError
    from common.trace.state import TraceError
    from common.trace.trace import Tracer

    Tracer().stay()

    def short(kind, error, trace):
        """Say a kernel's mistake in one line: the tracer's own calls are of no use to its reader."""
        if issubclass(kind, TraceError):
            print(error, file=sys.stderr)
        elif issubclass(kind, LaunchLimitError):
            harness = os.path.dirname(os.path.dirname(device.__file__))
            own = [one for one in traceback.extract_tb(trace) if not one.filename.startswith(harness)][-1]
            print(f"{os.path.basename(own.filename)}:{own.lineno}: {error}", file=sys.stderr)
        else:
            sys.__excepthook__(kind, error, trace)

    sys.excepthook = short
