"""The pytest process traces kernels; work for a real GPU goes through child processes."""

import gc
import itertools
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

# Before anything imports numba or matplotlib.
os.environ["NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS"] = "0"
os.environ["MPLBACKEND"] = "Agg"
# Images of containers forbid bytecode: each process of the tests would compile the harness anew.
os.environ["PYTHONDONTWRITEBYTECODE"] = ""

import hypothesis
import pytest
from sampling import DAY

from common.catalog import device, exercises, sources
from common.edit import history
from common.records import records
from common.run import child, isolate

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = records.RESULTS  # whatever a test has in its place meanwhile
sys.dont_write_bytecode = False

# A warning filter that names a class of Numba's has imported it before this file.
if "numba.core.config" in sys.modules:
    sys.modules["numba.core.config"].reload_config()

_SLOW = (hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large)
hypothesis.settings.register_profile("local", deadline=None, max_examples=15, suppress_health_check=_SLOW)
hypothesis.settings.register_profile("ci", hypothesis.settings.get_profile("local"), derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "local")


# The fork server looks from the checkout; without the module it is merely slower.
if not device.gpu_count():  # of a process that has used the driver none may be forked
    child.MOST_NEEDED = [*child.MOST_NEEDED, "tests.compiled_ahead"]

# Modules whose tests start few processes and compile nothing.
QUICK = (
    "catalog", "check", "current", "device", "diagnose", "fullsize", "history", "inputs", "messages", "problems",
    "records", "reference", "store", "timing",
)  # fmt: skip


def pytest_report_header() -> str:
    return "all cases" if os.environ.get("WORKBOOK_ALL") else f"cases of {DAY} (WORKBOOK_DAY; WORKBOOK_ALL=1: all)"


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """A long text, as a whole file, names no test: each report would carry it from process to process."""
    return argname if isinstance(val, str | bytes) and len(val) > 200 else None


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in a hook of the same name
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.stem.removeprefix("test_") in QUICK:
            item.add_marker("quick")
        definitions = getattr(item, "_fixtureinfo").name2fixturedefs.values()  # noqa: B009 - not public
        if not item.get_closest_marker("xdist_group") and any(found[-1].scope == "module" for found in definitions):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))  # made once, not by each worker
    needy = [item for item in items if item.get_closest_marker("gpu")]
    if needy and device.gpu_count() == 0:
        for item in needy:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU, and the driver reports none"))


def pytest_collection_finish() -> None:
    """What is loaded stays: nothing need look through thousands of tests and all modules again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def own_places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Paths for tests in a folder of this process's: nothing lies there before it is made."""
    folder = tmp_path_factory.mktemp("tests")
    return (folder / str(number) for number in itertools.count())


@pytest.fixture
def tmp_path(own_places: Iterator[Path], request: pytest.FixtureRequest) -> Path:
    """A folder of the test's own. For its own, pytest looks through those of all tests before: milliseconds each."""
    place = next(own_places)
    folder = place.with_name(f"{place.name}-{re.sub(r'[^A-Za-z0-9_]', '_', request.node.name)[:30]}")
    folder.mkdir()
    return folder


@pytest.fixture(autouse=True)
def workbook(own_places: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A history and records of the test's own; of thousands of tests few write them."""
    place = next(own_places)
    folder = place.with_name(f".workbook-{place.name}")
    monkeypatch.setattr(history, "FOLDER", folder)
    monkeypatch.setattr(sources, "COPIES", folder / "shipped")
    monkeypatch.setattr(exercises, "SOLUTIONS", folder / "solutions")
    monkeypatch.setattr(records, "OWN", folder / "results")
    monkeypatch.setattr("common.check.run.VERDICTS", folder / "verdicts.json")
    return folder


@pytest.fixture(autouse=True)
def no_waiting_processes(request: pytest.FixtureRequest) -> Iterator[None]:
    """None that one test has started waits for the next, which may mean another folder by the same name; but that
    which owns a GPU, and takes seconds to begin, is there for all tests on one."""
    yield
    if not request.node.get_closest_marker("gpu"):
        isolate.cool()


@pytest.fixture(scope="session", name="shipped")
def shipped_record() -> records.Record:
    """The record that pages show. No test may change it."""
    return records.Record.load(SHIPPED / f"{records.REFERENCE_GPU}.json")


@pytest.fixture(scope="session")
def shipped_code() -> object:
    """The record of machine code. No test may change it."""
    return records.load_code(SHIPPED)


@pytest.fixture(scope="session")
def rates() -> object:
    """The GPU, and what it was measured to do, once."""
    from common.timing import measuring

    return measuring.measure_device()


@pytest.fixture(scope="module")
def traced() -> Iterator[object]:
    """A tracer that stands in for a GPU, for the tests of a module that launch kernels."""
    from common.trace.trace import Tracer  # here: it imports Numba, which many tests need not

    with Tracer() as tracer:
        yield tracer


@pytest.fixture
def call(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch):
    """Run a command in this process, or one of a lesson; gives exit code, standard output and standard error."""
    from common import cli

    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("FORCE_COLOR", raising=False)

    def call(*words: str, lesson: str = "", own: dict | None = None) -> tuple[int, str, str]:
        code = cli.lesson_main(lesson, words, own=own) if lesson else cli.main(words)
        return (code, *capsys.readouterr())

    return call


@pytest.fixture
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture
def write(tmp_path: Path):
    """Write a file below the test's own folder and return its path."""

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write
