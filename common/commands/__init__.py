"""The commands: arguments, progress, printing. Nothing below prints.

Module by module:

    arguments     every option; which steps, presets and shapes were named
    console       what is said: lines, complaints, progress, outcomes; exit codes
    steps         list, check, time, diff, ship, inspect
    bench         bench: what a record lacks is measured; sweep
    parts         what a record holds beside times, and how that is measured
    edits         history, restore, reset; grade, hint
    tracing       trace, run
    lessons       a lesson: run, watched; a run of an edited step
    changed       all, charts, book: what has changed is checked, timed, drawn and built anew
"""
