"""The commands: arguments, progress, printing. Nothing below prints.

Module by module:

    arguments     each option once, with a value of its kind
    console       what is said: lines, complaints, progress
    choosing      which steps, presets and shapes were named
    verdicts      outcomes on the terminal, and exit codes
    flow          the lines that are said as work is done
    steps         list, check, time, diff
    measuring     bench, profile, sanitize, accuracy, epilogues, sweep
    renewing      renew
    machinecode   compile, inspect
    tracing       trace
    edits         history, restore, reset, ship
    exercising    grade, hint, progress
    pictures      charts, photo
    mainjob       all, selftime
    lessons       a lesson: run, watched, explained
    selftime      the main job itself, timed
    web           book
"""
