"""Exercises, and grading of other people's files in processes of their own.

Module by module:

    exercises     what there is, hints, progress
    answers       what a prediction is compared with
    grade         verdicts on exercises and folders
    frame         is a file still its exercise
    referee       keeps what a verdict rests on out of a file's reach
    nursery       warm processes, forked for each file
    player        the process that a file is imported in
    watch         what a file does beside starting kernels
    plans         what a step would start on a GPU, written down
    rehearse      a step in the simulator, its operands watched
    replay        runs plans on the GPU
"""
