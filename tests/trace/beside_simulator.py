"""PYTHONPATH=. python tests/trace/beside_simulator.py: what Numba's simulator shows of the programs beside this file.

Each of them runs in a process of its own with NUMBA_ENABLE_CUDASIM=1, and in the tracer. Writes
results/programs/simulator.json, which lessons/microscope/programs.md shows.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import programs_page

from common.catalog import store
from common.records import records

PROGRAMS = Path(__file__).parent / "programs"
SECONDS = 60.0


def simulated(path):
    """How it ended in the simulator, and its seconds: "silent", "error" (with its last line), or "endless"."""
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
    start = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, path], env=environment, capture_output=True, text=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return {"ended": "endless", "seconds": SECONDS}
    seconds = round(time.monotonic() - start, 1)
    if done.returncode == 0:
        return {"ended": "silent", "seconds": seconds}
    said = re.sub(
        r" \([^()]*/site-packages/([^()]*)\)", r" (\1)", done.stderr.strip().splitlines()[-1]
    )  # no own paths
    return {"ended": "error", "said": said[:200], "seconds": seconds}


def traced(path):
    start = time.monotonic()
    words = [sys.executable, "-m", "common", "run", str(path), "--json"]
    done = subprocess.run(words, cwd=records.RESULTS.parent, capture_output=True, text=True, timeout=SECONDS)
    found = json.loads(done.stdout[done.stdout.index("{\n") :])
    return {
        "status": found["status"], "faults": [fault["kind"] for fault in found["faults"]],
        "seconds": round(time.monotonic() - start, 1),
    }  # fmt: skip


def main():
    found, folder = {}, Path(tempfile.mkdtemp())
    for name, text in (store.read_toml(PROGRAMS / "right.toml") | store.read_toml(PROGRAMS / "wrong.toml")).items():
        path = folder / f"{name}.py"
        path.write_text(text, encoding="utf-8")
        kind = re.match(r'"""([\w-]+):', path.read_text(encoding="utf-8"))[1]
        if kind != "unknown":
            found[path.stem] = {"kind": kind, "simulator": simulated(path), "tracer": traced(path)}
            print(path.stem, found[path.stem]["simulator"], found[path.stem]["tracer"], flush=True)
    shutil.rmtree(folder)
    store.write_json(records.RESULTS / "programs" / "simulator.json", found)
    programs_page.write()


if __name__ == "__main__":
    main()
