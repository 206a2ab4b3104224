"""What child processes are asked for: a struct for each task of :mod:`common.jobs.tasks`.

``jobs.trace`` is the microscope's: :class:`common.microscope.messages.Trace`. Shapes are extents by name, as
:meth:`common.book.problems.Problem.shape` gives them; paths are absolute.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from msgspec import field

from common.book import device
from common.measure import check, plan
from common.workers.messages import FileTask, Message, ShapeTask, Task

Tile = dict[str, int | bool]
"""Values by the names of a step's tile constants."""


class Check(ShapeTask, frozen=True, kw_only=True, tag="jobs.check"):
    """Is a file right at one shape? The fields of :class:`common.measure.plan.Case`, and

    ``precision``  what the step may compute with, one of :data:`common.book.catalog.PRECISIONS`
    ``repeats``  launches on equal inputs that must agree
    ``kernels``  the folder of kernels that are kept; empty: none are
    ``turns``    a folder: processes that were given the same one take turns, each waiting for ``seconds`` at most;
                 empty: nobody waits
    """

    engine: plan.Engine = "simulator"
    depth: plan.Depth = "usual"
    seed: int = 0
    special: str = ""
    wide: bool = False
    precision: str = "fp32"
    repeats: int = check.REPEATS
    kernels: str = ""
    turns: str = ""


class Time(ShapeTask, frozen=True, kw_only=True, tag="jobs.time"):
    """Is a file right at full size, by samples, and how fast is it?

    ``preset``   the shape's name, for whoever asks
    ``seed``     that of the operands
    ``kernels``  the folder of kernels that are kept; empty: none are
    ``beside``   the precision in which it is timed in turn with the library, too; empty: it is not
    """

    preset: str = ""
    beside: str = ""
    seed: int = 0
    kernels: str = ""


class Turn(Task, frozen=True, kw_only=True, tag="jobs.turn"):
    """Get ready for the tasks that follow, then wait for the GPU.

    ``gate``       a file: the wait ends when it is there
    ``ladder``, ``shape``, ``seed``  the operands that are needed; without a shape none are
    ``libraries``  are cuBLAS and cuDNN needed
    """

    gate: str
    ladder: str = ""
    shape: dict[str, int] | None = None
    seed: int = 0
    libraries: bool = False


class Prepare(FileTask, frozen=True, kw_only=True, tag="jobs.prepare"):
    """Compile a file's kernels ahead.

    ``shapes``   those that will be asked for
    ``device``   the GPU they are for
    ``kernels``  the folder that keeps them
    """

    shapes: list[dict[str, int]]
    device: device.Gpu
    kernels: str


class Rival(Message, frozen=True, kw_only=True):
    """A file that another one is timed against: ``path`` and ``helpers`` as in a :class:`FileTask`."""

    path: str
    helpers: dict[str, str] = field(default_factory=dict)


class Pair(ShapeTask, frozen=True, kw_only=True, tag="jobs.pair"):
    """How fast is a file beside others? ``against``: those by name; with none it is timed alone."""

    against: dict[str, Rival]


class Tunables(ShapeTask, frozen=True, kw_only=True, tag="jobs.tunables"):
    """Which tile constants does a file let a sweep vary?"""


class Sweep(ShapeTask, frozen=True, kw_only=True, tag="jobs.sweep"):
    """Is a file right with one ``tile``, and how fast? ``kernels``: the folder of those that are kept, or empty."""

    alone: ClassVar[bool] = True  # another tile is another kernel
    tile: Tile
    kernels: str = ""


class Launch(ShapeTask, frozen=True, kw_only=True, tag="jobs.launch"):
    """Launch a file's kernels once, for tools that watch."""


class Launches(ShapeTask, frozen=True, kw_only=True, tag="jobs.launches"):
    """Which kernels would a file start?"""


class Explain(ShapeTask, frozen=True, kw_only=True, tag="jobs.explain"):
    """What would a step do for this shape, and why?"""


class Compile(ShapeTask, frozen=True, kw_only=True, tag="jobs.compile"):
    """What does a file compile to?

    ``architectures``  compute capabilities, ``9.0``
    ``machine_code``   assemble it, and count its instructions
    ``lenient``        without NVIDIA's tools, leave the count out
    ``others``         more shapes, by name
    """

    architectures: list[str]
    machine_code: bool = False
    lenient: bool = False
    others: dict[str, dict[str, int]] = field(default_factory=dict)


class Card(ShapeTask, frozen=True, kw_only=True, tag="jobs.card"):
    """A card for every kernel of a file.

    ``architecture``  the compute capability, ``9.0``
    ``show``          the text to show besides
    ``preset``        the shape's name, for whoever asks
    """

    architecture: str
    show: Literal["ptx", "sass"] | None = None
    preset: str = ""


class Maps(FileTask, frozen=True, kw_only=True, tag="jobs.maps"):
    """Run a conv2d step on ``x`` and ``filt`` and save ``y``: .npy files, NCHW, KCRS and NKPQ."""

    x: str
    filt: str
    y: str


class Peer(Task, frozen=True, kw_only=True, tag="jobs.peer"):
    """How fast are NVIDIA's libraries at one shape? ``preset``: its name, for whoever asks."""

    ladder: str
    shape: dict[str, int]
    preset: str = ""


class Ceilings(Task, frozen=True, kw_only=True, tag="jobs.ceilings"):
    """What does this GPU reach at most?"""


class Device(Task, frozen=True, kw_only=True, tag="jobs.device"):
    """What is this GPU?"""
