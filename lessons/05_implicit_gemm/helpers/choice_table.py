"""What conv2d_layer_dispatch chose and why: the table that the lesson's command `choose` prints."""

import math


def as_text(shape, choice, recorded):
    """A Choice as text; `recorded` is what choices.json has, by GPU."""
    chosen = choice.estimates[choice.candidate]
    limit = max(chosen.limits, key=chosen.limits.get)
    lines = [
        shape,
        f"kernel: {choice.candidate.kernel}",
        f"tile:   {' '.join(f'{name}={value}' for name, value in choice.candidate.tile)}",
        f"reason: {choice.why}",
        f"        its largest limit in the model: {limit}, {chosen.limits[limit]:.3g} ms",
        f"        it issues {chosen.issued_per_needed:.2f} times the definition's multiply-adds, and "
        f"{chosen.loads_per_multiply_add:.3f} loads for each",
        "",
        f"{'candidate':<62} {'model ms':>9} {'instr.':>8} {'L1':>8} {'memory':>8} {'measured':>9}",
    ]
    order = sorted(choice.estimates, key=lambda c: (choice.measured.get(c, math.inf), choice.estimates[c].ms))
    for candidate in order:
        e = choice.estimates[candidate]
        limits = " ".join(f"{ms:8.3g}" for ms in e.limits.values())
        measured = f"{choice.measured[candidate]:9.3g}" if candidate in choice.measured else f"{'':9}"
        lines.append(f"{candidate!s:<62} {e.ms:9.3g} {limits} {measured}".rstrip())
    for gpu, shapes in recorded.items():
        times = shapes.get(shape, {})
        if times and not choice.measured:
            best = min(times, key=times.get)
            lines.append(f"recorded on {gpu}: fastest was {best}, {times[best]:.3g} ms")
    return "\n".join(lines)
