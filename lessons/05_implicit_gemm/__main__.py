import argparse
import os
from pathlib import Path

from common.catalog import catalog, device, problems
from lessons import run


def choose_parser():
    """The options of ``choose``."""
    about = "What conv2d_layer_dispatch chooses for a layer, and why; measured, where there is a GPU."
    parser = argparse.ArgumentParser(prog=f"python -m lessons.{Path(__file__).parent.name} choose", description=about)
    parser.add_argument("layer", metavar='PRESET|"N=1 C=2 ..."', help="such as ece408-layer1, or a shape")
    parser.add_argument("--sim", action="store_true", help="as if there were no GPU: by the model alone")
    parser.set_defaults(command=_choose, json=False)
    return parser


def _choose(options):
    step, known = catalog.find("conv2d_layer_dispatch"), "=" not in options.layer
    layer = problems.preset(options.layer, step.ladder) if known else problems.parse_shape(step.ladder, options.layer)
    weights = None
    os.environ.update(device.PLAIN)  # before Numba is imported
    if not options.sim and device.gpu_count():
        import numpy as np
        from numba import cuda

        from common.check import loading

        layer = loading.fitted(layer, loading.room())
        weights = cuda.to_device(np.ones(layer.weight_shape, layer.input_dtype))
    print(f"{layer}\n{_explained(catalog.load(step.path, step.ladder).choose(layer, weights))}")
    return 0


def _explained(choice):
    """What was chosen and why, as text, and below it what each candidate would take."""
    lines = [
        f"kernel: {choice.candidate.kernel}",
        f"tile:   {' '.join(f'{name}={value}' for name, value in choice.candidate.tile)}",
        f"reason: {choice.why}",
        "",
        f"{'candidate':<62} {'model ms':>9} {'instr.':>8} {'L1':>8} {'memory':>8} {'measured':>9}",
    ]
    for candidate, (ms, limits) in sorted(choice.estimates.items(), key=lambda item: item[1].ms):
        measured = f"{choice.measured[candidate]:9.3g}" if candidate in choice.measured else ""
        figures = " ".join(f"{limit:8.3g}" for limit in limits.values())
        lines.append(f"{candidate!s:<62} {ms:9.3g} {figures} {measured}".rstrip())
    return "\n".join(lines)


if __name__ == "__main__":
    run(__file__, {"choose": choose_parser})
