"""Tasks and results: what comes back is of the type that a task names, and a copy of a file has its own helpers."""

import pytest
from msgspec import json

from common.catalog import catalog, device
from common.check import loading, run
from common.run import child, messages
from common.run.messages import Check, typed

FILE = {"path": "/x.py", "ladder": "gemm"}
NAIVE = catalog.find("gemm_naive")
SHAPE = {"M": 2, "N": 3, "K": 2}
GPU = device.Gpu("NVIDIA Test 9", "9.0", 4, 1 << 30, 1 << 20, "1.2", "13.0")


@pytest.mark.parametrize(("task", "result", "says"), [
    (messages.Ask(function=loading.this_device), {}, "status"),
    (Check(**FILE, shape=SHAPE), {"shape": {"M": 1.5}}, "Expected `int`, got `float` - at `$.shape[...]`"),
    (Check(**FILE, shape=SHAPE), {"engine": "cpu"}, "Invalid enum value 'cpu' - at `$.engine`"),
    (messages.Time(**FILE, shape=SHAPE), {"timing": {"median_ms": -1.0}}, "Expected `float` > 0.0"),
])  # fmt: skip
def test_a_result_that_does_not_fit_is_a_crash_told_by_task_field_and_value(task, result, says):
    found = typed(task, json.encode({**({"status": "right"} if result else {}), **result}))
    assert found.status == "crashed"
    assert found.message.startswith(f"{task.kind} gave no result: ")
    assert says in found.message


# --- every task on a copy has the copy's helpers and the original's place ---

HELPED = """
from lessons.toolkit.memory import NAME
def launch(a, b, c): raise ValueError(f"{NAME} {__file__}")
"""


def test_a_copy_has_its_own_helpers(write):
    helpers = {"memory": str(write("memory.py", "NAME = 'OWN'\n"))}
    home = str(catalog.LESSONS / "01_naive" / "gemm_helped.py")
    path = str(write("gemm_helped.py", HELPED))
    place = {"path": path, "ladder": "gemm", "home": home, "helpers": helpers, "shape": SHAPE}
    result = child.attempt(messages.Compile(**place, architectures=["9.0"]))
    assert result.message == f"OWN {home}"


def test_what_a_function_returns_arrives_with_its_type(monkeypatch):
    monkeypatch.setattr(loading, "this_device", card)
    assert run.ask("failed", loading.this_device, 3, on_gpu=False) == (GPU, 3)
    with pytest.raises(run.DeviceError, match=r"^failed: TypeError"):
        run.ask("failed", loading.this_device, on_gpu=False)


def card(number: int) -> tuple[device.Gpu, int]:
    return GPU, number
