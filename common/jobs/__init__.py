"""What is asked of child processes, and what came of it.

Module by module:

    run           checks of steps: their tasks, and what comes of them
    compiling     compilations and summaries
    measuring     times, ceilings, errors, sweeps, counters
    messages      what a child process can be asked, and answers
    tasks         what a child process does, task by task: checks, traces
    timetasks     what it measures
    codetasks     what it compiles
    preload       imported once by the process that children are forked from
    loading       a task's file, and the memory that it may take
    unchanged     the verdicts and compilations of steps that have not changed
"""
