"""Every fault is named for what it is, at its line, with what to look at: ``tests/faults/faults.toml`` says which."""

import re
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from sampling import some

from common.catalog import catalog, problems, store
from common.check import run
from common.edit import loop
from common.explain import faults
from common.run import child, isolate
from common.run.messages import Check, Compile
from common.trace.messages import Trace

FOLDER = Path(__file__).parents[1] / "faults"
SHAPE = problems.FIRST["gemm"]
PATIENCE = 60.0
ENDLESS_SECONDS = 3.0
COUNT = 83  # so that none goes missing unnoticed


@dataclass(frozen=True)
class Fixture:
    """A kernel with a fault, as faults.toml describes it; ``line`` is the one that must be named."""

    name: str
    text: str
    kind: str
    by: str
    says: str

    @property
    def line(self):
        lines = self.text.splitlines()
        return next((number for number, line in enumerate(lines, 1) if line.endswith("# <- here")), None)

    def task(self, kind, folder, **more):
        path = folder / f"{self.name}.py"
        path.write_text(self.text)
        return kind(**{"ladder": "gemm", "path": str(path), "shape": SHAPE.shape(), **more})

    def require(self, result):
        found = result.faults
        assert found, result
        fault = found[0]
        assert fault.kind == self.kind, found
        assert re.search(self.says, fault.what), (self.says, fault.what)
        if self.line:
            assert fault.line == self.line, fault
            assert fault.code == self.text.splitlines()[self.line - 1].strip()
        assert len(fault.look_at) > 10


def read(name, kind, by, says, mistake, changes=(), base="naive"):
    text = (FOLDER / f"{base}.py").read_text()
    for find, replace in changes:
        assert text.count(find) == 1, (name, find)
        text = text.replace(find, replace)
    assert mistake.endswith(".")
    return Fixture(name, text, kind, by, says)


FILES = [read(name, **entry) for name, entry in store.read_toml(FOLDER / "faults.toml").items()]
ALWAYS = ("local_for_shared", "output_read")
TRACED = [one for one in FILES if one.by != "compiler"]
TRACED = [one for one in TRACED if one.name in ALWAYS or one in some(TRACED, 6)]
COMPILED = some([one for one in FILES if one.by != "tracer"], 6)


def each(fixtures):
    return pytest.mark.parametrize("fixture", [pytest.param(fixture, id=fixture.name) for fixture in fixtures])


def test_the_collection_is_complete():
    assert len(FILES) == COUNT
    assert {fixture.kind for fixture in FILES} <= set(faults.LOOK_AT)


def test_patterns_of_errors_have_a_kind_and_words():
    for kind, pattern, words in faults.ERRORS:
        assert kind in faults.LOOK_AT
        groups = max(map(int, re.findall(r"\\(\d)", words)), default=0)
        assert re.compile(pattern).groups >= groups
        assert words in faults._SAY or "()" not in words
    assert {*faults._SAY} <= {words for *_, words in faults.ERRORS}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("faults")


def answers(fixtures, without_gpu, task):
    """What one process says of each, by name, for as long as it lasts."""
    results = [result for _, result in isolate.run([task(one) for one in fixtures], without_gpu, PATIENCE)]
    return dict(zip([one.name for one in fixtures], results, strict=True))


@pytest.fixture(scope="module")
def traced(folder):
    """What one process that traces says of each, by name; the endless one last, in less time."""
    less = {"endless": {"seconds": ENDLESS_SECONDS}}
    return answers(TRACED, True, lambda one: one.task(Check, folder, repeats=1, **less.get(one.kind, {})))


@pytest.fixture(scope="module")
def compiled(folder):
    """What one compiling process says of each, by name."""
    options = {"architectures": ["9.0"], "machine_code": True}
    return answers(COMPILED, False, lambda one: one.task(Compile, folder, **options))


@each(TRACED)
def test_a_trace_shows_it(fixture, traced):
    result = traced[fixture.name]
    assert result.status in ("wrong", "crashed", "timed_out", "unusable")
    fixture.require(result)


@each(COMPILED)
def test_the_compiler_shows_it(fixture, compiled):
    result = compiled[fixture.name]
    assert (result.status == "right") == (fixture.kind == "float64")
    fixture.require(result)


# --- messages that take a GPU, or another Numba, to arise ---


class CudaAPIError(Exception):
    """Named as Numba's."""


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (CudaAPIError("[700] CUDA_ERROR_ILLEGAL_ADDRESS"), "illegal-address", "does not own"),
        (CudaAPIError("[2] CUDA_ERROR_OUT_OF_MEMORY"), "memory", "more memory"),
        (RuntimeError("File uses too much global constant data (0xc3500 bytes, 0x10000 max)"), "constant-memory",
         "take 800000 bytes of constant memory: it holds 65536"),
        (IndexError("a[4294967295, 0]: index 4294967295 on axis 0 is out of bounds: a has shape (2, 2)"), "outside",
         "4294967295"),
        (UnboundLocalError("cannot access local variable 'acc' where it is not associated with a value"),
         "unset-variable", "acc is read before it is set"),
        (AttributeError("module 'math' has no attribute 'sqrtt'"), "unknown-attribute",
         r"math has no sqrtt\. Did you mean sqrt\?"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else None,
)  # fmt: skip
def test_errors_of_a_driver_are_explained(write, error, kind, says):
    path = write("gemm_x.py", "def launch(a, b, c):\n    pass\n")
    fault = faults.of_error(error, path)
    assert fault.kind == kind
    assert re.search(says, fault.what)
    assert fault.look_at


def test_a_syntax_error_in_an_imported_file_names_that_file(write, monkeypatch):
    helper = write("gemm_helper_of_test.py", "x = 1\ny = (\n")
    path = write("gemm_x.py", "x = 1\nimport gemm_helper_of_test\n")
    monkeypatch.syspath_prepend(str(path.parent))
    with pytest.raises(SyntaxError) as raised:
        catalog.load(path, "gemm")
    fault = faults.of_error(raised.value, path)
    assert fault.what.startswith(f"{helper.name}:2: syntax error: ")
    assert (fault.line, fault.code) == (2, "import gemm_helper_of_test")
    assert fault.look_at.startswith("line 2 of gemm_helper_of_test.py")
    assert child.failure(raised.value, path).message.startswith(f"{helper.name}:2: syntax error: ")


def test_what_is_long_is_cut_and_what_a_terminal_obeys_is_shown(write):
    assert faults.cut("\x1b[2Jy\tz\u202e") == "\\x1b[2Jy z\\u202e"
    path = write("gemm_x.py", f"raise ValueError('{'z' * 200_000}')\n")
    with pytest.raises(ValueError, match="zzz") as refusal:
        catalog.load(path, "gemm")
    start = time.process_time()
    told = child.failure(refusal.value, path)
    assert time.process_time() - start < 5  # no pattern begins anew at each letter
    assert told.status == "refused"
    assert len(told.message) < 700


def test_what_no_pattern_knows_has_no_explanation(write):
    assert faults.of_error(RuntimeError("the moon is full"), write("gemm_x.py", "x = 1\n")) is None


@pytest.mark.parametrize(
    ("finding", "kind", "line"),
    [("unwritten", "unwritten", 6), ("wrote_outside", "wrote_outside", 6), ("modified_input", "modified_input", 5),
     ("stale", "stale", None), ("imprecise", "imprecise", None), ("nan", "nan", 6)],
)  # fmt: skip
def test_a_finding_names_the_store_it_is_about(write, finding, kind, line):
    kernel = "from numba import cuda\n\n@cuda.jit\ndef k(a, b, c):\n    b[0, 0] += 1\n    c[0, 0] = a[0, 0]\n"
    path = write("gemm_x.py", kernel)
    fault = faults.of_finding(finding, "5 of 9", [], path, ("a", "b", "c"))
    assert (fault.kind, fault.line) == (kind, line)


def test_a_hazard_explains_more_than_the_finding(write):
    path = write("gemm_x.py", "x = 1\ny = 2\n")
    unwritten = faults.Fault("read-before-write", "t[0] is read", 1)
    race = faults.Fault("race", "t[0] is written", 2)
    of = lambda kind, *hazards: faults.of_finding(kind, "", hazards, path, ("a", "b", "c"))  # noqa: E731
    assert of("wrong", unwritten, race).kind == "race"
    assert of("nan", unwritten).kind == "read-before-write"
    assert of("wrong", unwritten) is None  # shipped kernels read what they then throw away
    assert of("wrong") is None


RIGHT = (Path(__file__).parents[2] / "lessons/01_naive/gemm_naive.py").read_text()


def checked(path, *shapes, kind=Check, **more):
    tasks = [kind(ladder="gemm", path=str(path), shape=shape.shape(), **more) for shape in shapes]
    return [result for _, result in isolate.run(tasks, True, PATIENCE)]


def test_what_a_file_prints_is_told_and_is_no_float64(write):
    stored = re.search(r"\n( +)c\[(.*?)\] = (\w+)\n", RIGHT)
    indent, index, value = stored.groups()
    path = write("gemm_x.py", RIGHT.replace(stored[0], f"\n{indent}print('at', {index}, {value}){stored[0]}"))
    (result,) = checked(path, SHAPE, repeats=1)
    assert (result.status, len(result.printed)) == ("right", 10)
    assert re.fullmatch(r"at 0 0 -?\d+\.000000", result.printed[0])
    assert loop.printed([run.Outcome.of(catalog.find("gemm_naive"), SHAPE, None, result)]) == [
        f"gemm_naive prints at {SHAPE}:", *(f"  {line}" for line in result.printed),
        f"  ... {result.prints - 10} more",
    ]  # fmt: skip
    (traced,) = checked(path, SHAPE, kind=Trace)
    (kernel,) = traced.trace.kernels
    assert kernel.printed[0].startswith("at ")
    (compiled,) = checked(path, SHAPE, kind=Compile, architectures=["9.0"])
    assert (compiled.status, list(compiled.faults)) == ("right", [])


def test_an_ordinary_shape_that_is_refused_is_wrong_with_its_line(write):
    text = RIGHT.replace("def launch(a, b, c):\n", "def launch(a, b, c):\n    raise ValueError('not today')\n")
    path = write("gemm_x.py", text)
    (result,) = checked(path, SHAPE)
    assert result.status == "refused"
    told = run.judged(SHAPE, result, True)
    assert (told.status, told.findings[0].kind) == ("wrong", "refused")
    assert told.faults[0].code == "raise ValueError('not today')"


def test_a_local_array_that_others_were_to_fill_is_told_as_each_threads_own(traced):
    assert "each thread's own" in traced["local_for_shared"].faults[0].look_at
    finding = traced["output_read"].findings[0]
    assert finding.kind == "nan"
    assert "the kernel reads c, which holds nothing yet" in finding.message


@pytest.mark.parametrize(("zero", "line"), [("float16(0.0)", 1), ("float16(float32(0.0))", 2), ("float16(x)", 2)])
def test_a_float64_that_a_float16_is_made_of_is_found(write, zero, line):
    found = faults.of_float64(write("hgemm_x.py", f"z = {zero}\ny = 0.5\n"))
    assert (found.line, "float16(float32(0.0))" in found.look_at) == (line, True)


@pytest.mark.parametrize("start", ["0", "0.0", "int32(0)", "np.float64(0)"])
def test_a_sum_that_starts_as_another_number_is_the_line_of_a_float64(write, start):
    path = write(
        "gemm_x.py", f"def k(a, b, c):\n    one = float32(1.0)\n    acc = {start}\n    acc += a[0, 0] * one\n"
    )
    assert faults.of_float64(path).line == 3


def test_a_value_that_changes_nothing_is_no_cause(write):
    path = write(
        "gemm_x.py", "def k(a, c):\n    a.shape\n    c\n    cuda.syncthreads\n    c[0] == a[0]\n    c[0] + 1\n"
    )
    assert [one.line for one in faults.of_text(path, fractions=True)] == [4, 5, 6]


def test_what_nobody_explains_has_its_line_at_least(write):
    path = write("gemm_x.py", "class Odd(Exception):\n    pass\n\nraise Odd('x > y')\n")
    with pytest.raises(Exception, match="x > y") as raised:
        catalog.load(path, "gemm")
    (fault,) = child.failure(raised.value, path).faults
    assert (fault.kind, fault.line, fault.what) == ("uncaught", 4, "Odd: x > y")


def test_constants_that_a_file_refuses_are_what_to_look_at(write):
    path = write("gemm_x.py", "TILE = 3\nif TILE % 2:\n    raise ValueError(f'{TILE=} must be even')\n")
    with pytest.raises(ValueError, match="even") as raised:
        catalog.load(path, "gemm")
    told = child.failure(raised.value, path)
    assert (told.status, told.faults[0].line) == ("refused", 3)
    assert told.faults[0].look_at == "the constants at the file's top, against this condition"


def test_a_function_that_builds_a_kernel_and_forgets_it_is_named(write):
    path = write(
        "gemm_x.py",
        "def build(n):\n    def kernel(c):\n        return 1\n\ndef launch(a, b, c):\n    build(1)[1, 1](c)\n",
    )
    fault = faults.of_error(TypeError("'NoneType' object is not subscriptable"), path)
    assert (fault.kind, fault.line) == ("returns-nothing", 1)
    assert fault.what == "build returns nothing: return kernel is missing at its end"


def test_a_loop_that_may_have_no_end_is_the_while_around(write):
    path = write("gemm_x.py", "while True:\n    for i in range(3):\n        pass\nfor i in range(3):\n    pass\n")
    endless, long = faults.of_time_out(3.0, path, 3), faults.of_time_out(3.0, path, 5)
    assert (endless.line, endless.look_at) == (1, faults.LOOK_AT["endless"])
    assert (long.line, long.look_at) == (4, "how much one thread does here: the work of all, or its own share?")


# --- on a GPU ---

# what only the compiler shows is the same with a GPU and without: a few of them
BY_TRACE = ("illegal_address", "misaligned", "endless", "outside")  # what the driver cannot place
UNPLACED = {"illegal-address", "misaligned", "constant-memory"}  # faults whose line is the launch's
ON_GPU = some([f for f in FILES if f.by == "compiler"], len(FILES), 1)
RUN = [f for f in FILES if f.by != "compiler"]  # the GPU's process starts anew after each
ON_GPU += [f for f in RUN if f.name in BY_TRACE or f in some(RUN, len(RUN), 3)]
GPU_SECONDS = 8.0  # for a kernel, some of which do not end, its compilation included
# what a GPU may let pass
LUCKY = ("divergent-barrier", "race", "float64", "negative-index", "raises", "warp-sync", "not-called")


@pytest.fixture(scope="module")
def on_gpu(folder):
    """What the GPU says of each, by name."""
    return answers(ON_GPU, False, lambda one: one.task(Check, folder, engine="gpu", seconds=GPU_SECONDS))


def names_its_line(result):
    kinds = {fault.kind for fault in result.faults}
    return bool(kinds) and not kinds & UNPLACED


@pytest.mark.gpu
@pytest.mark.xdist_group("gpu")
@each(ON_GPU)
def test_the_gpu_shows_it_or_leaves_it_to_the_tracer(fixture, on_gpu):
    result = on_gpu[fixture.name]
    if result.status == "right" and fixture.kind in LUCKY:
        return
    assert result.status in ("wrong", "crashed", "timed_out", "unusable")
    if fixture.kind == "two-types":  # the two types meet in one place or another, as Python's version has it
        assert result.faults[0].kind in ("two-types", "unsupported")
    elif result.status == "unusable" or (result.status == "crashed" and names_its_line(result)):
        fixture.require(result)


def test_operands_of_whole_numbers_lose_no_fraction(tmp_path):
    path = tmp_path / "kernel.py"
    path.write_text("def kernel(a, b, c):\n    held = cuda.local.array(4, int8)\n    held[0] = a[0, 0]\n")
    assert [one.kind for one in faults.of_text(path, fractions=True)] == ["whole-numbers"]
    assert faults.of_text(path, fractions=False) == []


def test_a_race_with_a_copy_engine_names_what_frees_the_tile(write):
    path = write("hgemm_x.py", "x = 1\n")
    filled = faults.Fault(
        "race", "tiles[0] is filled by thread (0, 0, 0) in line 1 and read by wgmma of warpgroup 0", 1
    )
    found = faults.of_finding("unsound", "", [filled], path, ("a", "b", "c"))
    assert "wgmma_wait()" in found.look_at
    assert "mbarrier" in found.look_at
