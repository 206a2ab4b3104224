"""The commands: arguments, progress, printing. Nothing below prints.

Module by module:

    arguments     every option; which steps, presets and shapes were named
    console       what is said: lines, complaints, progress
    verdicts      outcomes and traces on the terminal, and exit codes
    steps         list, check, time, diff, ship
    bench         bench: what a record lacks is measured; sweep
    parts         what a record holds beside times, and how that is measured
    inspecting    inspect, trace
    edits         history, restore, reset; a run of an edited step, again at every save
    scripts       run: a program of anybody's, in the tracer
    exercising    grade, hint
    pictures      charts, book
    lessons       a lesson: run, watched
    changed       all: what has changed is checked, timed and drawn
"""
