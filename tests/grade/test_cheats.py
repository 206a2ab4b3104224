"""Ways around the exercise: what a file may say, what of it is its own, what it must do, and what of it is read."""

import ast
import json
import os
import re
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

from common.catalog import catalog, exercises, problems
from common.check.check import Finding
from common.commands import exercising
from common.grade import (
    allowed_edits,
    borrowed,
    confine,
    folders,
    fresh_shapes,
    grade,
    language,
    limits,
    looks,
    messages,
    source,
)
from common.grade.checkout import Checkout
from common.grade.folders import Submission
from common.grade.grade import Grade, Grader
from common.grade.sandbox import Sandbox, SandboxError
from common.trace import trace

pytestmark = pytest.mark.usefixtures("traced")
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs processes that are forked, and limits")
ENCLOSED = pytest.mark.skipif(confine.version() < 6, reason="needs Landlock with signals: Linux 6.12")
ONE = "gemm_one_dimension"
START, LAUNCH = "from numba import cuda, float32\n", "def launch(a, b, c):\n"


@cache
def solved(name=ONE):
    return exercises.find(name).solution.read_text()


def filled(code, name=ONE):
    """The exercise with other lines in its first blank."""
    one = exercises.find(name)
    blank = re.compile(r"^( *)(# >>> your code[^\n]*\n).*?^ *# <<<", re.DOTALL | re.MULTILINE)

    def fill(match):
        lines = "".join(f"{match[1] + line if line else line}\n" for line in code.splitlines())
        return f"{match[1]}{match[2]}{lines}{match[1]}# <<<"

    return blank.sub(fill, one.path.read_text(), count=1)


# --- one reading of the bytes ---


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"# coding: utf-7\nx = 1\n", "its first lines say that it is written in utf-7: a file must be UTF-8"),
        (b"# -*- coding: rot13 -*-\nk = 1\n", "written in rot13"),
        (b"#!/usr/bin/python\n# vim: set fileencoding=latin-1 :\n", "written in iso-8859-1"),
        (b"\xef\xbb\xbf# coding: utf-7\n", "not readable as Python: encoding problem: utf-8"),
        (b"# coding: no-such-thing\n", "not readable as Python: unknown encoding: no-such-thing"),
        (b"x = 1\ny = '\xff'\n", "line 2: not UTF-8"),
        (b"x = 1\0\n", "source code cannot contain null bytes"),
        (b"x = 1  # \x1b[2J\n", r"line 1 holds U\+001B, a control character"),
        ("x = 1  # \u202e1 = x\n".encode(), r"line 1 holds U\+202E, right-to-left override"),
        ("\n\nx = 1  # \u2028y = 2\n".encode(), r"line 3 holds U\+2028"),
        ("x = 1  # \x9b2J\n".encode(), r"U\+009B"),
    ],
)  # fmt: skip
def test_bytes_that_say_another_thing_than_they_show_are_refused(data, says):
    with pytest.raises(source.SourceError, match=says):
        source.text_of(data)


def test_text_is_read_as_python_reads_it():
    assert source.text_of(b"\xef\xbb\xbfx = 1\r\ny = 2\rz = 3\n\x0c") == "x = 1\ny = 2\nz = 3\n\x0c"
    assert source.text_of(b"# coding: utf-8\n# \xc3\xa4\n") == "# coding: utf-8\n# \xe4\n"
    assert source.text_of(b"#\n#\n# coding: utf-7\n").endswith("utf-7\n")  # in the third line it means nothing


def test_only_plain_files_of_some_size_are_taken(tmp_path, write):
    path = write("a.py", "x = 1\n")
    assert source.take(path) == b"x = 1\n"
    (tmp_path / "link.py").symlink_to(path)
    (tmp_path / "folder.py").mkdir()
    os.mkfifo(tmp_path / "pipe.py")
    with (tmp_path / "large.py").open("wb") as file:
        file.truncate(1 << 40)
    for name in ("link", "folder", "pipe", "large", "none"):
        with pytest.raises(source.SourceError):
            source.take(tmp_path / f"{name}.py")


# --- what a kernel file may say ---


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (LAUNCH + "    exec('x = 1')\n", "line 2: `exec`"),
        (LAUNCH + "    ｅｘｅｃ('x = 1')\n", "line 2: `exec`"),
        ("run = exec\n", "line 1: `exec`"),
        ("def launch(a, b, c=eval('1')):\n    pass\n", "line 1: `eval`"),
        ("def launch(a: open('/etc/passwd'), b, c):\n    pass\n", "line 1: `open`"),
        ("x = 1; __import__('os')\n", "the name `__import__`"),
        ("__builtins__['exec']\n", "the name `__builtins__`"),
        ("__name__ = '__main__'\n", "the name `__name__`"),
        ("if __name__:\n    pass\n", "the name `__name__`"),
        ("if __name__ == '__main__':\n    pass\nelse:\n    pass\n", "the name `__name__`"),
        ("import os\n", "line 1: import of os"),
        ("from os import path as math\n", "import of path from os"),
        ("import numba.core.config\n", r"import of numba\.core\.config"),
        ("from numba.cuda import simulator\n", "import of simulator"),
        ("from numba import *\n", r"import of \* from numba"),
        ("from . import x\n", "import of x"),
        ("from lessons.wide import np\n", "import of np"),
        ("import common.trace.trace as trace\n", "import of common"),
        ("def f():\n    from torch.nn import functional\n", r"line 2: import of functional from torch\.nn"),
        ("import operator\n", "import of operator"),
        ("import numpy as np\nnp.core.os\n", r"`np\.core"),
        ("import numpy as np\nnp.allclose = print\n", r"`np\.allclose`"),
        ("from numba import cuda\ncuda.jit = print\n", r"`cuda\.jit`"),
        ("from numba import cuda\nc = cuda\nc.cudadrv.driver\n", "cudadrv"),
        ("def f(a):\n    a._array[:] = 0\n", r"`a\._array`"),
        ("def f(a):\n    a.__class__\n", r"`a\.__class__`"),
        ("def f(g):\n    g.gi_frame.f_back.f_globals\n", "gi_frame"),
        ("def f(a):\n    a.ctypes.data\n", "ctypes"),
        ("def f(a):\n    '{0.__class__}'.format(a)\n", r"\.format"),
        ("def f(a):\n    match a:\n        case object(__class__=k):\n            pass\n", "`match`"),
        ("try:\n    pass\nexcept ValueError as e:\n    e.__traceback__\n", "`try`"),
        ("class A:\n    def __del__(self):\n        pass\n", "`class`"),
        ("def f():\n    global N\n    N = 1\n", "`global`"),
        ("async def f():\n    await g\n", "`async def`"),
        ("with a:\n    pass\n", "`with`"),
        ("def f():\n    yield 1\n", "`yield`"),
        ("del range\n", "`del`"),
        ("range = 1\n", "`range` given another meaning"),
        ("(float := 1)\n", "`float` given another meaning"),
        (START + "float32 = cuda\n", "`float32` given another meaning"),
        (START + "def cuda():\n    pass\n", "`cuda` made anew"),
        (LAUNCH + "    pass\n" + LAUNCH + "    pass\n", "`launch` made a second time"),
        (LAUNCH + "    pass\nlaunch = 1\n", "`launch` given another meaning"),
        ("for launch in ():\n    pass\n" + LAUNCH + "    pass\n", "`launch` given another meaning"),
        ("@(lambda f: f)\ndef k():\n    pass\n", "the decorator"),
        ("def g(f):\n    return f\n@g\ndef k():\n    pass\n", "the decorator `@g`"),
        ("def f(a):\n    return [x for x in vars(a)]\n", "`vars`"),
        ("def f(a):\n    return getattr(a, 'b')\n", "`getattr`"),
        ("def f(a):\n    return type(a), hasattr(a, 'b'), isinstance(a, int)\n", "`type`"),
        ("def f(open):\n    pass\nopen('x')\n", "line 3: `open`"),
    ],
)  # fmt: skip
def test_what_reaches_beyond_a_kernel_is_refused(text, says):
    found = language.refused(text)
    assert re.search(says, "; ".join(found)), found


# It reads a file, asks the driver for the card, and measures other kernels: no submission has a use for that.
UNGRADED = {"conv2d_layer_dispatch"}


@pytest.mark.parametrize(
    "path",
    [path for one in exercises.everything() if one.ladder for path in (one.path, one.solution)],
    ids=lambda path: f"{path.parent.name}-{path.stem}",
)
def test_what_lessons_say_is_not_refused(path):
    assert language.refused(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("step", [*catalog.steps(), *catalog.experiments()], ids=lambda one: one.name)
def test_a_copy_of_a_step_may_say_what_the_step_says(step):
    refused = language.refused(step.path.read_text(encoding="utf-8"), borrowed.by(step))
    assert bool(refused) == (step.name in UNGRADED), refused


@pytest.mark.parametrize("text", [
    "[getattr(o, f'{name}_{axis}') for axis in 'dhw']",  # name is anybody's
    "[getattr(o, n) for n in ('pad_d', '__class__')]",
    "[getattr(o, n) for n in ('pad_d', '_array')]",
    "[getattr(o, f'{a}{b}') for a in ('_', 'x') for b in ('array', 'y')]",
    "[getattr(o, n) for n in names]",
    "[getattr(o, n) for n in ('pad_d', names)]",
    "[1 for n in ('pad_d',) for m in [getattr(o, n)] for n in names]",  # the last loop's, when the first goes on
    "[1 for m in [getattr(o, n)] for n in ('pad_d',)]",  # n is that of outside
    "[[getattr(o, n) for n in names] for n in ('pad_d',)]",
    "[(lambda n: getattr(o, n))(names) for n in ('pad_d',)]",
    "[getattr(o, f'{n!r}') for n in ('pad_d',)]",
    "[getattr(o, f'{n:>{wide}}') for n in ('pad_d',)]",
    "[getattr(o, n, names) for n in ('pad_d',)]",
    "[getattr(*o, n) for n in ('pad_d',)]",
    "[getattr(math, n) for n in ('pad_d',)]",
])  # fmt: skip
def test_an_attribute_by_a_name_that_may_be_anything_is_refused(text):
    found = language.refused(f"import math\ndef f(o, n, name, names, wide):\n    return {text}\n")
    assert "line 3: `getattr`" in found


def test_an_attribute_may_be_asked_for_by_texts_that_all_are_seen():
    text = "[[getattr(o, f'{n}_{axis}') for axis in 'dhw'] for n in ('pad', 'stride')], getattr(o, 'shape')"
    assert language.refused(f"def f(o, n):\n    return {text}\n") == []


LOAD = "import importlib\n"
OWN = 'long_sums = importlib.import_module("lessons.08_training.helpers.long_sums")\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('os = importlib.import_module("os")\n', r"`importlib\.import_module`"),
        ('x = importlib.import_module("lessons.08_training.dgrad_implicit_gemm")\n', r"`importlib\.import_module`"),
        ('x = importlib.import_module("lessons.08_training.solutions.wgrad_one_tap")\n', "import_module"),
        ('x = importlib.import_module("os", "lessons.08_training.helpers.long_sums")\n', "import_module"),
        ('x = importlib.import_module(name="lessons.08_training.helpers.long_sums")\n', "import_module"),
        ('x = importlib.import_module("lessons.08_training.helpers.long" + "_sums")\n', "import_module"),
        ("def f():\n    " + OWN, "import_module"),
        (OWN.replace("long_sums =", "x = y ="), "import_module"),
        (OWN.replace("long_sums =", "print ="), "import_module"),
        (OWN.replace("long_sums =", "__name__ ="), "import_module"),
        ("load = importlib.import_module\n", "import_module"),
        ("for load in (importlib,):\n    load.import_module('os')\n", r"`load\.import_module`"),
        ("importlib.util.find_spec('os')\n", r"`importlib\.util"),
        ("import importlib as load\n", "import of importlib"),
        ("import importlib.util\n", r"import of importlib\.util"),
        (OWN + OWN, "import_module"),
        (OWN + "long_sums = print\n", "`long_sums` given another meaning"),
        (OWN + "def long_sums():\n    pass\n", "`long_sums` made anew"),
        (OWN + "from numba import cuda as long_sums\n", "`long_sums` given another meaning"),
        (OWN + "long_sums.sqrt(2)\n", r"`long_sums\.sqrt`"),  # it imports that
        (OWN + "long_sums.add_up = print\n", r"`long_sums\.add_up`"),
        ("importlib = print\n", "`importlib` given another meaning"),
    ],
)  # fmt: skip
def test_a_copy_of_a_step_loads_what_the_step_loads_and_no_more(text, says):
    step = catalog.find("wgrad_split_k")
    found = language.refused(LOAD + text, borrowed.by(step))
    assert re.search(says, "; ".join(found)), found
    assert language.refused(LOAD + OWN + "x = long_sums.SPLITS\n", borrowed.by(step)) == []
    assert "line 1: import of importlib" in language.refused(LOAD + OWN)  # no step's copy, nothing to load


def test_what_is_borrowed_comes_with_all_that_it_loads():
    lent = borrowed.by(catalog.find("wgrad_split_k"))
    names = ["helpers/long_sums.py", "helpers/offsets32.py", "helpers/register_tiles.py", "wgrad_implicit_gemm.py"]
    assert [path.relative_to(catalog.LESSONS / "08_training").as_posix() for path in lent.files] == names
    assert not lent.attributes & {"import_module", "read_text", "ctypes"}
    loads_more = borrowed.by(catalog.find("conv2d_layer_dispatch"))
    assert not loads_more.attributes & {"read_text", "import_module", "current_context", "_replace"}
    for one in (*exercises.everything(), catalog.find("gemm_tuned")):
        assert borrowed.by(one) == borrowed.NOTHING


def test_a_copy_of_a_step_reads_the_fields_of_the_steps_own_records():
    step = catalog.find("conv3d_implicit_gemm_fast_division")
    assert borrowed.by(step).attributes == {"value", "multiplier", "first_shift", "second_shift"}
    text = "def f(a):\n    return a.multiplier, a.ctypes\n"
    assert language.refused(text, borrowed.by(step)) == ["line 2: `a.ctypes`"]
    assert language.refused(text) == ["line 2: `a.ctypes`", "line 2: `a.multiplier`"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("class A(NamedTuple):\n    x: int\n    def f(self):\n        pass\n", "`class`"),
        ("class A(NamedTuple):\n    x: int = print(1)\n", "`class`"),
        ("class A(NamedTuple, metaclass=print):\n    x: int\n", "`class`"),
        ("@print\nclass A(NamedTuple):\n    x: int\n", "`class`"),
        ("class A(NamedTuple, int):\n    x: int\n", "`class`"),
        ("class A:\n    x: int\n", "`class`"),
        ("class A(NamedTuple):\n    x: eval('1')\n", "`eval`"),
        ("class A(NamedTuple):\n    eval: int\n    x: eval('1')\n", "`eval` given another meaning"),
        ("def f():\n    class A(NamedTuple):\n        eval: int\n        x: eval('1')\n", "`class`"),
        ("class A(NamedTuple):\n    __x: int\n", "the name `__x`"),
        ("class launch(NamedTuple):\n    x: int\n" + LAUNCH + "    pass\n", "`launch` made a second time"),
        ("class cuda(NamedTuple):\n    x: int\n" + START, "`cuda` made anew"),
        ("class A(NamedTuple):\n    ctypes: int\ndef f(a):\n    a.ctypes.data\n", "ctypes"),
    ],
)  # fmt: skip
def test_a_class_is_a_tuple_with_names_or_refused(text, says):
    found = language.refused("from typing import NamedTuple\n" + text)
    assert re.search(says, "; ".join(found)), found
    fields = "class A(NamedTuple):\n    'Two.'\n\n    x: int\n    y: object = None\n"
    assert language.refused("from typing import NamedTuple\n" + fields) == []


@LINUX
def test_only_what_is_borrowed_lies_beside_a_submission(write):
    for lent in (borrowed.NOTHING, borrowed.by(catalog.find("wgrad_split_k"))):
        with Sandbox(write("wgrad_split_k.py", ""), "wgrad", borrowed=lent.files) as box:
            found = sorted(box.work.glob("lessons/*/**/*.py"))
            assert found == [box.work / path.relative_to(catalog.ROOT) for path in lent.files]
            assert all(
                path.read_bytes() == (catalog.ROOT / path.relative_to(box.work)).read_bytes() for path in found
            )


@LINUX
def test_a_copy_of_a_step_that_loads_another_is_graded(write, monkeypatch, tmp_path):
    problem = problems.Wgrad(N=1, C=3, D=1, H=4, W=3, K=5, T=1, R=2, S=1)
    monkeypatch.setattr(grade, "_shapes_of", lambda ladder: [problem])
    text = catalog.find("wgrad_split_k").path.read_text(encoding="utf-8")
    (tmp_path / "root").mkdir()
    verdict = Grader(root=tmp_path / "root").grade(Submission(write("wgrad_split_k.py", text)))
    assert verdict.passed, verdict.reasons
    spoilt = text.replace("beyond = (", "beyond = 0 * (")
    assert spoilt != text
    assert not Grader(root=tmp_path / "root").grade(Submission(write("wgrad_split_k.py", spoilt))).passed


def test_what_students_write_is_not_refused():
    text = (
        "import math\nfrom functools import lru_cache, partial\nimport numba\nimport numpy as np\n"
        "from numba import cuda, float32, int32, types, uint64\nfrom numba.cuda import jit\n"
        "TILE: int = 16\nassert TILE % 8 == 0, f'{TILE=}'\nSHAPES = {n: (n, n + 1) for n in range(3)}\n"
        "@lru_cache(maxsize=None)\ndef made(R, S):\n    @jit\n    def k(a, b, c):\n"
        "        sum, filter, id = float32(0), 1, 2\n        if math.sqrt(4) > 1: cuda.syncwarp()\n"
        "        cuda.atomic.add(c, 0, cuda.shfl_down_sync(-1, sum, 1))\n    return k\n"
        "def prepare(filt, problem):\n    return cuda.to_device(np.ascontiguousarray(filt.copy_to_host().T"
        ".reshape(-1)))\n".replace(".T", ".transpose()")
        + "def launch(x, filt, y):\n    N, K = y.shape[:2]\n    print(N, 'x', K)\n"
        "    if (blocks := math.ceil(N / TILE)) > 65535:\n        raise ValueError(f'N={N}: must be less')\n"
        "    made(*filt.shape[2:])[(blocks, 1), (TILE, TILE)](x, filt, y)\n"
        "if __name__ == '__main__':\n    import os\n    exec('launch')\n"
    )
    assert language.refused(text) == []
    assert language.refused("def launch(:") == []  # importing it says so


# --- what of a file is the exercise's ---

SECOND = "# >>> your code: 6 lines"
LEAVES = "leaves the block of lines that it began in"


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        (ONE, filled("pass\n\n\ndef other():\n    pass").replace("    def other", "def other"), LEAVES),
        (ONE, filled("pass\n").replace("    # <<<", "\nTHREADS = 1\n    # <<<"), LEAVES),
        (ONE, solved().replace("    # <<<", "    x = (1,\n    # <<<\n    2)"), r"`x = \(1, 2\)` is not as given"),
        (ONE, solved().replace("# <<<", f"# <<<\n    {SECOND}\n    x = 1\n    # <<<"), "are not as given"),
        (ONE, solved().replace("THREADS = TILE_M", "x = 1; THREADS = TILE_M"), "`x = 1` is not as given"),
        (ONE, solved().replace("@cuda.jit", "@cuda.jit(opt=False)"), "is not as given"),
        (ONE, solved().replace(LAUNCH, "def launch(a, b, c=1):\n"), "is not as given"),
        (ONE, solved().replace("THREADS](", "(n := THREADS)]("), "is not as given"),
        (ONE, solved() + "\nif __name__:\n    pass\n", "is not as given"),
        (ONE, solved() + "\nif __name__ != '__main__':\n    pass\n", "is not as given"),
        (ONE, solved() + "\nif __name__ == '__main__':\n    pass\nelse:\n    pass\n", "is not as given"),
        (ONE, solved().replace("cuda, float32", "cuda, float64 as float32"), "`float32` is imported as"),
        (ONE, solved().replace(START, START + "from math import sqrt as launch\n"), "`launch` is imported as"),
        (ONE, solved().replace(START, START + "from lessons.split_k import add_up\n"), "it imports lessons.split_k"),
        ("gemm_two_tiles", solved("gemm_two_tiles").replace("    if m < M and n < N:\n        c[m, n]",
                                                            "        if m < M and n < N:\n            c[m, n]"),
         "block"),
        ("conv2d_thin_halo", solved("conv2d_thin_halo") + 9 * "\nif __name__:\n    pass\n", "lines are other"),
        ("conv2d_thin_halo", solved("conv2d_thin_halo") + 50_000 * "pass\n", "50000 lines are other"),
    ],
)  # fmt: skip
def test_what_is_not_the_students_to_change(name, text, says):
    ast.parse(text)
    assert re.search(says, allowed_edits.departure(exercises.find(name), text) or "as given")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (LAUNCH, "def launch(a: object, b: object, c: object) -> None:\n"),
        ("THREADS = TILE_M", "THREADS: int = TILE_M"),
        (START, f"from typing import Final\n\nimport numpy as np\n{START}from numba.types import uint32\n"),
    ],
)
def test_types_and_the_imports_of_any_kernel_file_are_free(old, new):
    text = solved().replace(old, new)
    assert text != solved()
    assert language.refused(text) == []
    assert allowed_edits.departure(exercises.find(ONE), text) is None


def test_a_name_with_a_type_is_still_the_exercises():
    text = solved().replace("THREADS = TILE_M * TILE_N", "THREADS: int = TILE_M")
    assert "`THREADS = TILE_M` is not as given" in allowed_edits.departure(exercises.find(ONE), text)


def test_a_docstring_alone_is_as_good_as_nothing():
    texts = ("def launch(a, b, c):\n    'To be written.'\n", "def launch(a, b, c):\n    pass\n")
    said, empty = (allowed_edits._lines(ast.parse(text)) for text in texts)
    assert said == empty == ["def launch(a, b, c):", "pass"]


@pytest.mark.parametrize(
    "value", [100_000 * "-" + "1", 100_000 * "1 + " + "1", 150 * "(" + "1"], ids=["minus", "plus", "open"]
)
def test_what_python_itself_cannot_read_is_left_to_the_import(value):
    assert allowed_edits.departure(exercises.find(ONE), f"{solved()}\nX = {value}\n") is None


def test_more_of_a_module_that_the_exercise_imports_is_free():
    text = solved("gemm_vector_rows")
    more = text.replace("from lessons.wide import", "from lessons.wide import store4 as other,")
    assert more != text
    assert allowed_edits.departure(exercises.find("gemm_vector_rows"), more) is None


def test_an_end_of_no_blank_is_a_comment():
    assert allowed_edits.departure(exercises.find(ONE), f"# <<<\n{solved()}\n# <<<\n") is None


@pytest.mark.parametrize(("more", "free"), [(6, True), (7, False)])
def test_a_bug_may_be_mended_in_a_few_lines_more(more, free):
    one = exercises.find("conv2d_thin_halo")
    text = solved(one.name) + (one.lines + more) * "\nX = 1"
    said = allowed_edits.departure(one, text)
    assert (said is None) == free
    if not free:
        assert said.startswith(f"{one.lines + 7} lines are other than in the exercise with its bug mended, and "
                               f"{one.lines + 6} may be: ")  # fmt: skip


def test_a_self_test_is_free():
    text = solved() + "\n\nif __name__ == '__main__':\n    import os\n    os.system('true')\n"
    assert allowed_edits.departure(exercises.find(ONE), text) is None
    assert language.refused(text) == []


# --- what it must do ---

NAIVE = "for k in range(k0, min(k0 + TILE, K)):\n    if m < M and n < N:\n        acc += a[m, k] * b_t[n, k]"
STAGED = (
    "a_tile[ty, tx] = a[m, k0 + tx] if m < M and k0 + tx < K else float32(0.0)\n"
    "b_tile[ty, tx] = b_t[n0 + ty, k0 + tx] if n0 + ty < N and k0 + tx < K else float32(0.0)\ncuda.syncthreads()\n"
)
ZEROS = "a_tile[ty, tx] = float32(0.0)\nb_tile[ty, tx] = float32(0.0)\ncuda.syncthreads()\n"
VECTOR = solved("gemm_vector_tile")
AT_2048 = "    if a.shape[0] > 1000:\n        "
HALO = exercises.find("conv2d_thin_halo").path.read_text().replace("tx < R - 1, ty < S - 1", "tx < S - 1, ty < R - 1")
FEWER = exercises.find("conv2d_fewer_instructions").path.read_text()
DEEP = 20 * " "
SHOWN = f"{DEEP}acc += 2 * acc\n{DEEP}acc -= 2 * acc / 3\n"
BEYOND = "pixel(x, n, c, p + r, q + s)"


@LINUX
@pytest.mark.parametrize(
    ("name", "text", "kind", "says"),
    [
        ("gemm_two_tiles", filled(f"{ZEROS}{NAIVE} + a_tile[tx, ty] * b_tile[tx, ty]\ncuda.syncthreads()",
                                  "gemm_two_tiles"), "reads", r"10,710 values of a .* solved needs 918"),
        ("gemm_two_tiles", filled(f"{STAGED}{NAIVE}\ncuda.syncthreads()", "gemm_two_tiles"), "reads", "needs 918"),
        ("conv2d_thin_halo", HALO.replace("patch[ty + r, tx + s] *", f"{BEYOND} *"), "reads", "global memory"),
        ("conv2d_thin_halo", HALO.replace("patch[ty + r, tx + s] *",
                                          f"(patch[ty + r, tx + s] if ty + r < TILE_H else {BEYOND}) *"),
         "reads", "global memory"),
        ("gemm_vector_tile", VECTOR.replace(LAUNCH, f"{LAUNCH}{AT_2048}a, c = a[:16], c[:16]\n"),
         "unwritten", "blocks write"),
        ("gemm_vector_tile", VECTOR.replace(LAUNCH, f"{LAUNCH}{AT_2048}a = b\n"),
         "wrong", "the size that is counted, .* sampled elements are wrong"),
        ("conv2d_fewer_instructions", FEWER.replace(f"{DEEP}acc += ", f"{SHOWN}{DEEP}acc += "),
         "padded", "multiply-adds for results that take"),
        (ONE, filled("if tile == 0:\n    c.flat[0:c.size] = (a.view() @ b.view()).ravel()"), "crashed", "ValueError"),
    ],
    ids=["tiles_for_show", "tiles_unread", "bypassed", "half_bypassed", "little_at_the_counted_size",
         "wrong_at_the_counted_size", "work_for_show", "numpy_in_a_kernel"],
)  # fmt: skip
def test_what_is_right_for_another_reason_does_not_pass(write, name, text, kind, says):
    assert language.refused(text) == []
    assert kind == "crashed" or allowed_edits.departure(exercises.find(name), text) is None
    verdict = Grader().grade(Submission(write(f"{name}.py", text)))
    assert (verdict.findings[0].kind, bool(re.search(says, verdict.findings[0].message))) == (kind, True), (
        verdict.reasons
    )


def test_what_is_unsound_is_named_before_the_values_that_come_of_it(write):
    text, stored = solved("gemm_tree_sum"), "    part[ty, tx] = acc\n"
    assert text.count(stored) == 1
    verdict = Grader().grade(Submission(write("gemm_tree_sum.py", text.replace(stored, f"    if tx:\n    {stored}"))))
    first, *rest = verdict.findings
    assert (first.kind, "uninitialised read" in first.message) == ("unsound", True), verdict.reasons
    assert {finding.kind for finding in rest} & {"wrong", "nan", "unstable"}, verdict.reasons


def test_a_kernel_that_prints_is_told_to_leave_it(write):
    text = solved().replace("    if m < M and n < N:\n", "    print(M)\n    if m < M and n < N:\n")
    verdict = Grader().grade(Submission(write(f"{ONE}.py", text)))
    assert verdict.reasons == [
        "unjudged: cannot be judged here: gemm_one_dimension prints: delete print from the kernel"
    ]


def test_reads_guarded_one_by_one_are_as_right_as_a_thread_that_is_guarded(write):
    """Threads beyond one edge read along the other: at edges more is read, and no less right."""
    text = solved("gemm_two_by_two")
    for old, new in (
        ("    if m0 < M and n0 < N:\n        acc00", "    if True:\n        acc00"),
        ("a[m0, k], ", "a[m0, k] if m0 < M else float32(0.0), "),
        ("b[k, n0], ", "b[k, n0] if n0 < N else float32(0.0), "),
        ("        c[m0, n0] = acc00\n", "        if m0 < M and n0 < N:\n            c[m0, n0] = acc00\n"),
        ("if n1 < N:\n", "if m0 < M and n1 < N:\n"),
        ("if m1 < M:\n", "if m1 < M and n0 < N:\n"),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    verdict = Grader().grade(Submission(write("gemm_two_by_two.py", text)))
    assert verdict.passed, verdict.reasons


@pytest.mark.parametrize(
    ("first", "kinds"),
    [({"written": 40}, []), ({"written": 38}, ["unwritten"]), ({"written": 40, "wrong": 1}, ["unwritten"]),
     ({"written": 40, "message": "no"}, ["unwritten"])],
)  # fmt: skip
@pytest.mark.parametrize("middle", [30, 0])
def test_a_block_at_the_edge_writes_less_than_the_first_one(monkeypatch, middle, first, kinds):
    """234 = 13 * 18 elements in 6 blocks: 39 each, were they alike."""
    problem = problems.Gemm(M=13, N=18, K=2)
    blocks = {None: looks.Sampled(launched=[["k", [3, 2, 1]]], written=middle), (0, 0, 0): looks.Sampled(**first)}
    other = looks.Sampled(written=30)
    monkeypatch.setattr(
        grade, "sampled", lambda box, shape, seed, block=None: blocks.get(block and tuple(block), other)
    )
    monkeypatch.setattr(grade.secrets, "randbelow", lambda below: below - 1)
    evidence = grade.Evidence()
    Grader()._sample(evidence, SimpleNamespace(counted_problem=problem), None, 0)
    assert [finding.kind for finding in evidence.findings] == (kinds if middle else ["unwritten"])


def test_what_starts_must_be_the_same_traced_and_compiled():
    plan = {"launch": [{"name": "k", "grid": [2, 1, 1], "block": [8, 8, 1], "identity": [7, "[('N', 1)]"]}]}
    entry = ["k", [2], [8, 8], 7, "[('N', 1)]"]
    assert grade.differences([entry], plan) == []
    for place, other in enumerate(("m", [3], [8], 8, "[('N', 2)]")):
        ((kind, _),) = grade.differences([[*entry[:place], other, *entry[place + 1 :]]], plan)
        assert kind == "differs"


# --- shapes that nobody knows beforehand ---


def test_fresh_shapes_leave_what_an_exercise_leaves():
    own = exercises.find("conv3d_pointwise").problems()
    found = fresh_shapes.candidates(own, 1)
    assert len(found) == len(set(found)) == fresh_shapes.CANDIDATES
    assert not {*found} & {*own}
    assert {(one.T, one.R, one.S, one.pad_d, one.pad_h, one.pad_w, one.dilation_w) for one in found} == {
        (1, 1, 1, 0, 0, 0, 1)
    }
    assert {one.stride_h for one in found} > {2, 3}
    assert (found, found) == (fresh_shapes.candidates(own, 1), fresh_shapes.candidates(own, 1))
    assert found != fresh_shapes.candidates(own, 2)


@pytest.mark.parametrize(
    ("name", "old", "new", "says"),
    [
        ("gemm_grid_stride", "range(K)", "range(K if K == 18 or K == 35 else 0)", "wrong: at M=.* sampled elements"),
        ("gemm_tree_sum", "        cuda.sync", "        if K == 70 or K == 130:\n            cuda.sync",
         "unsound: at M=.*no barrier between"),
        ("gemm_early_leave", LAUNCH, f"{LAUNCH}    if a.shape[1] not in (18, 35):\n        raise ValueError('no')\n",
         "refused: at M=.*no"),
        ("conv2d_fewer_instructions", "(tiles, K, N)", "(tiles, K, N if N in (1, 3) else 1)", "at N="),
    ],
    ids=["wrong", "unsound", "refused", "tune"],
)  # fmt: skip
def test_what_is_right_at_the_shapes_of_the_exercise_alone_does_not_pass(write, name, old, new, says):
    text = solved(name)
    assert text.count(old) == 1
    verdict = Grader().grade(Submission(write(f"{name}.py", text.replace(old, new))))
    assert re.search(says, verdict.reasons[0]), verdict.reasons


def test_fresh_shapes_are_drawn_once_for_all_who_hand_in(write, monkeypatch):
    drawn = []
    monkeypatch.setattr(grade, "_fresh", lambda box, own: drawn.append(own) or [])
    grader = Grader()
    files = [Submission(write(f"{name}/{ONE}.py", solved()), name, f"{name}/{ONE}.py") for name in "ab"]
    assert all(verdict.passed for _, verdict in grader.all(files, workers=2))
    assert drawn == [exercises.find(ONE).problems()]


def test_a_sum_of_several_products_is_as_many_multiply_adds(write):
    lines = "    left += a_frag[v] * b_frag[v]\n                right += a_frag[v] * b_frag[VECTOR + v]\n"
    text = solved("gemm_vector_rows")
    sums = [" + ".join(f"a_frag[{v}] * b_frag[{v + first}]" for v in range(4)) for first in (0, 4)]
    whole = f"            for v in range(VECTOR):\n            {lines}"
    assert text.count(whole) == 1
    text = text.replace(whole, f"            left += {sums[0]}\n            right += {sums[1]}\n")
    problem = exercises.find("gemm_vector_rows").problems()[0]
    found = trace.run(catalog.load(write("gemm_vector_rows.py", text), "gemm"), problem, every=True)
    assert limits.touched(found)["global_reads"] == 0.375  # three reads of four floats serve eight


# --- what its process says, and what it may do ---


class Says(Sandbox):
    """A box whose process answers what it is given."""

    def __init__(self, line):
        super().__init__(Path("x.py"), "gemm")
        self._answers = __import__("queue").Queue()
        self._answers.put(line)
        self._process = SimpleNamespace(stdin=open(os.devnull, "wb"), stdout=open(os.devnull, "rb"))  # noqa: SIM115

    def close(self):
        self._process.stdin.close()
        self._process.stdout.close()


@pytest.mark.parametrize(
    "answer",
    [
        {"status": "done", "notes": [["timed", "0.1 ms: best of the course"]]},
        {"status": "passed", "notes": []},
        {"status": "done", "notes": "x"},
        {"notes": []},
        {"status": "crashed", "notes": [], "faults": ["x"]},
        [],
    ],
)
def test_answers_that_the_grader_would_not_give_are_broken(answer):
    box = Says(json.dumps(answer).encode())
    with pytest.raises(SandboxError, match="something that is no answer"):
        box.ask(messages.Prepare())
    box.close()


def test_of_a_log_the_end_is_read(tmp_path):
    box = Says(b"")
    box.folder, box.work, box._before = tmp_path, tmp_path / "work", {}
    with (tmp_path / "log.txt").open("wb") as log:
        log.truncate(1 << 40)  # more than any memory holds
        log.seek(1 << 40)
        log.write(b"\nit has passed\n")
    box._look()
    assert box.notes == [("printed", "printed 'it has passed': nothing that it prints is read")]
    box.close()


def test_a_note_stays_whatever_is_said_later():
    box = Says(b'{"status": "done", "notes": [["replaced", "x"]]}')
    box._answers.put(b'{"status": "done", "notes": []}')
    box.ask(messages.Prepare())
    box.ask(messages.Prepare())
    assert box.notes == [("replaced", "x")]
    box.close()


@pytest.mark.parametrize("found", [None, 1, [["k"]], [["k", [1], "x", 1, ""]], [["k", [1], [1e999], 1, ""]], "kkkkk"])
def test_launches_that_are_none_are_broken(found):
    box = Says(json.dumps({"status": "done", "notes": [], "found": found}).encode())
    with pytest.raises(SandboxError, match=r"no answer came from its process: .*: answer\.found.* must be"):
        box.ask(messages.Launch())
    box.close()


DONE = {"status": "done", "notes": []}
FIGURES = dict.fromkeys(limits.TOUCHED, 1.0)
SMALL = problems.Gemm(M=2, N=3, K=4)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({**DONE, "status": "passed"}, "answer.status must be one of done, crashed, .*, is 'passed'"),
        ({**DONE, "notes": [["timed", "x"]]}, r"answer.notes\[0\]\[0\] must be one of changed_files, .*, is 'timed'"),
        ({**DONE, "notes": [["stream"]]}, r"answer.notes\[0\] must be a list of 2, is a list"),
        ({**DONE, "found": None}, "answer.found must be an object, is null"),
        ({**DONE, "found": {"figures": {"turns": "few"}}}, "answer.found.figures.turns must be a number, is 'few'"),
        ({**DONE, "found": {"figures": {**FIGURES, "turns": float("nan")}}}, "turns must be a number, is nan"),
        ({**DONE, "found": {"figures": FIGURES, "reads": {"x": -1}}}, "reads.x must be a number from 0 on, is -1"),
        ({**DONE, "found": {}}, "its trace must have sectors, turns, .*, has none"),
        ({**DONE, "found": {"figures": {**FIGURES, "more": 1.0}}}, "its trace must have .*, has sectors, .*, more"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_an_answer_is_named(answer, says):
    box = Says(json.dumps(answer).encode())
    with pytest.raises(SandboxError, match=says) as error:
        looks.traced(box, SMALL)
    assert error.value.kind == "broken"
    box.close()


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ({"places": [6], "values": [0.0]}, "nothing that can be read"),
        ({"places": [0, 1], "values": [0.0]}, "nothing that can be read"),
        ({"places": [-1], "values": [0.0]}, r"places\[0\] must be an integer from 0 on, is -1"),
        ({"fma": float("nan")}, "fma must be a number from 0 on, is nan"),
        ({"launched": [["k", [1]]]}, r"launched\[0\] must be a list of 3, is a list"),
    ],
)
def test_a_block_that_is_none_is_broken(found, says):
    box = Says(json.dumps({**DONE, "found": found}).encode())
    with pytest.raises(SandboxError, match=says) as error:
        looks.sampled(box, SMALL, 0)
    assert error.value.kind == "broken"
    box.close()


REACHES = """
import glob, os, signal, socket
def attempt(name, action):
    try:
        print(name, action(), flush=True)
    except OSError as error:
        print(name, type(error).__name__, flush=True)
attempt("write", lambda: open({checkout!r} + "/secrets.py", "w"))
attempt("neighbour", lambda: open({neighbour!r}).read())
attempt("beside", lambda: glob.glob({folder!r} + "/*"))
attempt("kill", lambda: os.kill({grader}, signal.SIGTERM))
attempt("stop", lambda: os.kill(os.getppid(), signal.SIGSTOP))
attempt("memory", lambda: open("/proc/{grader}/mem", "r+b"))
attempt("environment", lambda: open("/proc/{grader}/environ", "rb").read())
attempt("place", lambda: os.readlink("/proc/{grader}/cwd"))
attempt("connect", lambda: socket.create_connection(("127.0.0.1", 9), 1))
attempt("own", lambda: open("mine", "w").write("x"))
raise RuntimeError("done")
"""


@LINUX
@ENCLOSED
def test_a_process_reaches_nothing_beyond_its_folder(write, tmp_path):
    neighbour = write("neighbour.py", "x = 1\n")
    text = REACHES.format(
        checkout=str(catalog.ROOT), neighbour=str(neighbour), folder=str(tmp_path), grader=os.getpid()
    )
    with Sandbox(write("gemm_x.py", text), "gemm") as box:
        with pytest.raises(SandboxError, match="done"):
            box.ask(messages.Start())
        said = dict(line.split(" ", 1) for line in (box.folder / "log.txt").read_text().splitlines())
    refused = ("write", "neighbour", "kill", "stop", "memory", "environment", "place", "connect")
    assert {name: said[name] for name in refused} == dict.fromkeys(refused, "PermissionError")
    assert (said["beside"], said["own"]) == ("[]", "1")
    assert not (catalog.ROOT / "secrets.py").exists()


# --- folders of others, and neighbours ---


def test_all_files_are_taken_before_any_runs(write, monkeypatch):
    files = [Submission(write(f"{name}/{ONE}.py", "x = 1\n"), name, f"{name}/{ONE}.py") for name in "ab"]
    seen = []

    def judge(self, verdict, file, target):
        seen.append(file.data)
        for other in files:
            other.path.unlink(missing_ok=True)

    monkeypatch.setattr(Grader, "_judge", judge)
    list(Grader().all(files, workers=1))
    assert seen == [b"x = 1\n"] * 2


def test_verdicts_are_written_as_they_come(monkeypatch, tmp_path):
    """A grader that is killed writes nothing in the end."""
    monkeypatch.setattr(exercising, "_KEPT_SECONDS", -1.0)
    coming = iter([(1, Grade("01.1", ONE, "write", "b")), (0, Grade("01.1", ONE, "write", "a"))])
    found, written = {}, []
    for _ in exercising._noted(coming, found, tmp_path):
        written.append([one["student"] for one in json.loads((tmp_path / "grades.json").read_text())])
    assert written == [["b"], ["a", "b"]]
    assert list(exercising._noted(iter([(2, found[0])]), found, None)) == [(2, found[0])]
    assert len(found) == 3


def test_what_was_ended_from_outside_is_graded_again_alone(write, monkeypatch):
    files = [Submission(write(f"{name}/{ONE}.py", ""), name, f"{name}/{ONE}.py") for name in "ab"]
    ran = []

    def run(self, evidence, work):
        ran.append(work.path.parent.name)
        evidence.figures |= {"float64": 0.0, "sectors": 4.0}
        if ran.count("a") == 1 and ran[-1] == "a":
            raise SandboxError("crashed", "the process died of SIGKILL", disturbed=True)

    monkeypatch.setattr(Grader, "_run", run)
    found = dict(Grader().all(files, workers=1))
    assert ran == ["a", "b", "a"]
    assert "its process was ended from outside: it was graded again, alone" in found[0].notes
    assert [one.kind for one in found[0].findings] == [one.kind for one in found[1].findings] == ["frame"]


def test_a_changed_file_is_laid_at_the_door_of_who_changed_it(write, monkeypatch, tmp_path):
    files = [Submission(write(f"in/{name}/{ONE}.py", ""), name, f"{name}/{ONE}.py") for name in "ab"]
    (tmp_path / "root").mkdir()
    together, seen = threading.Barrier(2), set()

    def judge(self, verdict, file, target):
        first = file.student not in seen  # later it is judged alone
        seen.add(file.student)
        if first:
            together.wait(60)
        verdict.at_large = True
        if file.student == "a":
            (tmp_path / "root" / f"{len(os.listdir(tmp_path / 'root'))}.txt").write_text("")
        if first:
            together.wait(60)

    monkeypatch.setattr(Grader, "_judge", judge)
    found = dict(Grader(root=tmp_path / "root").all(files, workers=2))
    assert [one.kind for one in found[0].findings] == ["changed_files"]
    assert found[1].passed
    assert "files of the checkout changed while it and others ran" in found[1].notes[-1]


def test_nothing_is_graded_by_a_harness_that_changed(write, tmp_path, monkeypatch):
    monkeypatch.setattr(Grader, "_run", lambda *_: pytest.fail("it was run"))
    root = tmp_path / "root"
    (root / "common" / "check").mkdir(parents=True)
    grader = Grader(root=root)
    (root / "common" / "check" / "check.py").write_text("")
    verdict = grader.grade(Submission(write(f"{ONE}.py", solved())))
    assert "what it would be judged by has changed: common/check/check.py (new)" in verdict.reasons[0]


def test_hidden_files_are_graded_or_named(write, tmp_path):
    for name in (f".a/{ONE}.py", f"__b/deep/{ONE}.py", f"c/__pycache__/{ONE}.py", ".git/config", ".git/x.py",
                 f"d/.{ONE}.py", "e/.venv/lib/x.py"):  # fmt: skip
        write(name, "")
    found, left_out = folders.submissions(tmp_path)
    assert [(one.student, one.file) for one in found] == [
        (".a", f".a/{ONE}.py"), ("__b", f"__b/deep/{ONE}.py"), ("c", f"c/__pycache__/{ONE}.py"),
    ]  # fmt: skip
    assert left_out == [
        ".git: hidden, with 2 files named after no exercise",
        f"d/.{ONE}.py: hidden, with 1 file named after no exercise",
        "e/.venv: hidden, with 1 file named after no exercise",
    ]


def test_folders_in_folders_have_an_end(tmp_path):
    place = tmp_path
    for _ in range(1100):
        place /= "d"
        place.mkdir()
    file = place / f"{ONE}.py"
    file.write_text("")
    try:
        (found,), left_out = folders.submissions(tmp_path)
        assert (found.student, left_out) == ("d", [])
    finally:  # pytest's own tidying does not reach that deep
        file.unlink()
        while place != tmp_path:
            place.rmdir()
            place = place.parent


def test_strange_things_are_named(write, tmp_path):
    path = write(f"a/{ONE}.py", "")
    os.mkfifo(tmp_path / "a" / "pipe.py")
    (tmp_path / "b").symlink_to("a")
    (tmp_path / "a" / f"{ONE}.py.py").symlink_to("/dev/zero")
    (tmp_path / "grades.json").symlink_to("/etc/passwd")
    (tmp_path / f"c.py/{ONE}.py").parent.mkdir()
    (tmp_path / f"c.py/{ONE}.py").write_text("")
    found, left_out = folders.submissions(tmp_path)
    assert [one.file for one in found] == [f"a/{ONE}.py", f"c.py/{ONE}.py"]
    assert found[0].path == path
    assert [text.partition(":")[0] for text in left_out] == [f"a/{ONE}.py.py", "a/pipe.py", "b", "grades.json"]


def test_what_may_be_mistaken_is_said():
    files = [Submission(Path(f"{n}.py"), student) for n, student in (("x", "Anna"), ("x", "anna"), ("x", "Ａnna"),
                                                                     ("x", "Anna"), ("y", "Anna"))]  # fmt: skip
    said = folders.doubles(files)
    assert sorted(said) == [0, 1, 2, 3]
    assert "several files of this name" in said[0] == said[3]
    assert said[1] == "the student's name is nearly that of another, Anna"


# --- what is shown ---


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Müller", "Müller"), ("\x1b[2J", "\\x1b[2J"), ("a\nb", "a\\x0ab"), ("\u202egnp.py", "\\u202egnp.py"),
        ("\x9b31m", "\\x9b31m"), ("a\u200bb", "a\\u200bb"), ("\U000e0041", "\\U000e0041"), ("\ufeffa", "\\ufeffa"),
    ],
)  # fmt: skip
def test_signs_that_act_are_shown_and_not_sent(text, shown):
    assert source.printable(text) == shown


def test_nothing_of_a_student_acts_on_a_page_or_a_terminal(tmp_path):
    name = "\x1b]0;x\x07|<img src=x>\u202e[a](http://x)*b*"
    finding = Finding("crashed", "said\x1b[2J\r\npassed | yes | @all ![x](y) <script> www.x.org")
    verdict = Grader().grade(Submission(tmp_path / f"{name}.py", name, name, b""))
    verdict.findings.append(Finding(finding.kind, source.in_one_line(finding.message)))
    _, table = folders.report([verdict], tmp_path)
    text = table.read_text()
    assert len(text.splitlines()) == 3
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e<>\[\]*@]|!\[|://|www\.", text.replace("<br>", ""))
    assert text.splitlines()[2].count("|") == 5


def test_a_report_replaces_a_link(tmp_path):
    (tmp_path / "mine").write_text("keep")
    out = tmp_path / "out"
    out.mkdir()
    (out / "grades.json").symlink_to("../mine")
    os.link(tmp_path / "mine", out / "grades.md")
    folders.report([Grade("01.1", ONE, "write")], out)
    assert (tmp_path / "mine").read_text() == "keep"
    assert not (out / "grades.json").is_symlink()
    assert sorted(path.name for path in out.iterdir()) == ["grades.json", "grades.md"]


# --- the checkout ---


def test_a_file_at_the_root_is_none_of_the_librarys(tmp_path):
    """As if somebody had left it there: the next command must not take it for Python's own."""
    for name in ("common", "lessons"):
        (tmp_path / name).symlink_to(catalog.ROOT / name)
    for name in ("secrets", "difflib", "numba"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('planted')\n")
    for words in (["-m", "common", "list"], ["-c", "import common, secrets, difflib, numba"]):
        done = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, timeout=60,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
        )  # fmt: skip
        assert "planted" not in done.stderr


def test_a_worktrees_hooks_are_watched(tmp_path):
    git, root = tmp_path / "repository" / ".git", tmp_path / "root"
    own = git / "worktrees" / "root"
    for folder in (git / "hooks", own, root):
        folder.mkdir(parents=True)
    for folder in (git, own):
        (folder / "HEAD").write_text("ref")
    (git / "config").write_text("[core]\n")
    (root / ".git").write_text(f"gitdir: {own}\n")
    watched = Checkout(root)
    mark = watched.mark()
    (git / "config").write_text("[core]\nhooksPath = x\n")
    (git / "hooks" / "pre-commit").write_text("")
    assert [str(one) for one in watched.since(mark)] == [
        f"{git}/config (overwritten)",
        f"{git}/hooks/pre-commit (new)",
    ]


def test_the_shapes_that_are_counted_can_be_looked_into():
    for one in exercises.everything():
        if one.kind == "tune":
            problem = grade.Work(one.path, "", one.ladder, one.problems(), one).counted_problem
            assert problem.least_bytes <= grade.SAMPLED_BYTES
            assert isinstance(problem, type(problems.preset(one.preset)))
