"""Every step starts, at every shape of its plan, what each card that it allows can run: said without a GPU."""

import pytest
import texts
from numba import cuda
from sampling import one_of_each, some

from common.catalog import catalog, limits, problems, sources
from common.check import loading, plan, tasks
from common.machine_code import capture, codegen
from common.run import isolate
from common.run.messages import Compile
from lessons.toolkit import card

FILES = catalog.everything()
ASKING = [step for step in FILES if step.runs_on("8.6") and loading.ASKS in sources.hashes([step.path])]
OTHERS = [step for step in FILES if step not in ASKING]
TRIED = [step for kind in (ASKING, OTHERS) for step in one_of_each(kind, lambda _: "one")]

# What a kernel's own arrays and its registers take, only compiling tells. So that is done where it could matter: an
# array beside dynamic shared memory that leaves less than 16 KiB; registers where more than 256 threads may have 255
# each, as the compiler was not told how many there are.
ROOM, THREADS, BYTES = 16 << 10, 256, 525_000_000


def shapes(step):
    planned = [case for case in plan.cases(step.ladder, True, 1) if case.depth != "large"]
    wide = [case.problem for case in planned if case.wide]
    timed = [problems.preset(name) for name in catalog.presets(step)]
    others = some(list(dict.fromkeys(case.problem for case in planned)), 5)
    for problem in dict.fromkeys([*wide, *timed, *others]):
        yield loading.fitted(problem, BYTES) if problem.batch_key else problem


def look(launch, names):
    """The cards of which only compiling tells if they take the launch; LaunchLimitError with one that does not."""
    bounds = launch.kernel.targetoptions.get("launch_bounds") or (0,)
    told = launch.threads <= (bounds[0] if isinstance(bounds, tuple) else bounds)
    for name in names:
        dynamic = launch.dynamic_shared_bytes
        limits.require_launch(launch.grid, launch.block, dynamic, name, launch.cluster)
        near = dynamic and dynamic + ROOM > limits.most_shared(name)
        if near or (launch.threads > THREADS and not told):
            yield name, told


def compiled(step, launch, name, told):
    """Raises LaunchLimitError if the compiled kernel takes more than the card has."""
    target = step.requires if (step.requires or "").endswith("a") else name
    text = codegen.ptx(launch, [target])[target]
    limits.require_shared(codegen.shared_arrays(text), launch.dynamic_shared_bytes, name)
    if not told:
        code, _ = codegen.machine_code(launch, target, text, disassembled=False)
        limits.require_registers(launch.block, code.registers)


@pytest.mark.parametrize("step", TRIED, ids=lambda step: step.name)
def test_every_launch_of_the_plan_is_one_that_each_card_takes(step):
    count, beyond = 0, []
    groups = loading.by_card(step.path, [name for name in limits.LIMITS if step.runs_on(name)])
    # compiling takes seconds: one launch, another one each day
    compiling = one_of_each(groups, lambda _: "cards of one tile")
    for group in groups:
        with tasks.on_card(group[0]):
            module, unsure = catalog.load(step.path, step.ladder), {}
            for problem in shapes(step):
                try:
                    launches = codegen.launches(module, problem)
                except ValueError:  # a filter beyond constant memory
                    continue
                try:
                    for launch in launches:
                        count += len(group)
                        for name, told in look(launch, group):
                            key = id(launch.kernel), str(launch.signature), launch.dynamic_shared_bytes, name
                            unsure[key] = problem, launch, name, told
                except limits.LaunchLimitError as error:
                    beyond.append(f"{problem} on {group}: {error}")
            drawn = one_of_each(list(unsure.values()), lambda _: "a launch") if group in compiling else []
            for problem, *one in drawn:
                try:
                    compiled(step, *one)
                except limits.LaunchLimitError as error:
                    beyond.append(f"{problem} on {one[1]}: {error}")
    assert count > 10
    assert beyond == []


TOO_LARGE = texts.of("lessons")["too_large"]


@pytest.mark.parametrize(("given", "architectures", "said"), [
    (147_456, ["9.0", "8.6"], "asks for 147456 bytes of dynamic shared memory: a block has at most 101376"),
    (98_304, ["8.6"], "102400 together: a block has at most 101376 on compute capability 8.6"),
    (96_256, ["8.6"], None),
])  # fmt: skip
def test_what_is_compiled_for_an_architecture_is_held_to_its_limits(given, architectures, said, write):
    path = write("gemm_too_large.py", TOO_LARGE.format(given=given))
    task = Compile(path=str(path), ladder="gemm", shape={"M": 1, "N": 1, "K": 1}, architectures=architectures)
    ((_, result),) = isolate.run([task], False, 120.0)
    if said is None:
        assert result.status == "right", result.message
    else:
        assert result.status != "right"
        assert said in result.message


@pytest.mark.parametrize("capability", limits.LIMITS)
def test_so_many_blocks_fit_as_were_asked_for(capability, monkeypatch):
    has = limits.limits(capability)
    monkeypatch.setattr(cuda, "get_current_device", lambda: capture.Device(capability=capability))
    for blocks in (1, 2, 3, 4):
        most = card.shared_bytes(blocks)
        assert most <= limits.most_shared(capability)
        assert limits.occupancy(capability, 32, 32, most).blocks == blocks
        assert limits.occupancy(capability, 32, 32, most + has.shared_unit).blocks < blocks or blocks > 2
    assert card.shared_bytes() == limits.most_shared(capability)


# By the bytes that a block may have: of hgemm_pipelined, of hconv3d_mma for 64, 128 and 256 filters, of
# conv2d_tensor_core for 12 channels and for a large filter, of dgrad_minimal_filtering.
SHAPES = (12, 33, 33, 24, 5, 5), (1, 90, 90, 24, 40, 40)
TILES = {
    "8.0": [(128, 256, 3), [(256, 64, 2, 2), (128, 128, 3, 2), (128, 256, 3, 1)], [12, 3, 1, 1], (64, 8, -4)],
    "8.6": [(128, 128, 3), [(256, 64, 2, 2), (128, 128, 3, 2), (128, 128, 3, 2)], [6, 3, 1, 1], (32, 4, -4)],
    "9.0": [(128, 256, 3), [(256, 64, 2, 2), (128, 128, 3, 2), (128, 256, 4, 1)], [12, 3, 1, 3], (64, 8, 4)],
}


@pytest.mark.parametrize("capability", TILES)
def test_a_step_takes_the_largest_tile_that_fits(capability):
    def load(name):
        return catalog.load(catalog.find(name).path, name.split("_")[0])

    with tasks.on_card(capability):
        half, planning, rows = load("hgemm_pipelined"), load("hconv3d_mma").planning, load("conv2d_tensor_core")
        minimal = load("dgrad_minimal_filtering")
        assert TILES[capability] == [
            (half.BLOCK_M, half.BLOCK_N, half.STAGES),
            [tuple(planning.plan(K, 1).values()) for K in (64, 128, 256)],
            [rows.plan(*shape)[name] for shape in SHAPES for name in ("CHANNELS", "TILES")],
            (minimal.BLOCK_N, minimal.THREAD_N, minimal.GAP),
        ]
