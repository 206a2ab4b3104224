"""Programs of anybody's: no right one is accused, and a wrong one is named for what it is."""

import json
import re
from pathlib import Path

import pytest
from processes import python
from sampling import some
from small_kernels import BODIES

from common import cli
from common.catalog import store
from common.trace import functions, script

FOLDER = Path(__file__).with_name("programs")
MORE = Path(__file__).with_name("more_programs.toml")
PROGRAMS = {}
for file in (FOLDER / "right.toml", FOLDER / "wrong.toml", MORE):
    PROGRAMS |= store.read_toml(file)


@pytest.mark.parametrize("name", some(list(PROGRAMS), 16, 4))
def test_a_program_is_told_for_what_it_is(write, capsys, name):
    """The first word of a program's docstring is its fault's kind; the line of it ends in ``# fault``."""
    text = PROGRAMS[name]
    path = write(f"{name}.py", text)
    wanted = re.match(r'"""([\w-]+):', text)[1]
    lines = [number for number, line in enumerate(text.splitlines(), 1) if line.endswith("# fault")]
    found = script.run(path, [])
    faults = [*found.others, *(fault for kernel in found.kernels for fault in kernel.faults)]
    if wanted == "right":
        assert (found.status, faults, found.unknown) == ("right", [], [])
    elif wanted == "unknown":
        assert (found.status, faults) == ("unjudged", [])
        assert re.search(rf"{path.name}:{lines[0]}:|^line {lines[0]}:", found.unknown[0])
    else:
        assert (faults[0].kind, faults[0].line) == (wanted, lines[0]), faults


@pytest.mark.parametrize(
    ("words", "own", "stops"),
    [
        (["--", "--stop"], ["--stop"], False), (["a", "--", "--stop"], ["a", "--stop"], False),
        (["a", "--stop", "b"], ["a", "b"], True), (["--stop", "--", "--", "x"], ["--", "x"], True),
    ],
)  # fmt: skip
def test_two_dashes_end_the_options_of_run(words, own, stops):
    options = cli.parsed(["run", "program.py", *words])
    assert (options.words, options.stop) == (own, stops)


def test_one_field_of_all_records_is_an_array(write):
    found = script.run(write("fields.py", BODIES["fields"]), [])
    (fault,) = found.kernels[0].faults
    assert (fault.kind, fault.what.split(",")[0]) == ("outside", "a.x is written at 4")


def test_a_fault_is_told_with_what_to_look_at(tmp_path, capsys):
    program = tmp_path / "race.py"
    program.write_text(
        "import numpy as np\nfrom numba import cuda, float32\n\n@cuda.jit\ndef k(a):\n"
        "    t = cuda.shared.array(32, float32)\n    i = cuda.threadIdx.x\n    t[i] = a[i]\n    a[i] = t[31 - i]\n\n"
        "k[1, 32](cuda.to_device(np.ones(32, np.float32)))\n"
    )
    assert cli.main(["run", str(program)]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "with no barrier between" in said
    assert "look at: the barriers: one must stand between these two lines" in said


@pytest.mark.parametrize(("index", "said"), [("m, 0", False), ("n, m", True)], ids=["two broadcasts", "a column"])
def test_only_a_request_that_takes_more_than_neighbours_do_is_not_coalesced(tmp_path, capsys, index, said):
    program = tmp_path / "rows.py"
    program.write_text(
        "import numpy as np\nfrom numba import cuda\n\n@cuda.jit\ndef k(a, c):\n    n, m = cuda.grid(2)\n"
        f"    c[m, n] = a[{index}]\n\nx = cuda.to_device(np.ones((16, 16), np.float32))\n"
        "k[1, (16, 16)](x, cuda.device_array((16, 16), np.float32))\n"
    )
    assert cli.main(["run", str(program)]) == 0
    assert ("not coalesced" in capsys.readouterr().out) == said


def test_a_copy_of_what_nothing_has_written_is_noted(tmp_path):
    program = tmp_path / "short.py"
    program.write_text(
        "import numpy as np\nfrom numba import cuda\n\n@cuda.jit\ndef k(a):\n    a[cuda.grid(1)] = 1\n\n"
        "d = cuda.device_array(100, np.float32)\nk[100 // 32, 32](d)\nd.copy_to_host()\n"
    )
    found = script.run(program, [])
    assert found.status == "right"
    assert any("4 of 100 elements, the first at 96" in note for note in found.notes)


def test_each_line_on_which_a_float32_meets_a_float64_is_noted(write):
    text = BODIES["wide"]
    found = script.run(write("wide.py", text), [])
    lines = [n for n, line in enumerate(text.splitlines(), 1) if line.endswith("# wide")]
    said = " ".join(note for kernel in found.kernels for note in kernel.notes)
    assert found.status == "right"
    assert [int(n) for n in re.findall(r"line (\d+) computes in float64, as a float32 meets one", said)] == lines


@pytest.mark.parametrize("name", ["f4(3, 2", "(a, b)", "nothing"])  # ValueError, SyntaxError and TypeError of NumPy
def test_a_callable_whose_name_is_no_number_type_is_none(name):
    class Named:
        def __call__(self):
            """Anything."""

        def __str__(self):
            return name

    assert functions._number_type(Named()) is None


PAGE = Path(__file__).parents[2] / "lessons" / "microscope" / "programs.md"


def test_the_page_shows_what_its_program_comes_to(tmp_path):
    program, said = re.search(
        r"```python\n(.*?)```.*?```\n\$ [^\n]*\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL
    ).groups()
    tmp_path.joinpath("row_sums.py").write_text(program, "utf-8")
    words = ["run", str(tmp_path / "row_sums.py")]
    assert python("-m", "common", *words, code=1).stdout.split() == said.split()
    mended = program.replace("m[row, t]\n", "m[row, t]\n    cuda.syncthreads()\n")
    mended += "import sys\n\nprint(sys.argv[1:], __name__)\n"
    tmp_path.joinpath("row_sums.py").write_text(mended, "utf-8")
    done = python("-m", "common", *words, "--json", "word", "--html", tmp_path / "page.html", "--", "--stop")
    told = json.loads(done.stdout)
    assert (told["status"], told["faults"], told["kernels"][0]["name"]) == ("nothing found", [], "row_sums")
    assert "['word', '--stop'] __main__" in done.stderr
    assert "row_sums" in tmp_path.joinpath("page.html").read_text("utf-8")
