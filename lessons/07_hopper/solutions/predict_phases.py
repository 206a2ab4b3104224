"""Exercise 07.2, predict: phases and parities.

A kernel has three stages and goes through eight rounds, 0 to 7; round i uses stage i % 3. filled[s] is made for
one arrival, emptied[s] for two: each of two consumers arrives when it has multiplied. A stage is 64 x 64 of A and
64 x 192 of B, float16, and B comes in three boxes of 64 columns; a box that lies outside as a whole is not asked for.
Replace each None by a whole number. All must be exact.
Grade: python -m common grade 07.2
"""

BYTES = (64 * 64 + 64 * 192) * 2  # that a stage expects
BYTES_AT_EDGE = (64 * 64 + 64 * 128) * 2  # that it must expect where 10 rows of A and 100 columns of B lie inside
PARITY_4 = 1  # of the phase of filled[1] that a consumer waits for in round 4
PARITY_7 = 0  # the same in round 7
PRODUCER_4 = 0  # with which parity the producer waits for emptied[1] before it refills stage 1 for round 4
FURTHEST = 4  # the last round whose tiles it may ask for, while a consumer still multiplies those of round 2
COMPLETED = 3  # phases that emptied[0] has completed at the end
COMPLETED_2 = 2  # and emptied[2]
ARRIVALS = 6  # arrivals that emptied[1] has seen at the end
FIRST_WRONG = 3  # the first round that may start without its tiles, if a consumer forgets to flip its parity

# how many of the producer's eight waits pass before any consumer has arrived; with which parity it waits in round 6
PASS_AT_ONCE = 3
PRODUCER_6 = 1
