"""Exercises, and grading of other people's files.

Module by module:

    grade     the verdict on a file: what is asked of child processes, and what of it decides
    answers   predictions: read without running them, and compared
    frame     what a student may change of an exercise
    limits    what exercises limit, how it is counted and how it is said
    tasks     what a child process does beside the checks: it counts what is limited
    folders   what a folder of other people's files holds, and its report
"""
