"""Exercise 06.9, predict: tickets.

Blocks that stay compute parts of 6 rows, as the kernel for whole rows does, of images of 44 x 44 pixels with filters
of 5 x 5, without padding. Of such blocks 5 fit on each of 132 multiprocessors. First there are 500 images. Replace
each None by a whole number. All must be exact.
Grade: python -m common grade 06.9
"""

PARTS = None  # of 500 images, in all
LAST_ROWS = None  # of outputs, of an image's last part
IMAGES = None  # that the blocks' first parts are of, all blocks together
PART_OF_TICKET = None  # the part that ticket 300 leads to; parts and tickets are counted from 0
DRAWN = None  # tickets that a launch draws, all blocks together
IN_VAIN = None  # tickets of these that lead to no part

# Without tickets, with 10,000 images, each block takes every 660th part. One block takes 5% longer for a part than
# the others. When these have done 100 parts each, how many has it done? And how far is the part that it is at behind
# the one that it would begin if it were as fast as they: how many whole images do the parts between make?
DONE = None
IMAGES_BEHIND = None
