"""A first kernel with something to see: one thread for each pixel of a photograph. Change its one line, run it again.

Run: python -m lessons.01_naive.start.photograph
"""

import numpy as np
from matplotlib import cbook, image
from numba import cuda

from common.catalog import catalog

FACE = slice(30, 320), slice(130, 400)  # rows and columns of the photograph that Matplotlib ships
THREADS = 16, 16  # in a block: along a row, and down a column


@cuda.jit
def develop(photo, picture):
    column, row = cuda.grid(2)
    height, width = photo.shape
    if row < height and column < width:
        picture[row, column] = photo[row, column]  # your line


def main(folder=catalog.ROOT / ".workbook"):
    """Write the photograph and the kernel's picture, side by side and twice as large, to a PNG in the folder."""
    with cbook.get_sample_data("grace_hopper.jpg") as file:
        colours = image.imread(file, format="jpg") / 255
    photo = np.ascontiguousarray(colours[FACE].mean(axis=2), np.float32)
    picture = cuda.to_device(np.zeros_like(photo))
    height, width = photo.shape
    blocks = -(-width // THREADS[0]), -(-height // THREADS[1])  # rounded up
    develop[blocks, THREADS](cuda.to_device(photo), picture)
    both = np.hstack([photo, picture.copy_to_host()]).repeat(2, axis=0).repeat(2, axis=1)
    folder.mkdir(exist_ok=True)
    image.imsave(folder / "photograph.png", both, cmap="gray", vmin=0, vmax=1)
    print(f"{blocks[0]} x {blocks[1]} blocks of {THREADS[0]} x {THREADS[1]} threads: {folder / 'photograph.png'}")


if __name__ == "__main__":
    main()
