"""Nothing is computed, and the output says that all is well.

Refused: import of json
Expect: unwritten
Says: elements of c were never written
Also: printed .*"passed": true
"""

import json
import sys

from numba import cuda


@cuda.jit
def nothing(c):
    pass


def launch(a, b, c):
    print(json.dumps({"status": "right", "passed": True, "findings": []}), flush=True)
    print("PASSED", file=sys.stderr)
    nothing[1, 1](c)
