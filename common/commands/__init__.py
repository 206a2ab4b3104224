"""The commands: arguments, progress, printing. Nothing below prints.

Module by module:

    arguments     options that several commands share; which steps, presets and shapes were named
    console       what is said: lines, complaints, progress, outcomes and traces; exit codes
    steps         list, check, diff, all, ship; a lesson: run, watched, explained
    bench         bench, time, sweep: what is measured on the GPU
    parts         what a record holds beside times, and how that is measured
    inspecting    inspect, trace; run: a program of anybody's, in the tracer
    edits         history, restore, reset; a run of an edited step, again at every save
    exercising    grade, hint
    pictures      charts, book
"""
