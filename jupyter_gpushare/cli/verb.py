"""The common part of the verbs of ``jupyter gpushare``: options, exit codes, errors, JSON.

Exit codes: 0 it worked; 1 the node manager refused or something failed, with a
sentence on stderr; 2 the command line was wrong. ``run`` returns its child's.
"""

from __future__ import annotations

import inspect
import json
import logging
import os
import sys
from typing import Any, ClassVar, NoReturn

from jupyter_core.application import JupyterApp
from traitlets import Bool, TraitError, default
from traitlets.config.application import Application
from traitlets.config.loader import ArgumentError, KVArgParseConfigLoader

from .. import __version__, traits
from ..node.settings.commandline import StrictLoader

EXIT_CODES = """
Exit codes: 0 it worked; 1 refused or failed, the reason is on stderr; 2 wrong usage.
"""


class Refused(Exception):
    """The verb cannot do it: ``reason`` is a word of the protocol, ``str()`` a sentence."""

    def __init__(self, message: str, reason: str = "failed") -> None:
        super().__init__(message)
        self.reason = reason


class UsageError(Exception):
    """The command line makes no sense; ``str()`` says what is expected."""


class Size(traits.Size):
    """Bytes, or ``none``; ``None`` is not said."""

    def __init__(self, default_value: Any = None, **named: Any) -> None:
        super().__init__(default_value, allow_none=True, **named)

    def where(self, obj: Any) -> str:
        return f"--{self.name}"

    def read(self, given: Any) -> Any:
        none = isinstance(given, str) and given.lower() == "none"
        return None if none else super().read(given)


class Duration(traits.Duration):
    """The same as an option."""

    def where(self, obj: Any) -> str:
        return f"--{self.name}"


JSON_FLAG = {
    "json": ({"Verb": {"json": True}}, "Print JSON for programs instead of text for people.")
}


class Verb(JupyterApp):
    """One verb. Subclasses say ``arguments``, and do their work in `run`."""

    version = __version__
    config_file_name = "jupyter_gpushare_config"
    #: The arguments after the options, for the usage line: ``"LEASE"``.
    arguments = ""
    option_description = ""
    aliases: ClassVar[Any] = {
        "log-level": "Application.log_level",
        "config": "JupyterApp.config_file",
    }
    flags: ClassVar[Any] = {
        "debug": ({"Application": {"log_level": logging.DEBUG}}, "Log what is done.")
    }

    json = Bool(False, help="Print JSON for programs instead of text for people.").tag(config=True)

    _running = False

    def _log_level_default(self) -> int:
        return logging.WARNING

    def _log_format_default(self) -> str:
        return "jupyter gpushare: %(message)s"

    def migrate_config(self) -> None:
        """Nothing to bring over from IPython 3."""

    def _create_loader(
        self, argv: Any, aliases: Any, flags: Any, classes: Any
    ) -> KVArgParseConfigLoader:
        return StrictLoader(
            argv,
            aliases,
            flags,
            classes=classes,
            log=self.log,
            subcommands=self.subcommands,  # for completion in the shell
            prog=self._command_name(),
        )

    def parse_command_line(self, argv: Any = None) -> None:
        """As traitlets does, but what is wrong is said in one plain line."""
        parse = Application.parse_command_line
        try:
            inspect.unwrap(parse)(self, argv)
        except (TraitError, ArgumentError) as error:
            self.complain(str(error))

    def exit(self, exit_status: int | str | None = 0) -> NoReturn:
        # traitlets says 1 for a bad command line; 1 is for "refused" here.
        if exit_status == 1 and not self._running:
            exit_status = 2
        super().exit(exit_status)
        raise AssertionError("exit returned")

    def _command_name(self) -> str:
        return self.name.replace("jupyter-gpushare", "jupyter gpushare").replace("-", " ")

    @default("subcommand_description")
    def _subcommand_description_default(self) -> str:
        return f"`{self._command_name()} VERB --help` explains a verb."

    def emit_description(self) -> Any:
        yield f"Usage: {self._command_name()} [options] {self.arguments}".rstrip()
        yield ""
        yield from super().emit_description()

    def emit_examples(self) -> Any:
        if self.examples:
            yield "Examples"
            yield "--------"
            yield ""
            yield inspect.cleandoc(self.examples)
            yield ""
        yield EXIT_CODES.strip()
        yield ""

    def start(self) -> None:
        """Do the verb and leave the process with its exit code."""
        self._running = True
        super().start()
        try:
            code = self.run(list(self.extra_args))
            sys.stdout.flush()
        except UsageError as error:
            self.complain(str(error))
        except Refused as error:
            self.refuse(str(error), error.reason)
        except KeyboardInterrupt:
            self.exit_with(130)
        except BrokenPipeError:
            # The reader has gone (`| head`). Python would complain once more when it flushes at
            # exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            self.exit_with(1)
        self.exit_with(code)

    def run(self, arguments: list[str]) -> int:
        """The verb's work; returns the exit code. Raises `Refused`, `UsageError`."""
        raise NotImplementedError

    def refuse(self, message: str, reason: str) -> NoReturn:
        """Say why not, to a person or (with ``--json``) to a program, and leave with 1."""
        if self.json:
            self.print_json({"error": {"reason": reason, "message": message}})
            sys.stdout.flush()
        print(f"jupyter gpushare: {message}", file=sys.stderr)
        self.exit_with(1)

    def complain(self, message: str) -> NoReturn:
        """The command line is wrong: say how, and leave with 2."""
        print(f"jupyter gpushare: {message}", file=sys.stderr)
        print(f"Try: {self._command_name()} --help", file=sys.stderr)
        self.exit_with(2)

    def exit_with(self, code: int) -> NoReturn:
        self.close_handlers()
        sys.exit(code)

    def print_json(self, value: Any) -> None:
        """One JSON document; sorted, so that outputs can be compared."""
        print(json.dumps(value, indent=2, sort_keys=True, allow_nan=False))

    def no_arguments(self, arguments: list[str]) -> None:
        """Raises `UsageError` when there are arguments and the verb takes none."""
        if arguments:
            raise UsageError(f"{self._command_name()} takes no argument {arguments[0]!r}")
