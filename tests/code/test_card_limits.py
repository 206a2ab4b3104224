"""Every step starts, at every shape of its plan, what each card that it allows can run: no GPU is needed to say so."""

import json
import os
import subprocess
import sys

import pytest
from sampling import some

from common.book import catalog, device, limits, occupancy
from common.jobs import tasks

FILES = [*catalog.steps(), *catalog.experiments()]
ASKING = [step for step in FILES if tasks.ASKS in catalog.hashes([step.path])]
TRIED = [*ASKING, *some([step for step in FILES if step not in ASKING], 8)]
SECONDS = 3000 if os.environ.get("WORKBOOK_ALL") else 300
ON_8_6 = ["hgemm_pipelined", "hconv3d_mma", "conv2d_tensor_core", "dgrad_minimal_filtering"]

# What a kernel's own arrays and its registers take, only compiling tells. So that is done where it could matter: an
# array beside dynamic shared memory that leaves less than 16 KiB; registers where more than 256 threads may have 255
# each, as the compiler was not told how many there are.
LIMITS = """
import json, sys
from pathlib import Path
from common.book import catalog, limits, occupancy, problems
from common.code import capture, codegen
from common.jobs import tasks
from common.measure import plan

ROOM, THREADS, BYTES = 16 << 10, 256, 300_000_000
count, compiled = 0, set()

def shapes(step):
    planned = [case.problem for case in plan.cases(step.ladder, True, 1) if case.depth != "large"]
    timed = [problems.preset(name) for name in catalog.presets(step)]
    for problem in dict.fromkeys([*planned, *timed]):
        yield problems.fit_batch(problem, BYTES) if problem.batch_key else problem

def look(step, module, problem, names):
    global count
    try:
        launches = codegen.launches(module, problem)
    except ValueError:  # a filter beyond constant memory
        return
    for launch in launches:
        bounds = launch.kernel.targetoptions.get("launch_bounds") or (0,)
        told = launch.threads <= (bounds[0] if isinstance(bounds, tuple) else bounds)
        for name in names:
            count += 1
            dynamic = launch.dynamic_shared_bytes
            limits.require_launch(launch.grid, launch.block, dynamic, name, launch.cluster)
            near = dynamic and dynamic + ROOM > limits.most_shared(name)
            key = id(launch.kernel), str(launch.signature), dynamic, name
            if key in compiled or not (near or (launch.threads > THREADS and not told)):
                continue
            compiled.add(key)
            if sum(one[:2] == key[:2] for one in compiled) > 2:
                continue
            target = step.requires if (step.requires or "").endswith("a") else name
            text = codegen.ptx(launch, [target])[target]
            limits.require_shared(codegen.shared_arrays(text), dynamic, name)
            if not told:
                limits.require_registers(launch.block, codegen.assemble(text, launch.name, target, None, False).registers)

found = {}
for step in map(catalog.find, sys.argv[1:]):
    names = [name for name in occupancy.LIMITS if step.runs_on(name)]
    for group in tasks._by_card(step.path, names):
        with tasks._on_card(group[0]):
            module = catalog.load(step.path, step.ladder)
            for problem in shapes(step):
                try:
                    look(step, module, problem, group)
                except limits.LaunchLimitError as error:
                    found.setdefault(step.name, f"{problem} on {group}: {error}")
print(json.dumps([count, found]))
"""


def looked_at(steps):
    done = subprocess.run(
        [sys.executable, "-c", LIMITS, *(step.name for step in steps)], cwd=catalog.ROOT,
        env=device.environment(False), capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_every_launch_of_the_plan_is_one_that_each_card_takes():
    count, beyond = looked_at(TRIED)
    assert count > 100 * len(TRIED)
    assert beyond == {}
