"""The commands: arguments, progress, printing. Nothing below prints.

Module by module:

    arguments     every option; which steps, presets and shapes were named
    console       what is said: lines, complaints, progress
    verdicts      outcomes on the terminal, and exit codes
    steps         list, check, time, diff, inspect, ship
    bench         bench: what a record lacks is measured; sweep
    parts         what a record holds beside times, and how that is measured
    edits         history, restore, reset; a run of an edited step, again at every save
    tracing       trace, run
    exercising    grade, hint
    lessons       a lesson: run, watched
    changed       all, charts, book: what has changed is checked, timed, drawn and built anew
"""
