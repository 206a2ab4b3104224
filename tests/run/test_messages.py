"""Tasks and results: each has a function, and what comes back is of the type that its struct names."""

import importlib
from typing import get_type_hints

import pytest

from common.catalog import catalog, device
from common.jobs import messages, run, timetasks
from common.jobs.messages import Check
from common.run import child
from common.run import messages as run_messages
from common.run.messages import FileTask, ShapeTask, Task, typed

FILE = {"path": "/x.py", "ladder": "gemm"}
NAIVE = catalog.find("gemm_naive")
SHAPE = {"M": 2, "N": 3, "K": 2}
GPU = device.Gpu("NVIDIA Test 9", "9.0", 4, 1 << 30, 1 << 20, "1.2", "13.0")


def layers(module):
    """The layers' modules of this name."""
    found = sorted(path.parent.name for path in (catalog.ROOT / "common").glob(f"*/{module}.py"))
    return {layer: importlib.import_module(f"common.{layer}.{module}") for layer in found}


STRUCTS = {
    struct.__struct_config__.tag: struct
    for module in (*layers("messages").values(), *layers("tasks").values())
    for struct in vars(module).values()
    if isinstance(struct, type) and issubclass(struct, Task) and struct not in (Task, FileTask, ShapeTask)
}


def test_every_function_has_a_struct_and_every_struct_a_function():
    functions = {
        f"{layer}.{name.removesuffix('_task')}": next(iter(get_type_hints(function).values()))
        for layer, module in layers("tasks").items()
        for name, function in vars(module).items()
        if name.endswith("_task")
    }
    assert functions == STRUCTS
    assert len(functions) > 15


@pytest.mark.parametrize(
    ("task", "result", "says"),
    [
        (messages.Ask(function=timetasks.this_device), {}, "status must be one of right, wrong, "),
        (Check(**FILE, shape=SHAPE), {"shape": {"M": 1.5}}, "shape.M must be an integer, is 1.5"),
        (Check(**FILE, shape=SHAPE), {"engine": "cpu"}, "engine must be one of "),
        (messages.Time(**FILE, shape=SHAPE), {"timing": {"median_ms": -1.0}}, "timing."),
    ],
)
def test_a_result_that_does_not_fit_is_a_crash_told_by_task_field_and_value(task, result, says):
    found = typed(task, {**({"status": "right"} if result else {}), **result})
    assert found["status"] == "crashed"
    assert found["message"].startswith(f"{task.kind} gave no result: ")
    assert says in found["message"]


@pytest.mark.parametrize("name", STRUCTS)
def test_a_task_answers_with_what_its_struct_names(name):
    layer, _, function = name.partition(".")
    does = getattr(child._tasks_of(layer), f"{function}_task")
    assert get_type_hints(does)["return"] is run_messages._found(STRUCTS[name])


# --- every task on a copy has the copy's helpers and the original's place ---

HELPED = """
from lessons.wide import NAME
TUNABLES = {NAME: (1, 2)}
globals()[NAME] = len(__file__)
def launch(a, b, c): ...
def explain(problem, weights): return f"{NAME} {__file__}"
"""


def test_a_copy_has_its_own_helpers(write):
    helpers = {"wide": str(write("wide.py", "NAME = 'OWN'\n"))}
    home = str(catalog.LESSONS / "01_naive" / "gemm_helped.py")
    path = str(write("gemm_helped.py", HELPED))
    result = child.attempt(messages.Explain(path=path, ladder="gemm", home=home, helpers=helpers, shape=SHAPE))
    assert result["status"] == "right", result
    assert result["text"] == f"OWN {home}"


def test_what_a_function_returns_arrives_with_its_type(monkeypatch):
    monkeypatch.setattr(timetasks, "this_device", card)
    assert run.ask("failed", timetasks.this_device, 3, on_gpu=False) == (GPU, 3)
    with pytest.raises(run.DeviceError, match=r"^failed: TypeError"):
        run.ask("failed", timetasks.this_device, on_gpu=False)


def card(number: int) -> tuple[device.Gpu, int]:
    return GPU, number
