"""Verdicts as a table for the terminal; the caller prints it."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from common.grading.grade import Grade


def grades(found: list[Grade]) -> Table:
    """One line for each verdict; students have a column if there are any."""
    students = any(grade.student for grade in found)
    table = Table(*(["student"] if students else []), "exercise", "file", "kind", "verdict")
    table.add_column("s", justify="right")
    for grade in found:
        verdict = "[green]passed[/]" if grade.passed else "[bold red]not passed[/]"
        number = "" if grade.target == grade.name else grade.target
        cells = [number, escape(grade.name), grade.kind, verdict, f"{grade.seconds:.0f}"]
        table.add_row(*([escape(grade.student)] if students else []), *cells)
    return table
