"""What a picture says."""

from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.text import Text


def words(figure: Figure) -> str:
    """The texts of a figure in order; it is closed."""
    figure.draw_without_rendering()
    shown = (one.get_text() for one in figure.findobj(Text) if one.get_visible())
    plt.close(figure)
    return " | ".join(filter(None, shown))
