"""Exercises, and grading of other people's files in processes of their own.

Module by module:

    answers        what a prediction is compared with
    grade          verdicts on exercises and folders
    fresh_shapes   shapes that nobody knows beforehand
    limits         what exercises limit, how it is counted and how it is said
    folders        what a folder of other people's files holds, and its report
    allowed_edits  is a file still its exercise
    language       what a kernel file may say
    borrowed       modules of lessons that a copy of a step may load
    source         a file's bytes, read once, and texts that are safe to show
    looks          what a trace of a submission shows
    checkout       the files that a submission must leave alone
    sandbox        keeps what a verdict rests on out of a file's reach
    sandbox_child  the process that a file is imported in
    harness        what of the harness that process gets
    confine        walls that the system puts around that process
    audit          what a file does beside starting kernels
    ptx_plan       what a step would start on a GPU, written down
    traced_run     a step, traced, its operands watched
    ptx_run        runs plans on the GPU
    messages       what its processes ask each other, and answer
    tasks          what a child process does of it
"""
