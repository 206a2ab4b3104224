"""Exercise 08.15, predict: when fewer multiplications pay.

wgrad_minimal_filtering, as in section 1 of equal_shares.md. Replace each None by a number or by arithmetic. Whole
numbers must be exact, other figures to 1%.
Grade: python -m common grade 08.15
"""

# wgrad-resnet50-conv4: 64 images of 14 x 14, 256 channels and 256 filters, 3,136 patches in all. How many floats do
# transform_x and transform_dy write, together?
VALUES_OF_CONV4 = 3136 * 16 * (256 + 256)

# on the page's card, 4.2 TB/s and 32e12 multiply-adds a second: the milliseconds that these take, written and read
# once, and the milliseconds of the multiply-adds that are saved
MS_OF_VALUES = VALUES_OF_CONV4 * 4 * 2 / 4.2e12 * 1e3
MS_SAVED = 3136 * 256 * 256 * (36 - 16) / 32e12 * 1e3

# another card moves 1.5 TB/s and does 9.7e12 multiply-adds a second. With C = K, from how many channels on does it
# pay there? Not rounded
CHANNELS_THERE = 16 * 2 * 8 / 1.5e12 * 9.7e12 / 20
