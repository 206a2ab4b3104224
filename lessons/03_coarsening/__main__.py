from lessons import run

run(__file__)
