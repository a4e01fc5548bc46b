"""``%gpushare`` and ``%%gpushare`` in IPython and notebooks, and their traits.

A magic decides nothing. It reads a line, asks this process's broker, and has the renderer show what
came of it. What a person may type stands in one table (`VERB_OPTIONS`, `OPTIONS`), from which the
parsers and the completions are made. A mistake is told in one line, as a ``UsageError``: where in
our code it was noticed helps nobody.

`%%gpushare` above a cell is the one with a life of its own. It compiles the cell before it asks for
a lease, runs it as IPython would have run it, in the same namespaces, and gives the lease back
whatever the cell raised.

Every kernel loads this when it starts, so the rest of us (the session, the renderer) is imported
only when a magic is used.
"""

from __future__ import annotations

import argparse
import ast
import math
import os
import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from IPython.core.completer import (
    CompletionContext,
    SimpleCompletion,
    SimpleMatcherResult,
    context_matcher,
)
from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class, output_can_be_silenced
from traitlets import TraitError
from traitlets.config import Config, Configurable

from ...protocol.names import RESERVES, STARTED_FROM
from ...protocol.words import did_you_mean
from ...traits import Told, task_traits, word
from ..acquire import broker, use_traits
from ..words.tracebacks import stopped_waiting
from . import kernel

if TYPE_CHECKING:
    from ..words.grant import Grant
    from ..words.promises import Wish
    from ..words.render import Shown
    from ..words.settings import Ask, Settings

OPTIONS = {
    "--gpus": ("1", "2", "4", "8", "quota"),
    "--memory": ("4GiB", "8GiB", "16GiB", "24GiB"),
    "--class": ("interactive", "batch"),
    "--persistent": ("2GiB", "4GiB", "8GiB"),
    "--temporary": ("4GiB", "8GiB", "16GiB"),
    "--turn-offset": ("512MiB", "1GiB", "2GiB"),
    "--reserve": RESERVES,
}
"""What can be asked for, in the order of `settings.PARTS`, and values worth offering."""

PROMISES = {"--deadline": ("10m", "30m", "1h"), "--min-steps-per-second": ("1", "2", "5")}
"""What a cell can be promised."""

VERB_OPTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "status": {},
    "quota": {},
    "request": {**OPTIONS, "--no-wait": (), "--later": ()},
    "release": {},
    "cpu": {},
    "park": {},
    "resume": {},
    "pin": {"15m": (), "30m": (), "1h": (), "off": ()},
    "predict": {
        "--iterations": ("100", "1000", "10000"),
        "--optimizer": ("sgd", "adam", "adamw"),
        "--loss": (),
    },
    "servers": {},
    "history": {"--limit": ("20", "50", "200")},
    "help": {},
}
_ALONE = (
    "status",
    "quota",
    "release",
    "cpu",
    "park",
    "resume",
    "servers",
)  # verbs without an argument
MAGICS = ("%gpushare", "%%gpushare")
_HISTORY = 20  # events shown
_WITHOUT = (
    "This kernel goes on without a GPU, and its cells wait for none. `%gpushare request` asks for "
    "one again."
)


# -- traits ------------------------------------------------------------------------------------


class GpuShare(Configurable):
    """Settings of this kernel; environment variables and notebook metadata are stronger."""

    locals().update(task_traits(defaults=True))

    gpus = Told(
        "sizes.parse_gpus",
        None,
        info="a number of GPUs, or quota",
        allow_none=True,
        help="""GPUs to ask for, or "quota": as many as the quota allows. None: 1.""",
    ).tag(config=True)
    memory = Told(
        "sizes.parse_memory",
        None,
        info="a size such as 8GiB, or a range such as 8GiB..40GiB",
        allow_none=True,
        help="Memory on each GPU to ask for: a size, or a range. None: what the quota allows.",
    ).tag(config=True)
    priority_class = word(
        ("interactive", "batch"),
        allow_none=True,
        help="interactive (a person waits) or batch (may wait longer). None: what the kernel looks "
        "like.",
    ).tag(config=True)
    reserve = word(
        RESERVES,
        allow_none=True,
        help="What is reserved where no memory is named: whole, quota or estimate.",
    ).tag(config=True)

    def settings(self) -> Settings:
        """As the weakest source of this process's settings."""
        from ...protocol import names
        from ..words.settings import Ask, Settings

        defaults = Settings()
        said = {
            name: type(getattr(defaults, name))(value)
            for name, *_ in names.SETTINGS
            if (value := getattr(self, name)) is not None
        }
        ask = Ask(self.gpus, self.memory, self.priority_class, reserve=self.reserve)
        return Settings(ask=ask, **said)


def read_traits(shell: Any) -> GpuShare:
    """The traits of a shell; a value that cannot be used is said and left out."""
    try:
        return GpuShare(parent=shell)
    except TraitError:
        usable = Config()
        for name, value in shell.config.get("GpuShare", {}).items():
            try:
                GpuShare(config=Config({"GpuShare": {name: value}}))
            except TraitError as error:
                from ..words.display import say

                say(f"{error} The default is used.")
            else:
                usable.GpuShare[name] = value
        return GpuShare(config=usable)


# -- the magics --------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """Says what is wrong instead of leaving the process."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}. See `%gpushare help`.")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """The options; the error for an unknown word suggests the one that was probably meant."""
        options, unknown = self.parse_known_args(args, namespace)
        if unknown:
            known = [name for one in self._actions for name in one.option_strings]
            raise _unknown(self.prog, unknown[0], known)
        return options


@magics_class
class GpuShareMagics(Magics):
    """The ``%gpushare`` and ``%%gpushare`` magics of one shell."""

    @output_can_be_silenced
    @line_cell_magic
    def gpushare(self, line: str, cell: str | None = None) -> Any:
        """GPUs of this kernel: status, quota, request, release, cpu, park, resume, pin and more.

        ``%gpushare`` alone is ``%gpushare status``; ``%gpushare help`` says more.
        ``%%gpushare [--gpus N] [--memory 8GiB] [--class batch]`` on the first line
        of a cell holds a lease for that cell only, and with ``--deadline 10m`` or
        ``--min-steps-per-second 2`` promises it.
        """
        __tracebackhide__ = True
        if os.environ.get("JUPYTER_GPUSHARE", "").lower() in ("off", "0", "false", "no"):
            raise UsageError(
                "GPU sharing is switched off by the variable JUPYTER_GPUSHARE. Where walls stand, "
                "this kernel can open no GPU."
            )
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise UsageError(f"%gpushare: {error}. See `%gpushare help`.") from None
        if cell is not None:
            return self._cell(words, cell)
        if words[:1] == ["predict"]:  # an expression keeps its quotes
            words = shlex.split(line, comments=True, posix=False)
        verb, *rest = words or ["status"]
        if verb in ("-h", "--help"):
            verb = "help"
        if verb not in VERB_OPTIONS:
            raise _unknown("%gpushare", verb, VERB_OPTIONS)
        if rest and verb in _ALONE:
            raise UsageError(
                f"%gpushare {verb} takes no argument {rest[0]!r}. See `%gpushare help`."
            )
        getattr(self, f"_{verb}")(rest)
        return None

    def _status(self, words: list[str]) -> None:
        from ..words import render

        status = broker().status()
        here = broker().lease
        server = os.environ.get(STARTED_FROM)
        place = render.place_line(server, os.uname().nodename) if server else ""
        if broker().preferences.go_without:
            place = f"{place}\n{_WITHOUT}".lstrip()
        self._show(render.show_status(status, here, place))

    def _quota(self, words: list[str]) -> None:
        from .. import api
        from ..words import render

        self._show(render.show_quota(broker().status(), api.usage()))

    def _servers(self, words: list[str]) -> None:
        from .. import api
        from ..words import render

        self._show(render.show_servers(api.servers()))

    def _history(self, words: list[str]) -> None:
        parser = _Parser("%gpushare history", add_help=False)
        parser.add_argument("--limit", type=int, default=_HISTORY)
        limit = parser.parse_args(words).limit
        if not 1 <= limit <= 1000:
            raise UsageError("%gpushare history: --limit must be from 1 to 1000.")
        from .. import api
        from ..words import render

        self._show(render.show_history(api.history(limit)))

    def _predict(self, words: list[str]) -> None:
        where = "%gpushare predict"
        parser = _Parser(where, add_help=False, allow_abbrev=False)
        parser.add_argument("--iterations", default="1")
        parser.add_argument("--optimizer")
        parser.add_argument("--loss")
        options, rest = parser.parse_known_args(words)
        iterations = _iterations(options.iterations)
        told = self._evaluated(where, " ".join(rest))
        if not isinstance(told, tuple) or len(told) != 2:
            raise UsageError(
                f"{where} needs a model and a batch, separated by a comma: "
                "`%gpushare predict model, batch --iterations 1000`."
            )
        optimizer = options.optimizer
        if optimizer is not None and optimizer not in VERB_OPTIONS["predict"]["--optimizer"]:
            optimizer = self._evaluated(where, optimizer)
        loss = None if options.loss is None else self._evaluated(where, options.loss)
        from .. import api

        predicted = api.estimate(*told, iterations=iterations, loss=loss, optimizer=optimizer)
        self._show(predicted.shown)

    def _dry_run(self, cell: str) -> None:
        from .dryrun import estimate_cell
        from .reading import Unknown, work_of

        shell: Any = self.shell
        try:
            work = work_of(shell.transform_cell(cell), shell.user_ns)
        except Unknown as error:
            raise UsageError(f"%%gpushare --dry-run: {error}") from None
        self._show(estimate_cell(work).shown)

    def _evaluated(self, where: str, expression: str) -> Any:
        shell: Any = self.shell
        try:
            return eval(expression.strip() or "()", shell.user_global_ns, shell.user_ns)
        except Exception as error:  # noqa: BLE001 - the expression is the user's
            raise UsageError(
                f"{where}: `{expression}` cannot be used: {type(error).__name__}: {error}. Run "
                "the cell that makes it first."
            ) from None

    def _help(self, words: list[str]) -> None:
        from ..words import render

        self._show(render.show_help())

    def _request(self, words: list[str]) -> None:
        parser = _asking("%gpushare request")
        parser.add_argument("--no-wait", action="store_true")
        parser.add_argument("--later", action="store_true")
        options = parser.parse_args(words)
        ask = _ask("%gpushare request", options)
        before = broker().grant
        if options.later:
            broker().preferences.set_ask(ask)
            told = broker().preferences.ask_as_known().words
            self._tell(f"The next framework that is imported asks for {told}.")
            return
        ask = broker().preferences.repeated(ask)
        if before is not None and not words:
            self._tell(f"This kernel holds {before.words} already.")
            return
        try:
            grant = broker().request(ask, wait=not options.no_wait)
        except KeyboardInterrupt as interrupt:
            raise stopped_waiting(interrupt, _what_was_left(before)) from None
        broker().preferences.set_ask(ask)
        same = before is not None and before.lease == grant.lease
        start = "This kernel holds" if same else "This kernel now holds"
        end = "already, nothing changed." if same else "until `%gpushare release` or its end."
        self._tell(f"{start} {grant.words} {end}")

    def _release(self, words: list[str]) -> None:
        from ..session.visible import cuda_started

        grant = broker().grant
        told = _given_back(grant, broker().release())
        if told is None:
            told = "This kernel holds no GPU, so there is nothing to give back."
        # Where CUDA runs, the next cell asks for nothing: it says that it has no lease.
        self._tell(told if cuda_started() else f"{told} {broker().automatic.words()}")

    def _cpu(self, words: list[str]) -> None:
        grant = broker().grant
        told = _given_back(grant, broker().go_without())
        self._tell(_WITHOUT if told is None else f"{told} {_WITHOUT}")

    def _park(self, words: list[str]) -> None:
        watch = kernel.watch_of(self.shell)
        if watch is not None and watch.running and not (watch.running == 1 and watch.gate.is_open):
            raise UsageError(
                "%gpushare park needs a cell of its own, while no other cell runs: code after it "
                "would find its variables without their memory."
            )
        given = broker().park()
        if given is None:
            self._tell("This kernel holds no GPU, so there is nothing to give back.")
            return
        from ...figures import format_size

        where = f" {format_size(given.memory)} are in host memory." if given.memory else ""
        self._tell(
            f"Given back, and your variables are kept.{where} The next cell asks for a GPU again."
        )

    def _resume(self, words: list[str]) -> None:
        try:
            grant = broker().resume()
        except KeyboardInterrupt as interrupt:
            raise stopped_waiting(interrupt, _what_was_left(None)) from None
        if grant is None:
            self._tell("Nothing of this kernel is parked.")
        else:
            self._tell(f"This kernel holds {grant.words} again.")

    def _pin(self, words: list[str]) -> None:
        from ...figures import format_duration
        from ...protocol.times import parse_duration

        given = " ".join(words)
        seconds: float | None = None
        if given:
            try:
                seconds = 0.0 if given == "off" else parse_duration(given)
            except ValueError as error:
                raise UsageError(f"%gpushare pin {given}: {error} `off` ends it.") from None
        grant, kept_for = broker().grant, broker().pin(seconds)
        gpus, are = ("GPU", "is") if grant is None or len(grant.gpus) == 1 else ("GPUs", "are")
        if kept_for is None:
            self._tell("This kernel holds no GPU, so there is nothing to keep.")
        elif not kept_for[0]:
            self._tell(f"This kernel's {gpus} {are} not kept any longer: the idle time-out holds.")
        else:
            # What was asked, and not a moment less.
            kept, turn = (format_duration(math.ceil(seconds)) for seconds in kept_for)
            told = f"This kernel keeps its {gpus} for {kept}, also while it is idle."
            if kept_for[1]:
                told += f" Its turn is not asked back for {turn}."
            self._tell(told)

    def _cell(self, words: list[str], cell: str) -> Any:
        __tracebackhide__ = True
        where = "%%gpushare"
        parser = _asking(where)
        parser.add_argument("--dry-run", action="store_true")
        for option in PROMISES:
            parser.add_argument(option)
        options = parser.parse_args(words)
        ask, wish, began = _ask(where, options), _wish(options), time.monotonic()
        if options.dry_run:
            return self._dry_run(cell)
        # Before anything is asked for: a slip in the cell must cost no wait in the queue.
        run = self._compiled(cell)
        from ..requests.blocks import covers

        if (held := broker().grant) is not None:
            if not covers(held, ask):
                raise UsageError(
                    f"%%gpushare: the cell asks for {ask.words}, but this kernel "
                    f"already holds {held.words}, and can hold one lease at a time. "
                    "Use `%gpushare release` first, or ask for no more than that."
                )
            print(f"The cell uses {held.words}, which this kernel holds and keeps.")
            return _promised(wish, began, run)
        try:
            grant = broker().request(ask)
        except KeyboardInterrupt as interrupt:
            # Ctrl-C that came after the grant: the cell does not run, so nobody would give it back.
            if (late := broker().grant) is not None:
                _give_back(late)
            raise stopped_waiting(interrupt, "left the queue; the cell did not run.") from None
        print(f"The cell holds {grant.words} until it ends.")
        try:
            return _promised(wish, began, run)
        finally:
            _give_back(grant)

    def _compiled(self, cell: str) -> Callable[[], Any]:
        """The cell's code, ready to run; its last expression is the value, as in any cell.

        Raises :class:`SyntaxError` before anything is asked for.
        """
        shell: Any = self.shell
        source = shell.transform_cell(cell)
        name = shell.compile.cache(source, shell.execution_count, raw_code=cell)
        tree = shell.transform_ast(shell.compile.ast_parse(source, name))
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        body = shell.compile(tree, name, "exec")
        value = None if last is None else shell.compile(ast.Expression(last.value), name, "eval")

        def run() -> Any:
            __tracebackhide__ = True
            exec(body, shell.user_global_ns, shell.user_ns)
            return None if value is None else eval(value, shell.user_global_ns, shell.user_ns)

        return run

    def _tell(self, text: str) -> None:
        from ..words import render

        self._show(render.show_notice(text, good=True))

    def _show(self, shown: Shown) -> None:
        assert self.shell is not None
        self.shell.display_pub.publish(shown.data)


def _asking(prog: str) -> _Parser:
    from ..words.settings import PARTS

    parser = _Parser(prog, add_help=False, allow_abbrev=False)
    for option, part in zip(OPTIONS, PARTS, strict=True):
        parser.add_argument(option, dest=part)
    return parser


def _ask(prog: str, options: argparse.Namespace) -> Ask:
    """Checked needs. Raises ``UsageError``."""
    from ..words.settings import ONE_PART, PARTS, Ask

    said: dict[str, Any] = {}
    for option, (part, parse) in zip(OPTIONS, PARTS.items(), strict=True):
        value = getattr(options, part)
        try:
            said[part] = None if value is None else parse(value)
        except ValueError as error:
            raise UsageError(f"{prog}: {option} {value!r} cannot be used: {error}") from None
    if said["gpus"] == 0:
        raise UsageError(f"{prog}: --gpus must be at least 1; `%gpushare release` gives back.")
    if (options.persistent is None) != (options.temporary is None):
        raise UsageError(f"{prog}: {ONE_PART}")
    return Ask(**said)


def _iterations(given: str) -> int:
    try:
        count = int(given.replace("_", ""))
    except ValueError:
        count = 0
    if not 1 <= count <= 2**53:
        raise UsageError("%gpushare predict: --iterations must be a whole number, 1 or more.")
    return count


def _wish(options: argparse.Namespace) -> Wish | None:
    """The promise that a cell names. Raises ``UsageError``."""
    from ..words.promises import read_wish

    try:
        return read_wish(options.deadline, options.min_steps_per_second)
    except ValueError as error:
        raise UsageError(f"%%gpushare: the promise cannot be read: {error}") from None


def _promised(wish: Wish | None, began: float, run: Callable[[], Any]) -> Any:
    """Run a cell that began then (monotonic), under the promise that it names."""
    __tracebackhide__ = True
    with broker().promises.kept(wish, time.monotonic() - began) as words:
        if words:
            print(words)
        return run()


def _unknown(prog: str, word: str, known: Iterable[str]) -> UsageError:
    hint = did_you_mean(word.partition("=")[0], known) or ". See `%gpushare help`."
    return UsageError(f"{prog} knows no {word!r}{hint}")


def _what_was_left(before: Grant | None) -> str:
    """The sentence on what an interrupt left of the lease held ``before``, and of a new one."""
    from ..words.display import on_cpu

    grant, lease = broker().grant, broker().lease
    if grant is not None and before is not None and grant.lease == before.lease:
        return f"left the queue; this kernel still holds {grant.words}."
    if grant is not None:
        return f"too late to leave the queue; this kernel holds {grant.words}."
    if lease is not None:
        return "left the queue; this kernel's lease stays parked, the next cell asks for its GPU."
    return f"left the queue, no GPU was taken. {on_cpu()}"


def _give_back(grant: Grant) -> None:
    """After the cell. Whatever the cell raised must not be hidden behind our trouble."""
    from ..errors import GpuShareError
    from ..words.display import say

    now = broker().grant
    if now is None or now.lease != grant.lease:
        return
    try:
        broker().release()
    except GpuShareError as error:
        say(f"The cell's lease could not be given back in order: {error}")
        return
    if remains := _remains(grant):
        say(f"The cell's lease has ended.{remains}")


def _given_back(grant: Grant | None, state: str | None) -> str | None:
    """What became of the lease that this kernel had; ``None``: it had none."""
    if state is None:
        return None
    if grant is None:
        return "The parked lease is given up."
    if state == "joined":
        return (
            "This process shared the lease of the process that started it, and has left it. "
            "The lease itself goes on: only the process that owns it can give it back."
        )
    return f"Given back: {grant.words}.{_remains(grant)}"


def _remains(grant: Grant) -> str:
    """The sentence on memory left on the GPU of a lease given back, and what to do; or ""."""
    from ..session.visible import cuda_started

    if cuda_started():
        who = "CUDA runs in this process and keeps"
        advice = "Restart the kernel to release it; until then do not compute on that GPU"
    elif _still_used(grant):
        who = "Processes that shared the lease keep"
        advice = "End them, or restart the kernel; until then do not compute on that GPU"
    else:
        return ""
    return (
        f" {who} memory there, though: that much stays reserved until the process gives it back "
        f"(the lease shows as draining meanwhile). Others may have the rest. {advice}: that would "
        "count as use without a lease."
    )


def _still_used(grant: Grant) -> bool:
    from ..errors import GpuShareError

    try:
        leases = broker().status()["leases"]
        ours = [one for one in leases if one["id"] == grant.lease and one["state"] == "draining"]
        return any(gpu.get("measured") for one in ours for gpu in one["gpus"])
    except (GpuShareError, LookupError, TypeError, AttributeError):
        return False


# -- tab completion ----------------------------------------------------------------------------


def complete(context: CompletionContext) -> SimpleMatcherResult:
    """The completions after ``%gpushare`` and ``%%gpushare``; no other completer knows these."""
    line = context.text_until_cursor.lstrip()
    words = line.split()
    if not words or words[0] not in MAGICS or line == words[0]:
        return {"completions": []}
    typed = "" if line[-1:].isspace() else words[-1]
    if _is_expression(words, typed):
        known: Sequence[str] = _variables()
        typed = typed.rpartition(",")[2].rpartition("(")[2]
    else:
        known = completions(words[: len(words) - bool(typed)])
    found = [one for one in known if one.startswith(typed)]
    # Return the typed word if there is no completion; otherwise IPython would offer Python's names.
    return {
        "completions": [SimpleCompletion(one, type="gpushare") for one in found or [typed]],
        "matched_fragment": typed,
        "ordered": True,
        "suppress": True,
    }


def _is_expression(words: list[str], typed: str) -> bool:
    """Whether a model or a batch is typed, for which Python's names are right."""
    before = words[: len(words) - bool(typed)]
    is_value = len(before) > 2 and before[-1] in VERB_OPTIONS["predict"]
    return before[1:2] == ["predict"] and not is_value and not typed.startswith("-")


def _variables() -> list[str]:
    from IPython.core.getipython import get_ipython

    shell: Any = get_ipython()
    return sorted(name for name in shell.user_ns if not name.startswith("_"))


matcher: Any = context_matcher(identifier="gpushare", priority=200)(complete)


def completions(before: Sequence[str]) -> Sequence[str]:
    """The words that may come after those of a line."""
    if before[0].startswith("%%"):
        options = {**OPTIONS, **PROMISES, "--dry-run": ()}
    elif len(before) == 1:
        return list(VERB_OPTIONS)
    else:
        options = VERB_OPTIONS.get(before[1], {})
    if values := options.get(before[-1]):
        return list(values)
    return [option for option in options if option not in before]


# -- the extension -----------------------------------------------------------------------------


def load_ipython_extension(ipython: Any) -> None:
    """Called through ``jupyter_gpushare`` when a kernel starts, or by ``%load_ext``."""
    traits = read_traits(ipython)
    ipython.configurables.append(traits)  # for %config
    use_traits(traits.settings)
    ipython.register_magics(GpuShareMagics(ipython))
    if ipython.Completer is not None and matcher not in ipython.Completer.custom_matchers:
        ipython.Completer.custom_matchers.append(matcher)
    kernel.install(ipython)


def unload_ipython_extension(ipython: Any) -> None:
    """Take everything away again; a lease that is held stays until the process ends."""
    kernel.uninstall(ipython)
    for known in ipython.magics_manager.magics.values():
        known.pop("gpushare", None)
    ipython.magics_manager.registry.pop(GpuShareMagics.__name__, None)
    if ipython.Completer is not None and matcher in ipython.Completer.custom_matchers:
        ipython.Completer.custom_matchers.remove(matcher)
    for ours in [c for c in ipython.configurables if isinstance(c, GpuShare | GpuShareMagics)]:
        ipython.configurables.remove(ours)
    use_traits(None)
