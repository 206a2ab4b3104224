"""It never ends, and other submissions wait.

Expect: timed_out
Says: no result within
"""


def launch(a, b, c):
    while True:
        pass
