"""PYTHONPATH=. python tests/trace/beside_sanitizer.py: what compute-sanitizer finds in the programs beside this file.

Needs a GPU. Each of them runs in a process of its own under each of the four tools. Writes
results/programs/sanitizer-GPU.json, which lessons/microscope/programs.md shows.
"""

import datetime
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import programs_page

from common.catalog import store
from common.check import run
from common.records import records
from common.timing import tools

PROGRAMS = Path(__file__).parent / "programs"
TOGETHER, SECONDS = 12, 60.0
FOUND = 99  # exit code of a program that is right but for what the tool found


def watched(tool, path):
    """How a program ended under a tool, its errors by the tool's summary, and its seconds.

    It ended "silent", "named" by the tool, "error" if Numba, the driver or the program itself stopped it, or
    "endless" if it was killed.
    """
    words = [*tools.sanitizer(tool), "--error-exitcode", str(FOUND), sys.executable, str(path)]
    start = time.monotonic()
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True
    ) as process:
        try:
            output, _ = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the tool and the program
            output, _ = process.communicate()
            return {"ended": "endless", "errors": _errors(output), "seconds": SECONDS}
    errors = _errors(output)
    ended = "named" if errors or process.returncode == FOUND else "error" if process.returncode else "silent"
    if ended == "silent" and errors is None:
        raise tools.ToolError(f"{path.name}: {tool} says nothing of it: {output.strip()[-300:]}")
    found = {"ended": ended, "errors": errors, "seconds": round(time.monotonic() - start, 1)}
    if ended != "silent":
        own = [line for line in output.splitlines() if line.strip() and not line.startswith("=========")]
        said = tools.first_report(output) if ended == "named" else own[-1] if own else ""
        found["said"] = re.sub(r"/[\w./-]*/", "", said)[:200]  # no own paths
    return found


def _errors(output):
    """None without a summary, as of a program that never reached the GPU."""
    with suppress(tools.ToolError):
        return tools.errors(output)
    return None


def judged(kind, by_tool):
    """A program's entry: what came of it under all tools together."""
    order = ("named", "error", "endless", "silent")
    ended = min((one["ended"] for one in by_tool.values()), key=order.index)
    seconds = round(sum(one["seconds"] for one in by_tool.values()), 1)
    return {"kind": kind, "sanitizer": {"ended": ended, "tools": by_tool, "seconds": seconds}}


def main():
    gpu, _ = run.inspect_device()
    texts, found = store.read_toml(PROGRAMS / "right.toml") | store.read_toml(PROGRAMS / "wrong.toml"), {}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(TOGETHER) as pool:
        kinds = {}
        for name, text in texts.items():
            path = Path(folder, f"{name}.py")
            path.write_text(text, encoding="utf-8")
            kinds[path] = re.match(r'"""([\w-]+):', text)[1]
        paths = [path for path in sorted(kinds) if kinds[path] != "unknown"]
        waiting = {path: {tool: pool.submit(watched, tool, path) for tool in tools.TOOLS} for path in paths}
        for path, by_tool in waiting.items():
            found[path.stem] = judged(kinds[path], {tool: one.result() for tool, one in by_tool.items()})
            print(path.stem, found[path.stem], flush=True)
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    card = {"gpu": gpu.name, "driver": gpu.driver, "cuda": gpu.cuda, "date": today}
    store.write_json(records.RESULTS / "programs" / f"sanitizer-{gpu.slug}.json", {**card, "programs": found})
    programs_page.write()


if __name__ == "__main__":
    main()
