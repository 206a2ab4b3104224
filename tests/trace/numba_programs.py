"""Runs numba-cuda's own tests, which ship in its wheel, in the tracer: how many run, and how many agree.

    python tests/trace/numba_programs.py [MODULE ...] [--list] [--record]

``agrees``: the test passes, and no kernel of it is accused. ``accused``: it passes, and the tracer has a fault to
tell. ``unknown``: the tracer says what it does not know. ``differs``: the test fails. ``asks``: it asks for machine
code, for the driver or for another program, which no tracer has, or for more time. ``skipped``: by the test itself.
``--list`` tells each test that does not agree, with what is said of it. ``--record``, of a whole run: writes
results/programs/numba_tests.json, which lessons/microscope/programs.md shows, with the reasons of numba_tests.toml.
"""

import collections
import contextlib
import importlib
import io
import multiprocessing
import re
import signal
import sys
import unittest
import warnings
from importlib import metadata
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import programs_page  # noqa: E402 - after the path

from common.catalog import store  # noqa: E402 - after the path
from common.records import records  # noqa: E402

SECONDS = 20  # of a processor, for one test
STATES = "agrees", "accused", "unknown", "differs", "asks", "skipped"
# A test whose error has one of these words asks for what lies below a kernel's meaning.
BELOW = (
    "inspect_", "HostError", "CudaSupportError", "CudaAPIError", "NvvmError", "filecheck", "ptx", "links code",
    "DeviceNDArray", "get_regs_per_thread", "devicearray", "gpu_data", "subprocess", "CUDA_ERROR", "nvrtc", "driver",
)  # fmt: skip


def modules():
    from numba.cuda import tests

    folder = Path(tests.__file__).parent
    files = [*sorted(folder.glob("doc_examples/test_*.py")), *sorted(folder.glob("cudapy/test_*.py"))]
    return [f"numba.cuda.tests.{path.parent.name}.{path.stem}" for path in files]


def outcome(test, program):
    """What becomes of one test, and why."""
    from common.trace.script import EndError

    found = unittest.TestResult()
    out = io.StringIO()
    program.tracer.forget()
    program.unknown.clear()
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        with contextlib.redirect_stderr(out), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            test.run(found)
    except (EndError, KeyboardInterrupt) as error:
        found.addError(test, (type(error), error, error.__traceback__))
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    if found.skipped:
        return "skipped", found.skipped[0][1]
    if program.unknown:
        return "unknown", program.unknown[0]
    if not found.wasSuccessful() and not found.expectedFailures:
        text = next((text for _, text in [*found.errors, *found.failures]), "passes, and is expected not to")
        state = "asks" if any(word in text for word in BELOW) else "differs"
        return state, text.strip().splitlines()[-1]
    faults = [fault for kernel in program.kernels() for fault in kernel.faults]
    return ("accused", f"{faults[0].kind}: {faults[0].what}") if faults else ("agrees", "")


def each(suite):
    for one in suite:
        if isinstance(one, unittest.TestSuite):
            yield from each(one)
        else:
            yield one


def late(*_):
    raise TimeoutError(f"not done after {SECONDS} s")


def of_module(name):
    """By test: its state and the reason."""
    from common.trace.script import Program

    importlib.import_module("numba.cuda.typing.cffi_utils")  # asks whether cffi is there, which it is not
    for missing in ("cffi", *(f"filecheck{part}" for part in ("", ".matcher", ".options", ".parser", ".finput"))):
        sys.modules.setdefault(missing, mock.MagicMock())
    signal.signal(signal.SIGVTALRM, late)
    program = Program()
    with program.standing_in():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                suite = unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(name))
        except BaseException as error:
            return {f"{name.partition('tests.')[2]}.(import)": ("asks", f"{type(error).__name__}: {error}")}
        return {test.id().rpartition("tests.")[2]: outcome(test, program) for test in each(suite)}


def recorded(totals, others):
    """The record: how many of each group, why a test is accused, and by state how many have which reason."""
    said = store.read_toml(Path(__file__).with_name("numba_tests.toml"))
    reasons = {state: collections.Counter() for state in ("unknown", "differs", "asks")}
    for state, test, why in others:
        if state != "accused":
            patterns = said[state].items()
            words = next((words for words, one in patterns if re.search(one, f"{test}: {why}")), "other reasons")
            reasons[state][words] += 1
    accused = {test: said["accused"][test] for state, test, _ in sorted(others) if state == "accused"}
    versions = {name: metadata.version(name) for name in ("numba-cuda", "numba", "numpy")}
    groups = {name: {state: counts[state] for state in STATES} for name, counts in totals.items()}
    return {"versions": versions, "groups": groups, "accused": accused, "reasons": reasons}


def main(words):
    wanted = [word for word in words if not word.startswith("--")]
    names = [name for name in modules() if not wanted or any(word in name for word in wanted)]
    totals = {"doc_examples": collections.Counter(), "cudapy": collections.Counter()}
    others = []
    importlib.import_module("common.trace.script")
    with multiprocessing.get_context("fork").Pool(maxtasksperchild=1) as pool:
        running = [(name.partition("tests.")[2], pool.apply_async(of_module, (name,))) for name in names]
        for name, result in running:
            try:
                found = result.get(timeout=600)
            except multiprocessing.TimeoutError:
                found = {f"{name}.(all)": ("differs", "no end")}
            counts = collections.Counter(state for state, _ in found.values())
            totals[name.partition(".")[0]] += counts
            print(f"{name:48}", dict(counts), flush=True)
            more = [(state, test, why) for test, (state, why) in found.items() if state not in ("agrees", "skipped")]
            for state, test, why in sorted(more) if "--list" in words else ():
                print(f"{state}: {test}: {why[:240]}", flush=True)
            others += more
    print("\n| tests of | " + " | ".join(STATES) + " |\n| :-- |" + " --: |" * len(STATES))
    for name, counts in totals.items():
        print(f"| {name} | " + " | ".join(str(counts[state]) for state in STATES) + " |")
    if "--record" in words and not wanted:
        store.write_json(records.RESULTS / "programs" / "numba_tests.json", recorded(totals, others))
        programs_page.write()


if __name__ == "__main__":
    main(sys.argv[1:])
