"""What processes ask of each other: a task is as its struct says, or an error that says what is not."""

import importlib
import json
import re
from typing import TypedDict, get_type_hints

import pytest
from msgspec import to_builtins

from common.book import catalog, device, problems, schema
from common.jobs import messages, tasks
from common.jobs.messages import Check, Compile, Pair, Prepare, Rival, Tunables
from common.microscope.messages import Trace, TraceOptions
from common.report.messages import Draw
from common.workers import child, isolate
from common.workers import messages as workers_messages
from common.workers.messages import FileTask, Message, ShapeTask, Task, TaskError, at, decode, encode, require

FILE = {"path": "/x.py", "ladder": "gemm"}
NAIVE = catalog.find("gemm_naive")
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
            "jobs.check: shape.M must be an integer, is '2'",
        ),
        (lambda: Check(path=3, ladder="gemm", shape=SHAPE), "jobs.check: path must be text, is 3"),
        (
            lambda: Check(**FILE, shape=SHAPE, engine="cpu"),
            "jobs.check: engine must be one of traced, gpu, is 'cpu'",
        ),
        (
            lambda: Pair(**FILE, shape=SHAPE, against={"best": "/b.py"}),
            "jobs.pair: against.best must be an object, is '/b.py'",
        ),
        (lambda: TraceOptions(block=(1, 2)), "TraceOptions: block must be a list of 3, is (1, 2)"),
        (lambda: Draw(what="house", name="x"), "report.draw: what must be one of card, lesson, code, is 'house'"),
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
        ({"task": "jobs.chek"}, "task 'jobs.chek' is unknown: tasks are grading.ptx_run, jobs.accuracy, jobs.card, "),
        ({}, "task None is unknown: tasks are "),
        ({"task": "jobs.check", **FILE, "shape": SHAPE, "sead": 3}, "jobs.check: sead = 3 is unknown: fields are "),
        ({"task": "jobs.device", "path": "/x.py"}, "jobs.device: path = '/x.py' is unknown: fields are seconds"),
        ({"task": "jobs.check", **FILE}, "jobs.check: shape must be an object, is missing"),
        (
            {"task": "jobs.check", **FILE, "shape": SHAPE, "seed": "3"},
            "jobs.check: seed must be an integer, is '3'",
        ),
        ({"task": "jobs.check", **FILE, "shape": SHAPE, "wide": 1}, "jobs.check: wide must be true or false, is 1"),
        (
            {"task": "jobs.pair", **FILE, "shape": SHAPE, "against": {"best": {"pth": "/b.py"}}},
            "jobs.pair: against.best.path must be text, is missing",
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

    with pytest.raises(TaskError, match="Part: count must be an integer, is 'x'"):
        Part(count="x")


def test_a_status_that_nobody_knows_is_an_error(monkeypatch):
    monkeypatch.setattr(tasks, "device_task", lambda task: {"status": "fine"})
    result = child._attempt(messages.Device())
    assert (result["status"], result["message"]) == (
        "crashed",
        "TaskError: jobs.device: status must be one of right, wrong, refused, unjudged, unusable, crashed, "
        "timed_out, is 'fine'",
    )


# --- what comes back ---


@pytest.mark.parametrize(
    ("task", "result", "says"),
    [
        (messages.Device(), {}, "jobs.device: status must be one of right, wrong, .*timed_out, is missing"),
        (Check(**FILE, shape=SHAPE), {"shape": {"M": 1.5}}, "jobs.check: shape.M must be an integer, is 1.5"),
        (Check(**FILE, shape=SHAPE), {"engine": "cpu"}, "jobs.check: engine must be one of traced, gpu"),
        (
            Check(**FILE, shape=SHAPE),
            {"findings": [{"kind": "wrong"}]},
            r"jobs.check: findings\[0\].message must be text, is missing",
        ),
        (
            messages.Time(**FILE, shape=SHAPE),
            {"timing": {"median_ms": -1.0, "p20_ms": 1.0, "p80_ms": 1.0, "median_error": 0.0, "repeats": 3}},
            "jobs.time: timing.median_ms must be a number above 0, is -1.0",
        ),
        (Trace(**FILE, shape=SHAPE), {"trace": {"ladder": "gemm"}}, "jobs.trace: trace.shape must be an object"),
    ],
)
def test_a_result_that_does_not_fit_is_told_by_its_task_field_and_value(task, result, says):
    with pytest.raises(TaskError, match=says):
        require(task, {**({"status": "right"} if result else {}), **result})


def test_who_waits_for_a_result_that_does_not_fit_is_told_so():
    ((_, result),) = isolate.run([Misread(**at(NAIVE, problems.FIRST["gemm"]))], True, 60.0)
    assert result["message"].startswith("TaskError: jobs.tunables: seconds must be text, is ")


class Named(TypedDict, total=False):
    status: str
    message: str
    seconds: str


class Misread(ShapeTask[Named], frozen=True, kw_only=True, tag="jobs.tunables"):
    """Takes what is answered for something else."""


@pytest.mark.parametrize("name", child.structs())
def test_every_status_is_taken_from_every_task(name):
    """msgspec reads a TypedDict's words in the module of its subclass, whose own names they may meet."""
    kind = workers_messages._found(child.structs()[name])
    assert [schema.read({"status": one}, kind)["status"] for one in workers_messages.STATUSES] == [
        *workers_messages.STATUSES
    ]


@pytest.mark.parametrize("name", child.structs())
def test_a_task_answers_with_what_its_struct_names(name):
    layer, _, function = name.partition(".")
    does = getattr(child._tasks_of(layer), function + child._DOES)
    assert get_type_hints(does)["return"] is workers_messages._found(child.structs()[name])


@pytest.mark.parametrize(
    ("simulator", "asked"),
    [
        (True, [(Check, {"engine": "traced"}), (Trace, {"options": TraceOptions(watched=("a",), every=True)})]),
        (
            False,
            [
                (messages.Compile, {"architectures": ["9.0"], "machine_code": True, "lenient": True}),
                (messages.Card, {"architecture": "9.0", "show": "sass"}),
                (messages.Launches, {}),
                (Tunables, {}),
            ],
        ),
    ],
    ids=["simulator", "compiler"],
)
def test_nothing_of_a_result_is_lost_on_its_way(simulator, asked, monkeypatch):
    said = []
    monkeypatch.setattr(
        workers_messages, "require", lambda task, result: said.append(result) or require(task, result)
    )
    place = at(NAIVE, problems.FIRST["gemm"])
    found = [result for _, result in isolate.run([kind(**place, **more) for kind, more in asked], simulator, 60.0)]
    assert json.loads(json.dumps(to_builtins(found))) == said
    assert {result["status"] for result in found} <= {"right", "unusable"}, found


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


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"hello": 7}', {"hello": 7}),
        (b'{"ended": -9}', {"ended": -9}),
        (b'{"pid": 7, "number": 0, "result": {"status": "right", "own": 1}}',
         {"pid": 7, "number": 0, "result": {"status": "right", "own": 1}}),
        *[(line, {}) for line in (b"", b"{", b"7", b"[" * 99_999, b'{"hello": "7"}', b'{"pid": 7.5}')],
        (b'{"pid": 7, "number": 0, "result": "right"}', {}),
    ],
)  # fmt: skip
def test_a_line_of_a_worker_is_what_the_harness_writes_or_nothing(line, said):
    assert workers_messages.parsed(line) == workers_messages.Line(**said)


def test_a_worker_says_which_of_its_options_is_none():
    options = {"folder": "x", "tasks": "x", "warm": False, "wait": "no", "memory": 1, "files": 1}
    with pytest.raises(schema.SchemaError, match=r"options\.wait must be true or false, is 'no'"):
        child.main(json.dumps(options))
