"""Arguments of the command line: each option once, with a value, of the kind that it takes."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

_KINDS = {int: "an integer", float: "a number"}


class Parser(argparse.ArgumentParser):
    """Refuses a second value for an option, where argparse would take the last one, and an empty value."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.register("action", None, Once)  # where no other is asked for

    def error(self, message: str) -> NoReturn:
        """What is wrong with an option's value is one line, as :class:`Once` says it; else the usage comes first."""
        if message.startswith("ambiguous option: "):
            raise ValueError(message)
        wrong = re.fullmatch(r"argument (?:-\w/)?(--[\w-]+): (.*)", message, re.DOTALL)
        if wrong is None:
            super().error(message)
        action = next(one for one in self._actions if wrong[1] in one.option_strings)
        takes = f"must have a value: {action.metavar}" if action.nargs != 0 else "takes no value"
        raise ValueError(f"{wrong[1]}: {takes}")


class Once(argparse.Action):
    """Stores a value. Raises ValueError with the option's name if it is a second one, empty, or of another kind."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._kind = options.pop("type", None) or str  # argparse's own message is its usage
        self._given = False
        super().__init__(*args, **options)

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        if values is not self.default:  # of a positional that is left out
            name = option or str(self.metavar)
            if option and self._given:
                raise ValueError(f"{name} {values!r}: is given twice: must be given once")
            self._given = True
            values = [self._value(name, text) for text in values] if self.nargs == "*" else self._value(name, values)
        setattr(namespace, self.dest, values)

    def _value(self, name: str, text: str) -> Any:
        if not text:
            raise ValueError(
                f"{name} {text!r}: must not be empty" + (f": {self.metavar}" if name != self.metavar else "")
            )
        try:
            return self._kind(text)
        except ValueError:
            raise ValueError(f"{name} {text!r}: must be {_KINDS[self._kind]}") from None


def read(parser: Parser, words: Sequence[str] | None) -> argparse.Namespace:
    """The options that ``words`` name (default: the program's own); ``command`` raises what is wrong with one.

    ``parser`` in them is the one that the words were for: it ends the program with its usage if some are left over.
    """
    words = sys.argv[1:] if words is None else words
    try:
        options, unknown = parser.parse_known_args(words)
    except ValueError as error:
        wrong = error  # the name that except binds ends here

        def refuse(_: argparse.Namespace) -> NoReturn:
            raise wrong

        return argparse.Namespace(command=refuse, json="--json" in words)
    if unknown:  # argparse would say what there is besides this command
        options.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    return options


class Commands:
    """The commands of a parser: ``options.command`` does one, ``options.json`` is always there."""

    def __init__(self, parser: Parser) -> None:
        self._parsers = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(self, name: str, command: Callable[[Any], int], text: str) -> argparse.ArgumentParser:
        """One more, described by ``text``; its options are added to what is returned."""
        parser = self._parsers.add_parser(name, help=text, description=text)
        parser.set_defaults(command=command, parser=parser, json=False)
        return parser


def takes_record(parser: argparse.ArgumentParser) -> None:
    """Add the option of a command that writes a record."""
    text = "write the shipped records in results/, not your own in .workbook/results/ (for maintainers)"
    parser.add_argument("--record", action="store_true", help=text)


def takes_steps(parser: argparse.ArgumentParser, which: str = "default: all steps") -> None:
    """Add the options of a command that works on steps, or on a file in the place of one."""
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"steps, experiments or exercises ({which})")
    parser.add_argument("--file", type=Path, metavar="PATH", help="use this file in the one STEP's place")
    parser.add_argument("--json", action="store_true", help="results as JSON on standard output")
