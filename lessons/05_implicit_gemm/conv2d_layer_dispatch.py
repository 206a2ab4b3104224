"""conv2d_layer_dispatch: picks a kernel and a tile for each layer, by a model, a record or a measurement.

Previous step: conv2d_fused_unroll_gemm
New idea: no kernel is best for every layer. A model counts what each candidate issues, moves and wastes, and ranks
    them. On a GPU, prepare() then times those near the top on a part of the batch, once, as cuDNN's benchmark mode
    does, unless choices.json has the times of this layer on this card. Without a GPU the model decides.
Loads per FMA: those of the kernel that is chosen; `python -m lessons.05_implicit_gemm choose PRESET` says which.
Run: python -m lessons.05_implicit_gemm conv2d_layer_dispatch
"""

import importlib
import json
from pathlib import Path
from typing import NamedTuple

from numba import cuda

layer_candidates = importlib.import_module("lessons.05_implicit_gemm.helpers.layer_candidates")
layer_times = importlib.import_module("lessons.05_implicit_gemm.helpers.layer_times")
# What it chooses among, kernels with tiles; and a function of x and y that computes y with one of them
candidates, bind = layer_candidates.candidates, layer_candidates.bind
estimate, measure = layer_times.estimate, layer_times.measure  # milliseconds: by the model, and on the GPU
CHOICES = Path(__file__).with_name("choices.json")  # {GPU: {shape: {kernel and tile: milliseconds}}}
NEAR = 1.6  # measured are the candidates that the model puts within this factor of its best
WORTHWHILE_MS = 0.2  # a shorter launch is left to the model


class Choice(NamedTuple):
    """What was chosen for a problem, and why, in words."""

    candidate: layer_candidates.Candidate
    why: str
    estimates: dict  # the model's, by candidate
    measured: dict  # milliseconds by candidate


_chosen = {}  # for this process, by GPU and shape


def choose(problem, filt=None):
    """The candidate for a problem: recorded or measured on this GPU if `filt` is on one, else the model's first."""
    gpu = gpu_name() if hasattr(filt, "__cuda_array_interface__") else None
    key = gpu, str(problem)
    if key not in _chosen:
        estimates = {candidate: estimate(candidate, problem) for candidate in candidates(problem)}
        first = min(estimates, key=lambda candidate: estimates[candidate].ms)
        times = {}
        if gpu is None:
            why = "the model's fastest: no GPU to measure on"
        elif estimates[first].ms < WORTHWHILE_MS:
            why = f"the model's fastest: a launch below {WORTHWHILE_MS} ms is not measured"
        elif times := records(gpu, problem, estimates):
            why = f"recorded as fastest on {gpu}"
        else:
            near = [c for c in estimates if estimates[c].ms <= NEAR * estimates[first].ms]
            times, why = measure(near, problem, filt), f"measured as fastest of {len(near)} on {gpu}"
        _chosen[key] = Choice(min(times, key=times.get, default=first), why, estimates, times)
    return _chosen[key]


def gpu_name():
    return cuda.get_current_device().name


def records(gpu, problem, known):
    """Recorded milliseconds of those candidates that are known, for this GPU and shape."""
    times = json.loads(CHOICES.read_text(encoding="utf-8")).get(gpu, {}).get(str(problem), {})
    return {candidate: times[str(candidate)] for candidate in known if str(candidate) in times}


def prepare(filt, problem):
    """The chosen candidate, its weights prepared. What this takes, measuring included, is the prepare column."""
    return bind(choose(problem, filt).candidate, filt, problem)


def launch(x, chosen, y):
    chosen(x, y)
