"""Exercise 06.8, predict: tickets.

Blocks that stay compute parts of 6 rows, as the kernel for whole rows does, of images of 44 x 44 pixels with filters
of 5 x 5, without padding. Of such blocks 5 fit on each of 132 multiprocessors. First there are 500 images. Replace
each None by a whole number. All must be exact.
Grade: python -m common grade 06.8
"""

PARTS = None  # of 500 images, in all
LAST_ROWS = None  # of outputs, of an image's last part
IMAGES = None  # how many different images the 660 first parts come from
PART_OF_TICKET = None  # the part that ticket 300 leads to; parts and tickets are counted from 0
DRAWN = None  # tickets that a launch draws, all blocks together
IN_VAIN = None  # tickets of these that lead to no part

# Without tickets, with 10,000 images, each block takes every 660th part. One takes 5% longer for a part. DONE: whole
# parts that it has finished when the others have finished 100 each. IMAGES_BEHIND: it should now begin its part 100,
# counted from 0, and is still at its part DONE. These lie (100 - DONE) x 660 parts apart: how many whole images?
DONE = None
IMAGES_BEHIND = None
