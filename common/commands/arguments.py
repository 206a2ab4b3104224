"""Arguments of the command line that several commands share, and where a command is entered."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

Parser = argparse.ArgumentParser


class Commands:
    """The commands of a parser: ``options.command`` does one, ``options.json`` is always there."""

    def __init__(self, parser: Parser) -> None:
        self._parsers = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(self, name: str, command: Callable[[Any], int], text: str) -> Parser:
        """One more, described by ``text``; its options are added to what is returned."""
        parser = self._parsers.add_parser(name, help=text, description=text, allow_abbrev=False)
        parser.set_defaults(command=command, json=False)
        return parser


def takes_steps(parser: Parser, which: str = "default: all steps") -> None:
    """Add the options of a command that works on steps, or on a file in the place of one."""
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"steps, experiments or exercises ({which})")
    parser.add_argument("--file", type=Path, metavar="PATH", help="use this file in the one STEP's place")
    takes_json(parser)


def takes_json(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="as JSON on standard output")


def takes_preset(parser: Parser, default: str) -> None:
    parser.add_argument("--problem", metavar="PRESET", help=f"preset (default: {default})")


def takes_sim(parser: Parser) -> None:
    parser.add_argument("--sim", action="store_true", help="as if there were no GPU")


def takes_record(parser: Parser) -> None:
    """Add the option of a command that writes a record."""
    text = "write the shipped records in results/, not your own in .workbook/results/ (for maintainers)"
    parser.add_argument("--record", action="store_true", help=text)
