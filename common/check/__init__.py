"""Is a kernel right?

Module by module:

    run           checks of steps: their tasks, and what comes of them
    compiling     steps compiled, and summaries of their kernels
    unchanged     the verdicts and compilations of steps that have not changed
    tasks         what a child process does to check and to trace
    loading       a task's file, its operands, and the memory that it may take
    check         the verdict: launches on operands of several kinds, and what became of each
    findings      what is wrong with an output, in words
    arrays        arrays between margins, and what an element holds that nobody has written
    tracedbench   a step on the tracer in place of a GPU
    plan          what a check of a step consists of, engine by engine; its shapes are data, shapes.toml
    shapes        shapes drawn from a seed; those of `check --full` are data, full.toml
    fullsize      problems at full size, and arrays of more than 2^31 elements: a check that stays on the GPU
    budget        how large a problem this card takes: bytes, and seconds of a launch
    oracle        the right answers where they are quickest
    kernels       plain kernels on a GPU: the right answers, and looks at large arrays
"""
