"""What follows a convolution or a product, three ways: in its kernel, in a kernel of its own, and as PyTorch does it.

A lesson's module has ``ways(launch, y)``, which gives epilogues by name, as ``Way`` of ``helpers/beside.py``.
"""

import math
from dataclasses import replace
from functools import partial

import numpy as np

from common.catalog import inputs
from common.catalog.problems import FLOAT16, Convolution
from common.machine_code.capture import BoundStep
from common.timing import peers
from common.timing.timing import Fused

SECONDS = 0.25  # of a pair
ERROR = 0.002  # of a ratio, at which a pair is known well enough


def measure(module, ways, problem, watch):
    """Time a step's epilogues, and PyTorch's own calls if it is installed.

    Raises RuntimeError if a fused epilogue finds something else than a kernel of its own.
    """
    from numba import cuda

    values = inputs.normals(problem, 5)
    x, weight = (cuda.to_device(one.astype(dtype)) for one, (_, dtype) in zip(values, problem.operands, strict=False))
    bound = BoundStep(module, problem)
    bound.allocate()
    bound.prepare(weight)
    y = cuda.device_array(*problem.operands[2])

    def launch(to, epilogue, by=module.launch):
        return by(*bound.arguments(x, to), finish=epilogue)

    alone = partial(launch, y, None)
    made = ways(launch, y)
    for name, way in made.items():
        _require_same(name, way, problem)
    alone()
    cuda.synchronize()
    theirs, layout = _eager(problem, made, watch) if peers.available() else ({}, "")
    limits = {"max_seconds": SECONDS, "target_error": ERROR}
    found = []
    for name, way in made.items():
        eager = theirs.get(name)
        found.append(Fused(
            epilogue=name, saved_bytes=way.saved_bytes, layout=layout if eager else "",
            alone=watch.measure_pairs(way.fused, getattr(way, "alone", alone), **limits),
            separate=watch.measure_pairs(way.separate, way.fused, **limits),
            eager=watch.measure_pairs(eager, way.fused, **limits) if eager else None,
        ))  # fmt: skip
    return found


def _require_same(name, way, problem):
    """Run both once, which compiles them, and compare; kernels of their own may find y rounded to float16."""
    way.fused()
    fused = way.found.copy_to_host().astype(np.float64)
    way.separate()
    separate = way.found.copy_to_host().astype(np.float64)
    half = FLOAT16 in (problem.operands[2][1], way.found.dtype)
    scale = float(np.sqrt(np.mean(separate**2)))
    off = np.abs(fused - separate)
    bound = (4e-3 if half else 1e-5) * (np.abs(separate) + scale)
    if not (math.isfinite(scale) and bool((off <= bound).all())):
        raise RuntimeError(f"{name}: fused it differs from a kernel of its own by up to {float(np.nanmax(off)):.3g}")


def _eager(problem, made, watch):
    """PyTorch's calls by epilogue, in the faster memory layout, and its name; in place where they can be."""
    layout, run = peers.fastest(problem, watch)
    import torch

    if isinstance(problem, Convolution):
        calls = _after_convolution(run, problem, made, watch)
    else:  # a product of int8: its sums times a factor for each column
        factors = torch.rand(problem.output_shape[-1], device="cuda") * 1e-3
        calls = {"quantised": lambda: run().mul(factors).round_().clamp_(-128, 127).to(torch.int8)}
    for call in calls.values():
        call()
    torch.cuda.synchronize()
    return calls, layout


def _after_convolution(run, problem, made, watch):
    """By name, what follows the convolution that ``run`` computes."""
    import torch

    y = run()
    bias = torch.randn(problem.output_shape[-1], device="cuda").to(y.dtype)
    residual = torch.randn_like(y)
    others = [axis for axis in range(y.ndim) if axis != 1]
    biased = partial(run, bias=bias)
    calls = {
        "add_bias": biased,
        "bias_relu": lambda: torch.relu_(biased()),
        "scale": lambda: run().mul_(0.5).to(torch.float16),
        "add_residual": lambda: run().add_(residual),
        "column_moments": lambda: torch.var_mean(run(), dim=others, correction=0),
    }
    return calls | {name: _pair(way, problem, watch) for name, way in made.items() if hasattr(way, "filters")}


def _pair(way, problem, watch):
    """PyTorch's convolution of so many images, and that of 1 x 1 which follows in the way."""
    _, run = peers.fastest(replace(problem, N=way.images), watch)
    import torch

    y = run()
    second = torch.randn((way.filters, y.shape[1], *[1] * (y.ndim - 2)), device="cuda").to(y.dtype)
    convolve = torch.nn.functional.conv2d if y.ndim == 4 else torch.nn.functional.conv3d

    def both():
        between = run()
        return convolve(torch.relu_(between) if way.relu else between, second)

    return both
