"""launch raises an exception of its own."""


def launch(a, b, c):
    raise RuntimeError("out of ideas")
