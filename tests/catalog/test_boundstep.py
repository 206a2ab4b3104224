"""A step's functions are called in order, each with what it takes; the stage that a process is at."""

from types import SimpleNamespace

from common.catalog import problems, stages
from common.catalog.boundstep import BoundStep

GEMM = problems.Gemm(M=2, N=3, K=4)


def test_workspace_and_prepare_are_called_in_order_and_the_workspace_comes_last():
    called = []
    module = SimpleNamespace(
        workspace=lambda problem: called.append(problem) or "workspace",
        prepare=lambda weight, problem: called.append((weight, problem)) or "prepared",
        launch=lambda *given: called.append(given),
    )
    problem = problems.Conv3d(N=1, C=1, D=3, H=3, W=3, K=1, T=1, R=1, S=1)
    step = BoundStep(module, problem)
    step.run("x", "weight", "y")
    step.launch("x2", "y")
    assert called == [
        problem,
        ("weight", problem),
        ("x", "prepared", "y", problem.geometry, "workspace"),
        ("x2", "prepared", "y", problem.geometry, "workspace"),
    ]


def test_tile_constants_go_to_what_takes_them():
    called = []

    def workspace(problem):
        called.append({})

    def prepare(weight, problem, **tile):
        called.append(tile)
        return weight

    def launch(a, b, c, BLOCK_M=8):
        called.append(BLOCK_M)

    module = SimpleNamespace(workspace=workspace, prepare=prepare, launch=launch)
    BoundStep(module, GEMM, {"BLOCK_M": 16}).run("a", "b", "c")
    assert called == [{}, {"BLOCK_M": 16}, 16]
    called.clear()
    BoundStep(module, GEMM).run("a", "b", "c")
    assert called == [{}, {}, 8]


def test_the_innermost_stage_is_told_and_each_change_is_a_sign():
    before = stages.now()[1]
    with stages.stage("outer"):
        with stages.stage("inner"):
            assert stages.now()[0] == "inner"
        name, sign = stages.now()
        assert (name, sign > before) == ("outer", True)
        stages.advance()
        assert stages.now()[1] != sign
    assert stages.now()[0] == ""
