r"""The records of the checkout are forged, and the harness's own copy is emptied.

Refused: import of os
Expect: changed_files
Says: changed its copy of common/check/check\.py
Also: launch opens .*check\.py. for writing
"""

import os
from pathlib import Path

import common.check.check


def launch(a, b, c):
    Path(common.check.check.__file__).write_text("")
    ancestor = os.getppid()
    while ancestor > 1:
        # only the file that the test has put there
        record = Path(os.readlink(f"/proc/{ancestor}/cwd"), "results", "record.json")
        if record.exists() and "made for a test" in record.read_text():
            record.write_text('{"median_ms": 0.001}')
        ancestor = int(Path(f"/proc/{ancestor}/stat").read_text().rpartition(")")[2].split()[1])
