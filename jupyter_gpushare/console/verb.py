"""The common part of the verbs of ``jupyter gpushare``: options, exit codes, errors, JSON.

Exit codes: 0 it worked; 1 the node manager refused or something failed, with a
sentence on stderr; 2 the command line was wrong. ``run`` returns its child's.
Standard library only: the light client has these verbs, too.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import logging
import math
import os
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, NoReturn, TypeVar, cast

from .._version import __version__
from ..client.errors import GpuShareError
from ..protocol.tables import clean
from ..protocol.words import did_you_mean
from ..satellites import there

COMMAND: Final = "jupyter gpushare"
EXIT_CODES: Final = (
    "Exit codes: 0 it worked; 1 refused or failed, the reason is on stderr; 2 wrong usage."
)
T = TypeVar("T")


class Refused(Exception):
    """The verb cannot do it: ``reason`` is a word of the protocol, ``str()`` a sentence."""

    def __init__(self, message: str, reason: str = "failed") -> None:
        super().__init__(message)
        self.reason = reason


class UsageError(Exception):
    """The command line makes no sense; ``str()`` says what is expected."""


# -- options -----------------------------------------------------------------------------------


class Option:
    """An option of a verb, declared as an attribute of its class: there is its value.

    ``read`` turns the typed text into the value, and raises `ValueError` with a sentence; a flag
    has none. ``variable``: the environment variable that has the text where the option is not
    given. ``many``: it may be given again.
    """

    def __init__(
        self,
        default: Any,
        help: str,
        read: Callable[[str], Any] | None = None,
        *,
        name: str = "",
        choices: Sequence[str] = (),
        variable: str = "",
        many: bool = False,
    ) -> None:
        self.default, self.help, self.read = default, " ".join(help.split()), read
        self.name, self.choices, self.variable, self.many = name, choices, variable, many

    def __set_name__(self, owner: type, attribute: str) -> None:
        self.attribute = attribute
        self.name = self.name or attribute.replace("_", "-")

    def __get__(self, verb: Verb | None, kind: type) -> Any:
        return self if verb is None else verb.given.get(self.attribute, self.default)

    def value_of(self, text: str, said: str = "") -> Any:
        """The value of ``text``. Raises `UsageError`, which calls the option ``said``."""
        said = said or f"--{self.name}="
        if self.choices and text not in self.choices:
            hint = did_you_mean(text, self.choices)
            raise UsageError(f"{said}{text} cannot be used: say {' or '.join(self.choices)}{hint}")
        try:
            return text if self.read is None else self.read(text)
        except ValueError as error:
            raise UsageError(f"{said}{text} cannot be used: {error}") from error


def option(default: T, help: str, read: Callable[[str], T] | None = None, **more: Any) -> T:
    """An option with a value, a text if nothing reads it; the attribute's type is the default's."""
    return cast("T", Option(default, help, read or str, **more))


def options(help: str, *, name: str = "", read: Callable[[str], str] = str) -> tuple[str, ...]:
    """An option that may be given again, each time with a text."""
    return cast("tuple[str, ...]", Option((), help, read, name=name, many=True))


def flag(help: str, *, name: str = "", default: bool = False) -> bool:
    """An option without a value, which turns the ``default`` round."""
    return cast("bool", Option(default, help, name=name))


def number(least: float, most: float) -> Callable[[str], Any]:
    """Reads a number from ``least`` to ``most``, a whole one where ``least`` is one."""
    kind = type(least)

    def read(text: str) -> Any:
        with contextlib.suppress(ValueError):
            value = kind(text)
            if least <= value <= most:
                return value
        whole = " whole" if kind is int else ""
        raise ValueError(f"it must be a{whole} number from {least} to {most}")

    return read


class _Parser(argparse.ArgumentParser):
    """It complains by `UsageError`."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message.removeprefix("argument "))


# -- verbs -------------------------------------------------------------------------------------


class Verb:
    """One verb. Subclasses declare options as attributes, and do their work in `run`.

    The docstring of a verb is what its help says it does.
    """

    #: The words after ``jupyter gpushare``.
    name = ""
    #: The arguments after the options, for the usage line: ``"LEASE"``.
    arguments = ""
    examples = ""
    #: Verbs below this one: module and class, below ``jupyter_gpushare``, and what it does.
    subcommands: ClassVar[Mapping[str, tuple[str, str]]] = {}

    json = flag("Print JSON for programs instead of text for people.")
    debug = flag("Log what is done.")

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}
        self.log = logging.getLogger(f"jupyter_gpushare.{self.name or 'cli'}")

    @classmethod
    def options(cls) -> dict[str, Option]:
        """The options by their names; those of the verb itself before those of every verb."""
        found: dict[str, Option] = {}
        for kind in cls.__mro__:
            for held in vars(kind).values():
                if isinstance(held, Option):
                    found.setdefault(held.name, held)
        return found

    @classmethod
    def below(cls) -> dict[str, str]:
        """The verbs below this one that are installed, and what each does."""
        verbs = cls.subcommands.items()
        return {verb: said for verb, (place, said) in verbs if there(place.rpartition(".")[0])}

    @classmethod
    def command(cls) -> str:
        """What a person types: ``jupyter gpushare quota set``."""
        return f"{COMMAND} {cls.name}".rstrip()

    @classmethod
    def parser(cls) -> argparse.ArgumentParser:
        """The parser of this verb's options, and its help."""
        more = [f"  {verb:10} {said}" for verb, said in cls.below().items()]
        if more:
            more = ["verbs:", *more, "", f"`{cls.command()} VERB --help` explains a verb.", ""]
        if cls.examples:
            more += ["examples:", textwrap.indent(inspect.cleandoc(cls.examples), "  "), ""]
        parser = _Parser(
            prog=cls.command(),
            usage=f"{cls.command()} [options] {cls.arguments}".rstrip(),
            description=textwrap.fill(" ".join((inspect.getdoc(cls) or "").split()), 80),
            epilog="\n".join([*more, EXIT_CODES]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        parser.add_argument(
            "--version", action="version", version=__version__, help="Say which release this is."
        )
        for name, declared in cls.options().items():
            how: dict[str, Any] = {"action": "store_const", "const": not declared.default}
            if declared.read is not None:
                how = {"action": "append" if declared.many else "store"}
                how["metavar"] = name.rpartition("-")[2].upper()
            parser.add_argument(
                f"--{name}",
                dest=declared.attribute,
                default=argparse.SUPPRESS,
                help=declared.help.replace("%", "%%"),
                **how,
            )
        return parser

    def parse(self, argv: Sequence[str]) -> list[str]:
        """Take the options; the arguments that are left. Raises `UsageError`."""
        known = {held.attribute: held for held in self.options().values()}
        names = [held.name for held in known.values()]
        end = argv.index("--") if "--" in argv else len(argv)
        for word in argv[:end]:
            name = word.removeprefix("--").partition("=")[0]
            if word.startswith("--") and name not in (*names, "help", "version"):
                raise UsageError(f"there is no option --{name}{did_you_mean(name, names, '--')}")
        parser = self.parser()
        parser.add_argument("arguments", nargs="*", help=argparse.SUPPRESS)
        typed = vars(parser.parse_intermixed_args(list(argv)))
        arguments: list[str] = typed.pop("arguments")
        for attribute, held in known.items():
            if attribute in typed:
                given = typed[attribute]
                if held.many:
                    given = tuple(map(held.value_of, given))
                elif held.read is not None:
                    given = held.value_of(given)
                self.given[attribute] = given
            elif held.variable and (text := os.environ.get(held.variable)):
                self.given[attribute] = held.value_of(text, f"{held.variable}=")
        return arguments

    def start(self, argv: Sequence[str]) -> int:
        """Read the command line and do the work; what is wrong is said on stderr. The exit code."""
        try:
            arguments = self.parse(argv)
            level = logging.DEBUG if self.debug else logging.WARNING
            logging.basicConfig(level=level, format=f"{COMMAND}: %(message)s")
            if arguments and self.subcommands:
                raise self.unknown(arguments[0])
            if not self.arguments:
                self.no_arguments(arguments)
            code = self.run(arguments)
            sys.stdout.flush()
        except UsageError as error:
            print(f"{COMMAND}: {error}\nTry: {self.command()} --help", file=sys.stderr)
            return 2
        except (Refused, GpuShareError) as error:
            if self.json:
                reason = getattr(error.reason, "value", error.reason) or "failed"
                self.print_json({"error": {"reason": reason, "message": str(error)}})
                sys.stdout.flush()
            print(f"{COMMAND}: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130
        return code

    def run(self, arguments: list[str]) -> int:
        """The work; the exit code. Raises `Refused`, :class:`GpuShareError`, `UsageError`."""
        raise NotImplementedError

    def print_json(self, value: Any) -> None:
        """One JSON document; sorted, so that outputs can be compared. A number that is none (NaN,
        infinite) is ``null``, for JSON has no word for it."""
        print(json.dumps(_finite(value), indent=2, sort_keys=True, allow_nan=False))

    def say(self, answer: Mapping[str, Any], text: str) -> int:
        """Print ``answer`` for a program, or ``text`` for a person; the exit code 0.

        What an answer warns of, somebody may not have meant: that goes to stderr.
        """
        if self.json:
            self.print_json(answer)
        else:
            print(text)
        for warning in answer.get("warnings", ()):
            print(f"Warning: {clean(warning)}", file=sys.stderr)
        return 0

    def no_arguments(self, arguments: list[str]) -> None:
        """Raises `UsageError` when there are arguments and the verb takes none."""
        if arguments:
            raise UsageError(f"{self.command()} takes no argument {arguments[0]!r}")

    def unknown(self, word: str) -> UsageError:
        """The complaint about a word that is no verb below this one."""
        *most, last = self.subcommands
        return UsageError(
            f"there is no verb {word!r}{did_you_mean(word, self.subcommands)}; "
            f"say {', '.join(most)} or {last}"
        )


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value


class WithCommand(Verb):
    """A verb whose arguments are a command, with options of its own."""

    def parse(self, argv: Sequence[str]) -> list[str]:
        """Options up to the command are ours, all that follows is the command's."""
        argv, at, known = list(argv), 0, self.options()
        while at < len(argv) and argv[at] != "--" and argv[at].startswith("-"):
            named = known.get(argv[at].removeprefix("--"))
            at += 1 if named is None or named.read is None else 2
        super().parse(argv[:at])
        command = argv[at:]
        return command[1:] if command[:1] == ["--"] else command
