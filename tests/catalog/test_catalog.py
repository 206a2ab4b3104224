"""Finding steps from folders, ordering them, loading them, and telling an edit from a changed word."""

import re
import sys
from pathlib import Path

import pytest

from common.catalog import catalog, exercises, sources
from common.catalog.catalog import CatalogError
from common.catalog.problems import LADDERS
from common.catalog.store import SchemaError, StoreError

LAUNCH = {"gemm": "a, b, c", "conv2d": "x, filt, y", "conv3d": "x, filt, y, geometry"}


def header(name, previous, key="Previous step"):
    return f'"""{name}: does something.\n\n{key}: {previous}\n"""\n'


@pytest.fixture
def tree(tmp_path):
    """Write step files below a lessons folder: ``tree({"01_a/gemm_x": "none"})``."""

    def tree(files, key="Previous step"):
        for place, previous in files.items():
            path = tmp_path / f"{place}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(header(path.stem, previous, key) + f"def launch({LAUNCH['gemm']}): ...\n")
        return tmp_path

    return tree


# --- the shipped lessons ---


def test_shipped_steps_form_a_chain_per_ladder():
    found = catalog.steps()
    order = list(LADDERS)
    assert [order.index(step.ladder) for step in found] == sorted(order.index(step.ladder) for step in found)
    for ladder in LADDERS:
        rungs = [step for step in found if step.ladder == ladder]
        assert [step.predecessor for step in rungs] == [None, *(step.name for step in rungs)][: len(rungs)]
        # a later step is never in an earlier lesson
        assert [step.lesson for step in rungs] == sorted(step.lesson for step in rungs)


def test_shipped_steps_grow_from_what_readers_have_met_and_names_are_of_one_file():
    steps = catalog.steps()
    varied = [step for step in catalog.everything() if step.experiment]
    for number, step in enumerate(steps):
        of_own = [one.name for one in steps[:number] if one.ladder == step.ladder]
        of_others = [one.name for one in steps if one.ladder != step.ladder and one.lesson <= step.lesson]
        assert step.builds_on in [None, *of_own, *of_others], step.name
    assert {one.predecessor for one in varied} <= {one.name for one in steps}
    names = [one.name for one in (*steps, *varied)]
    assert len(set(names)) == len(names)
    helpers = [path.stem for path in catalog.LESSONS.rglob("*.py") if catalog.is_helper(path)]
    assert len(set(helpers)) == len(helpers)


def test_no_step_file_is_left_out():
    names = [step.name for step in catalog.everything()]
    files = [
        path.stem
        for pattern in ("[0-9]*/*.py", "[0-9]*/experiments/*.py")
        for path in catalog.LESSONS.glob(pattern)
        if path.stem != "__main__"
    ]
    assert sorted(names) == sorted(files)


def test_no_step_or_exercise_is_named_in_the_harness(root):
    """What a lesson's steps are called, and which of them is shown, its own files say."""
    names = {one.name for one in (*catalog.everything(), *exercises.everything())}
    assert len(names) > 40
    for path in sorted((root / "common").rglob("*.py")):
        assert not names.intersection(re.findall(r"\w+", path.read_text(encoding="utf-8"))), path


def test_every_shipped_file_loads():
    for step in catalog.everything():
        assert callable(catalog.load(step.path, step.ladder).launch)


# --- what a step needs, and where it comes from ---


@pytest.fixture
def second(tmp_path):
    """The second of two steps, with these lines in its file."""

    def second(docstring="", lines=""):
        for name, previous, *more in (("gemm_a", "none", "", ""), ("gemm_b", "gemm_a", docstring, lines)):
            text = f'"""{name}: does something.\n\nPrevious step: {previous}\n{more[0]}"""\n{more[1]}\n'
            path = tmp_path / "01_a" / f"{name}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text + f"def launch({LAUNCH['gemm']}): ...\n")
        return catalog.steps(tmp_path)[1]

    return second


def test_a_step_says_what_it_needs(second):
    plain = second()
    assert (plain.builds_on, plain.precision, plain.requires) == ("gemm_a", "fp32", None)
    step = second(lines='PRECISION = "tf32"\nREQUIRES = "9.0a"  # wgmma')
    assert (step.precision, step.requires) == ("tf32", "9.0a")
    assert second("Builds on: gemm_a\n").builds_on == "gemm_a"


@pytest.mark.parametrize(("requires", "runs"), [
    (None, "7.5 8.0 9.0 10.0"), ("8.0", "8.0 9.0 10.0"), ("9.0", "9.0 10.0"), ("9.0a", "9.0"), ("10.0", "10.0"),
])  # fmt: skip
def test_a_step_runs_where_its_requirement_is_met(second, requires, runs):
    step = second(lines=f'REQUIRES = "{requires}"' if requires else "")
    assert [name for name in ("7.5", "8.0", "9.0", "10.0") if step.runs_on(name)] == runs.split()


# --- trees of our own ---


@pytest.mark.parametrize(("files", "names"), [
    ({"01_a/gemm_x": "none", "01_a/gemm_y": "none"}, ("gemm_x", "gemm_y", "both")),
    ({"01_a/gemm_x": "none", "01_a/gemm_y": "gemm_x", "02_b/gemm_z": "gemm_x"}, ("gemm_y", "gemm_z", "gemm_x")),
    ({"01_a/gemm_x": "none", "01_a/gemm_y": "gemm_lost"}, ("gemm_y", "'gemm_lost'", "gemm ladder", "gemm_x")),
    ({"01_a/gemm_x": "gemm_y", "01_a/gemm_y": "gemm_x"}, ("gemm_", "no steps")),
    ({"01_a/gemm_x": "none", "01_a/conv2d_y": "gemm_x"}, ("conv2d_y", "'gemm_x'", "conv2d ladder")),
], ids=["two first steps", "a fork", "a lost predecessor", "a ring", "of another ladder"])  # fmt: skip
def test_a_broken_chain_names_the_steps(tree, files, names):
    with pytest.raises(CatalogError) as caught:
        catalog.steps(tree(files))
    for name in names:
        assert name in str(caught.value)


@pytest.mark.parametrize(("name", "text", "message"), [
    ("gemm_x", '"""gemm_x: something."""\n', "gemm_x.py: the docstring must have a line 'Previous step: NAME'"),
    ("gemm_x", header("gemm_y", "none"), "gemm_x.py: the docstring must start with 'gemm_x: what it does'"),
    ("pool_x", header("pool_x", "none"), "pool_x.py: the name must start with gemm, conv2d, conv3d"),
])  # fmt: skip
def test_a_missing_header_line_names_the_file_and_the_line(tmp_path, name, text, message):
    (tmp_path / "01_a").mkdir()
    (tmp_path / "01_a" / f"{name}.py").write_text(text)
    with pytest.raises(CatalogError) as caught:
        catalog.steps(tmp_path)
    assert str(caught.value).startswith(message)


def test_an_experiment_says_which_step_it_varies(tree):
    root = tree({"01_a/gemm_x": "none"})
    tree({"01_a/experiments/gemm_x_slow": "gemm_x"}, key="Variant of")
    (variant,) = (step for step in catalog.everything(root) if step.experiment)
    assert (variant.name, variant.predecessor, variant.lesson) == ("gemm_x_slow", "gemm_x", "01_a")
    assert [step.name for step in catalog.steps(root)] == ["gemm_x"]
    assert catalog.find("gemm_x_slow", root) == variant


# --- difference ---


def diff(write, old, new):
    steps = []
    for name, text in (("gemm_a", old), ("gemm_b", new)):
        path = write(f"{name}.py", header(name, "none") + text)
        steps.append(catalog.Step(name, "01_x", "gemm", None, path, "", False))
    return list(sources.difference(*steps))


def test_difference_leaves_docstring_indentation_and_the_own_name_out(write):
    same = diff(write, "def gemm_a(x):\n    return x\n", "if True:\n    def gemm_b(x):\n        return x\n")
    assert [line for line in same if line[0] in "+-"] == ["+ if True:"]
    assert diff(write, "x = 1\n", "x = 1\n") == []


def test_difference_leaves_out_what_the_new_step_imports_from_the_old():
    lines = list(sources.difference(catalog.find("dgrad_implicit_gemm"), catalog.find("dgrad_strided")))
    assert not any(line.startswith("- def plan(") for line in lines)  # in use as it is
    assert any(line.startswith("- ") and "= specialise(pixels, " in line for line in lines)  # replaced
    assert sum(line[0] in "+-" for line in lines) < 150
    lines = list(sources.difference(catalog.find("hgemm_tma"), catalog.find("hgemm_specialised")))
    assert "-     arrived = hopper.barrier_array(STAGES)" in lines  # of the kernel, which has the step's name
    lines = list(sources.difference(catalog.find("hgemm_tma_stores"), catalog.find("hconv3d_im2col")))
    assert any(line.startswith("- def hgemm_tma_stores(") for line in lines)  # the new kernel is in a function
    lines = list(sources.difference(catalog.find("hgemm_wgmma"), catalog.find("hgemm_tma")))
    assert "-             wait_group(PENDING)" in lines  # the old kernel is in a function, the new one is in none
    lines = list(sources.difference(catalog.find("conv2d_shared_tile"), catalog.find("conv2d_coarsened")))
    assert not any(line.startswith("- def channels_staged(") for line in lines)  # by its name
    fused, dispatch = catalog.find("conv2d_fused_unroll_gemm"), catalog.find("conv2d_layer_dispatch")
    assert "- def copy_filters" not in "".join(sources.difference(fused, dispatch))  # in use through the candidates


def test_a_step_is_mostly_new_if_most_of_its_lines_are():
    for name, new in (("conv2d_register_tiled", True), ("gemm_warp_tiles", False)):
        step = catalog.find(name)
        lines = sources.difference(catalog.find(str(step.builds_on)), step)
        assert sources.mostly_new(lines, step) == new


# --- load ---


@pytest.mark.parametrize(
    ("ladder", "text", "message"),
    [
        ("gemm", "x = 1", "launch is missing; a gemm step must define launch(a, b, c)"),
        ("gemm", "def launch(a, b): ...", "launch(a, b) cannot be called as launch(a, b, c): too many"),
        ("conv3d", "def launch(x, filt, y): ...", "cannot be called as launch(x, filt, y, geometry)"),
        (
            "wgrad",
            "def prepare(dy, problem): ...\ndef launch(x, dy, dfilt, geometry): ...",
            "prepare is not for a wgrad step: dy is new at every launch",
        ),
        ("conv2d", "def workspace(p): ...\ndef launch(x, filt, y): ...", "as launch(x, filt, y, workspace)"),
    ],
)
def test_load_says_what_the_file_must_define(write, ladder, text, message):
    path = write("student.py", text + "\n")
    with pytest.raises(CatalogError) as caught:
        catalog.load(path, ladder)
    assert str(caught.value).startswith("student.py: ")
    assert message in str(caught.value)


# --- other constants ---

SWEPT = """
TILE, WPT = 32, 8
ASYNC = False  # whether
ROWS = TILE // WPT
if TILE % WPT:
    raise ValueError(f"{TILE=} must be a multiple of {WPT=}")
def launch(a, b, c): return TILE, WPT, ASYNC, ROWS
"""


def test_other_constants_stand_before_what_is_derived_of_them(write):
    path = write("student.py", SWEPT)
    module = catalog.load(path, "gemm", constants={"WPT": 4, "ASYNC": True})
    assert module.launch(0, 0, 0) == (32, 4, True, 8)
    assert catalog.load(path, "gemm").launch(0, 0, 0) == (32, 8, False, 4)


# --- helpers that lessons share ---


def test_helpers_are_found_through_each_other():
    found = sources.imported_helpers(catalog.find("conv2d_layer_dispatch").path)
    assert [path.stem for path in found] == [
        "grid", "layer_candidates", "layer_times", "memory", "minimal_filtering", "mma",
        "one_channel_pairs", "pasted", "ptx", "tiles", "unroll",
    ]  # fmt: skip
    assert found[4].parent == catalog.LESSONS / "05_implicit_gemm" / "helpers"
    assert sources.imported_helpers(catalog.find("conv2d_naive").path) == []


def test_a_helper_can_be_stood_in_for_in_one_file(write):
    from lessons import toolkit
    from lessons.toolkit import tiles, unroll

    text = "from lessons.toolkit import unroll\nfrom lessons.toolkit.tiles import inlined\n"
    path = write("student.py", text + "def launch(a, b, c): return unroll, inlined\n")
    stand_in = write("kept/unroll.py", Path(unroll.__file__).read_text() + "MINE = 1\n")
    module, through = catalog.load(path, "gemm", None, {"unroll": str(stand_in)}).launch(0, 0, 0)
    assert (module.MINE, module.__file__) == (1, str(stand_in))
    assert through is module.inlined  # another helper has it too
    # and no other file has
    assert (sys.modules["lessons.toolkit.unroll"], toolkit.unroll) == (unroll, unroll)
    assert (sys.modules["lessons.toolkit.tiles"], toolkit.tiles) == (tiles, tiles)
    assert catalog.load(path, "gemm").launch(0, 0, 0) == (unroll, unroll.inlined)


# --- files about the lessons ---


@pytest.mark.parametrize(("content", "why"), [
    ("{", "not readable as JSON"), ("[]", "Expected `object`"), ('{"a": 1}', "Expected `str`, got `int`"),
])  # fmt: skip
def test_a_broken_list_of_what_was_shipped_is_an_error_that_names_the_file(write, monkeypatch, content, why):
    path = write("gemm_x.py", "x = 1\n")
    monkeypatch.setattr(catalog, "LESSONS", path.parent)
    write("shipped.json", content)
    with pytest.raises((StoreError, SchemaError), match=rf"shipped\.json: {re.escape(why)}"):
        sources.as_shipped(path)


def test_what_lessons_say_is_put_together(write, monkeypatch):
    one = write("01_a/lesson.toml", 'photo = "conv2d_x"\naccuracy = ["gemm_x"]\n[timed_from]\nbig = "gemm_x"\n')
    monkeypatch.setattr(catalog, "LESSONS", one.parents[1])
    assert catalog.trained_network() is None
    write("02_b/lesson.toml", 'accuracy = ["gemm_y"]\ntraining = {code = "network", steps = ["gemm_x"]}\n')
    whole = catalog.settings()
    assert (whole.photo, whole.accuracy, whole.timed_from) == ("conv2d_x", ["gemm_x", "gemm_y"], {"big": "gemm_x"})
    assert catalog.trained_network() == (one.parents[1] / "02_b", catalog.Training("network", ["gemm_x"]))
    write("02_b/lesson.toml", "accuracy = 1\n")
    with pytest.raises(SchemaError, match=r"02_b/lesson\.toml: Expected `array`, got `int` - at `\$\.accuracy`"):
        catalog.settings()


# --- source_hash ---


def test_hash_is_blind_to_words_and_layout_and_sees_a_change_of_code(write):
    source = (
        '"""What it does."""\n\nTILE = 16\n\n\ndef f(a):\n    """Computes."""\n    # so\n    return a * TILE + 2.0\n'
    )

    def digest(old="", new=""):
        assert old in source
        return sources.source_hash(write("step.py", source.replace(old, new) if old else source))

    plain = digest()
    same = [
        ("it does", "it really does"), ("# so", "# because"), ('    """Computes."""\n', ""),
        ("a * TILE", "(a * TILE)"),
    ]  # fmt: skip
    assert {digest(*pair) for pair in [*same, ("16", "0x10"), ("\n\n\ndef", "\n\n\n\ndef")]} == {plain}
    changed = [("16", "17"), ("16", "16.0"), ("16", "'16'"), (" * ", " + "), ("f(a)", "f(a, b)"), ("return ", "")]
    assert len({plain, *(digest(*pair) for pair in changed)}) == len(changed) + 1


def test_hash_is_the_same_under_every_python_version(write):
    # the figure of 3.10, 3.11, 3.12 and 3.13; if it changes, every shipped record is stale
    pinned = "3f158f9e45d6739e8e89c5b723fa5f9d32c492b6986a348d04031913d5a1152c"
    assert sources.source_hash(write("a.py", "x = None\n\n\ndef f(a, *, b=1):\n    return a[0] + b\n")) == pinned
