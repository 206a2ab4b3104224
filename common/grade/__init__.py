"""Exercises, and grading of other people's files.

Module by module:
    grade     the verdict on a file: what is asked of child processes, and what decides; a folder of files, its report
    reading   what is read without running it: what a student may change of an exercise, and predictions
    tasks     what exercises limit, how a child process counts it, and how it is said
"""
