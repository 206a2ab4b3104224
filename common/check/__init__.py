"""Is a kernel right?

Module by module:

    run           steps checked and compiled: their tasks, what comes of them, and verdicts of what has not changed
    tasks         what a child process does to check, to compile and to trace
    loading       a task's file, its operands, and the size at which this card takes a problem
    check         the verdict: launches on operands of several kinds, and what became of each, in words
    arrays        arrays between margins, and what they must hold
    plan          what a check of a step consists of, engine by engine: shapes that are data, and some drawn anew
    fullsize      checks that stay on the GPU: the right answers, full sizes, arrays of more than 2^31 elements
"""
