"""On a GPU: every candidate of conv2d_layer_dispatch against its choice, at drawn shapes and on the two layers.

python tests/dispatch_race.py prints one JSON line per shape. Worker processes compile side by side; what is timed
runs under a lock, one at a time.
"""

import fcntl
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

os.environ["NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS"] = "0"  # tiny grids are meant; read when Numba is imported

from common.catalog import catalog, device, problems
from common.catalog.problems import Conv2d

LAYERS = ("ece408-layer1", "ece408-layer2")
DRAWN, SEED = 4, 408
AT_LEAST_MS = 0.45  # by the model, so that a launch takes 0.3 ms
MAX_BYTES = 8 << 30
ROUNDS = 25
WORKERS = 4


def draw(dispatch, count=DRAWN, seed=SEED):
    """Drawn shapes, every third with one channel; N as large as a launch needs to take long enough."""
    rng = random.Random(seed)
    drawn = []
    while len(drawn) < count:
        channels = 1 if len(drawn) % 3 == 0 else rng.randint(2, 64)
        one = Conv2d(
            N=1, C=channels, H=rng.randint(8, 80), W=rng.randint(8, 80), K=rng.randint(1, 64),
            R=rng.randint(1, 7), S=rng.randint(1, 7),
        )  # fmt: skip
        many = replace(one, N=4096)
        per_image = min(dispatch.estimate(c, many).ms for c in dispatch.candidates(many)) / many.N
        drawn.append(replace(one, N=min(int(AT_LEAST_MS / per_image) + 1, MAX_BYTES // one.least_bytes)))
    return drawn


def race(dispatch, problem, lock):
    """Median milliseconds of every candidate, and of the choice relative to the fastest of them, round by round."""
    import numpy as np
    from numba import cuda

    from common.catalog import inputs

    _, weights = inputs.normals(replace(problem, N=1), 0)
    filt = cuda.to_device(weights)
    known = dispatch.candidates(problem)
    one_x = cuda.to_device(np.ones((1, *problem.input_shape[1:]), np.float32))
    one_y = cuda.device_array((1, *problem.output_shape[1:]), np.float32)
    for candidate in known:
        dispatch.bind(candidate, filt, problem)(one_x, one_y)  # compiles
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        x = cuda.to_device(np.random.default_rng(0).standard_normal(problem.input_shape, dtype=np.float32))
        y = cuda.device_array(problem.output_shape, np.float32)
        chosen = dispatch.prepare(filt, problem)
        runs = {str(candidate): dispatch.bind(candidate, filt, problem) for candidate in known}
        runs["dispatch"] = lambda x, y: dispatch.launch(x, chosen, y)
        times = {name: [] for name in runs}
        for round_number in range(ROUNDS + 2):
            events = {name: (cuda.event(), cuda.event()) for name in runs}
            order = list(runs)
            order = order[round_number % len(order) :] + order[: round_number % len(order)]
            runs["dispatch"](x, y)  # while it runs, the host queues the others
            for name in order:
                events[name][0].record()
                runs[name](x, y)
                events[name][1].record()
            cuda.synchronize()
            if round_number >= 2:  # the first rounds warm up
                for name, (start, end) in events.items():
                    times[name].append(start.elapsed_time(end))
        del x, y
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)
    medians = {name: statistics.median(samples) for name, samples in times.items()}
    best = min((name for name in medians if name != "dispatch"), key=medians.get)
    ratio = statistics.median(a / b for a, b in zip(times["dispatch"], times[best], strict=True))
    choice = dispatch.choose(problem, filt)
    return {
        "shape": str(problem), "chosen": str(choice.candidate), "why": choice.why, "best": best, "ratio": ratio,
        "ms": medians,
    }  # fmt: skip


def main(worker=None, lock_file=None):
    """Race all shapes, spread over workers, or those of one worker."""
    if worker is None:
        with tempfile.NamedTemporaryFile() as file:
            command = [sys.executable, __file__]
            children = [subprocess.Popen([*command, str(i), file.name]) for i in range(WORKERS)]
            return max(child.wait() for child in children)
    assert device.gpu_count()
    dispatch = catalog.load(catalog.find("conv2d_layer_dispatch").path, "conv2d")
    shapes = [*(problems.PRESETS[name] for name in LAYERS), *draw(dispatch)]
    with open(lock_file, "w") as lock:
        for problem in shapes[int(worker) :: WORKERS]:
            print(json.dumps(race(dispatch, problem, lock)), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
