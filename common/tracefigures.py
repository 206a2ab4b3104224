"""Pictures of traces, in the style of :mod:`common.charts`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from common import charts

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def accesses(found: dict[str, Any]) -> Figure:
    figure, axes = charts.new_figure(9.6, 4)
    return figure
