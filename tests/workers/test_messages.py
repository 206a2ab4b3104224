"""What processes ask of each other: a task is as its struct says, or an error that says what is not."""

import importlib
import json
import re

import pytest

from common.book import catalog, device
from common.jobs import messages, tasks
from common.jobs.messages import Check, Compile, Pair, Prepare, Rival, Tunables
from common.microscope.messages import Trace, TraceOptions
from common.report.messages import Draw
from common.workers import child, isolate
from common.workers.messages import FileTask, Message, ShapeTask, Task, TaskError, decode, encode

FILE = {"path": "/x.py", "ladder": "gemm"}
SHAPE = {"M": 2, "N": 3, "K": 2}
GPU = device.Gpu("NVIDIA Test 9", "9.0", 4, 1 << 30, 1 << 20, "1.2", "13.0")


def layers(root, module):
    """The layers' modules of this name."""
    found = sorted(path.parent.name for path in (root / "common").glob(f"*/{module}.py"))
    return {layer: importlib.import_module(f"common.{layer}.{module}") for layer in found}


def test_every_function_has_a_struct_and_every_struct_a_function(root):
    functions = {
        f"{layer}.{name.removesuffix('_task')}"
        for layer, module in layers(root, "tasks").items()
        for name in vars(module)
        if name.endswith("_task")
    }
    structs = {
        struct.__struct_config__.tag: struct
        for layer, module in layers(root, "messages").items()
        for struct in vars(module).values()
        if isinstance(struct, type) and issubclass(struct, Task) and struct not in (Task, FileTask, ShapeTask)
    }
    assert functions == structs.keys()
    assert child.structs() == structs
    assert len(functions) > 15


def test_every_struct_says_what_it_is():
    for struct in child.structs().values():
        assert struct.__doc__
        assert struct.__struct_config__.frozen
        assert struct.__struct_config__.forbid_unknown_fields


@pytest.mark.parametrize(
    "task",
    [
        Check(**FILE, shape=SHAPE, home="/y.py", helpers={"wide": "/z.py"}, seconds=3, engine="traced", seed=7),
        Compile(**FILE, shape=SHAPE, architectures=["9.0"], others={"small": SHAPE}),
        Pair(**FILE, shape=SHAPE, against={"best": Rival(path="/b.py", helpers={"wide": "/c.py"})}),
        Prepare(**FILE, shapes=[SHAPE], device=GPU, kernels="/kernels"),
        messages.Sweep(**FILE, shape=SHAPE, tile={"BLOCK_M": 64, "ASYNC": True}),
        Trace(**FILE, shape=SHAPE, options=TraceOptions(block=(1, 2, 0), watched=("patch",), tile={"PAD": 1})),
        messages.Turn(gate="/gate", libraries=True),
        messages.Device(),
    ],
    ids=lambda task: task.kind,
)
def test_a_task_arrives_as_it_was_sent(task):
    assert decode(encode([task, task]), child.structs()) == [task, task]


# --- who asks ---


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: Check(**FILE, shape={"M": "2"}),
            "jobs.check: shape = {'M': '2'}: must be dict[str, int]: Expected `int`, got `str`",
        ),
        (lambda: Check(path=3, ladder="gemm", shape=SHAPE), "jobs.check: path = 3: must be str: Expected `str`"),
        (
            lambda: Check(**FILE, shape=SHAPE, engine="cpu"),
            "jobs.check: engine = 'cpu': must be Literal['traced', 'simulator', 'gpu']: Invalid enum value 'cpu'",
        ),
        (
            lambda: Pair(**FILE, shape=SHAPE, against={"best": "/b.py"}),
            "jobs.pair: against = {'best': '/b.py'}: must",
        ),
        (lambda: TraceOptions(block=(1, 2)), "TraceOptions: block = (1, 2): must be tuple[int, int, int] | None"),
        (lambda: Draw(what="house", name="x"), "report.draw: what = 'house': must be"),
    ],
)
def test_who_asks_with_a_wrong_value_hears_of_it(make, says):
    with pytest.raises(TaskError, match=re.escape(says)):
        make()


@pytest.mark.parametrize(
    ("fields", "says"),
    [({"shape": SHAPE, "sead": 3}, "Unexpected keyword argument 'sead'"), ({}, "Missing required argument 'shape'")],
)
def test_who_asks_with_a_wrong_name_hears_of_it(fields, says):
    with pytest.raises(TypeError, match=says):
        Check(**FILE, **fields)


# --- who is asked ---


def read(**fields):
    (found,) = decode(json.dumps([fields]).encode(), child.structs())
    assert isinstance(found, TaskError), found
    return str(found)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"task": "jobs.chek"}, "task 'jobs.chek' is unknown: tasks are grading.ptx_run, jobs.card, "),
        ({}, "task None is unknown: tasks are "),
        ({"task": "jobs.check", **FILE, "shape": SHAPE, "sead": 3}, "jobs.check: sead = 3 is unknown: fields are "),
        ({"task": "jobs.device", "path": "/x.py"}, "jobs.device: path = '/x.py' is unknown: fields are seconds"),
        ({"task": "jobs.check", **FILE}, "jobs.check: shape is missing: must be dict[str, int]"),
        (
            {"task": "jobs.check", **FILE, "shape": SHAPE, "seed": "3"},
            "jobs.check: seed = '3': must be int: Expected",
        ),
        ({"task": "jobs.check", **FILE, "shape": SHAPE, "wide": 1}, "jobs.check: wide = 1: must be bool: Expected"),
        (
            {"task": "jobs.pair", **FILE, "shape": SHAPE, "against": {"best": {"pth": "/b.py"}}},
            "jobs.pair: against = {'best': {'pth': '/b.py'}}: must be dict[str, common.jobs.messages.Rival]: ",
        ),
    ],
)
def test_a_task_that_does_not_fit_is_told_by_its_name_field_and_value(fields, says):
    assert read(**fields).startswith(says)


class Misspelt(Task, frozen=True, kw_only=True, tag="jobs.chek"):
    path: str


class Other(ShapeTask, frozen=True, kw_only=True, tag="jobs.check"):
    sead: int


def test_a_child_says_which_task_it_does_not_understand_and_does_the_others(write):
    file = {"path": str(write("x.py", "x = 1\n")), "ladder": "gemm"}
    tasks = [Misspelt(path="/x.py"), Other(**file, shape=SHAPE, sead=3), Check(**file, shape=SHAPE)]
    misspelt, other, understood = (result for _, result in isolate.run(tasks, True, 60.0))
    assert (misspelt["status"], other["status"], understood["status"]) == ("crashed", "crashed", "unusable")
    assert misspelt["message"].startswith("TaskError: task 'jobs.chek' is unknown: tasks are grading.ptx_run, ")
    assert other["message"].startswith("TaskError: jobs.check: sead = 3 is unknown: fields are ")


def test_long_values_are_cut():
    assert len(read(task="jobs.check", **FILE, shape=SHAPE, seed="7" * 10_000)) < 400


def test_a_struct_without_a_tag_is_named_by_its_class():
    class Part(Message, frozen=True, kw_only=True):
        count: int

    with pytest.raises(TaskError, match="Part: count = 'x': must be int"):
        Part(count="x")


def test_a_status_that_nobody_knows_is_an_error(monkeypatch):
    monkeypatch.setattr(tasks, "device_task", lambda task: {"status": "fine"})
    result = child._attempt(messages.Device())
    assert (result["status"], result["message"]) == (
        "crashed",
        "TaskError: jobs.device: status = 'fine': must be one of right, wrong, refused, unjudged, unusable, crashed, "
        "timed_out",
    )


# --- every task on a copy has the copy's helpers and the original's place ---

HELPED = """
from lessons.wide import NAME
TUNABLES = {NAME: (1, 2)}
globals()[NAME] = len(__file__)
def launch(a, b, c): ...
def explain(problem, weights): return f"{NAME} {__file__}"
"""


@pytest.mark.parametrize("kind", [Tunables, messages.Explain])
def test_a_copy_has_its_own_helpers(kind, write):
    helpers = {"wide": str(write("wide.py", "NAME = 'OWN'\n"))}
    home = str(catalog.LESSONS / "01_naive" / "gemm_helped.py")
    path = str(write("gemm_helped.py", HELPED))
    result = child._attempt(kind(path=path, ladder="gemm", home=home, helpers=helpers, shape=SHAPE))
    assert result["status"] == "right", result
    if kind is Tunables:
        assert (result["tunables"], result["shipped"]) == ({"OWN": [1, 2]}, {"OWN": len(home)})
    else:
        assert result["text"] == f"OWN {home}"
