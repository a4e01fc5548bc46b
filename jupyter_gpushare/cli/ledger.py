"""``jupyter gpushare ledger backup|check|vacuum|restore``: keep the ledger, and bring it back.

If a node manager answers, it does the work as its own user, and its clients do not wait for it. If
none answers, the verb works on the file itself. Root then acts as the ledger's owner, because the
owner's node manager must be able to use every file that is made.
"""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar

from jupyter_core.paths import jupyter_data_dir

from ..console.node import Node, NodeSilent, connect
from ..console.verb import Refused, UsageError, Verb, option
from ..figures import format_size
from ..protocol.messages import Method

if TYPE_CHECKING:
    from ..ledger.ledger import StoppedLedger

#: The ledger of the system's node manager.
SYSTEM = Path("/var/lib/jupyter-gpushare/ledger.sqlite")
#: Seconds for a copy of a large ledger, or a look at all of it.
LONG = 3600.0


class LedgerVerb(Verb):
    """A verb about the whole ledger."""

    ledger = option(
        "",
        """Path of a ledger whose node manager is stopped. Not set: the ledger of the node
        manager that answers, else /var/lib/jupyter-gpushare/ledger.sqlite where you may read
        that folder, else the one in your Jupyter data directory.""",
    )

    def node(self) -> Node | None:
        """The node manager that answers, or ``None`` where the file itself is meant."""
        if self.ledger:
            return None
        try:
            return connect()
        except NodeSilent as error:
            self.log.info("%s", error)
            return None

    def place(self) -> Path:
        """The file that is meant where no node manager answers."""
        if self.ledger:
            return Path(self.ledger).absolute()
        if os.access(SYSTEM.parent, os.R_OK):
            return SYSTEM
        return Path(jupyter_data_dir(), "gpushare", "ledger.sqlite")

    @contextlib.contextmanager
    def stopped(self) -> Iterator[StoppedLedger]:
        """The file itself, as its owner."""
        from ..ledger.ledger import StoppedLedger

        place = self.place()
        with as_owner_of(place), contextlib.closing(StoppedLedger(place)) as ledger:
            yield ledger

    def run(self, arguments: list[str]) -> int:
        from ..ledger.ledger import LedgerError

        try:
            return self.work(arguments)
        except LedgerError as error:
            raise Refused(str(error), "unavailable") from error
        except OSError as error:
            where = error.filename or self.place()
            raise Refused(f"{where}: {error.strerror or error}.", "unavailable") from error

    def work(self, arguments: list[str]) -> int:
        """The work of `run`, without the handling of errors."""
        raise NotImplementedError

    def one_file(self, arguments: list[str], what: str) -> Path:
        """The only argument. Raises `UsageError`."""
        if len(arguments) != 1:
            raise UsageError(what)
        return Path(arguments[0])


class LedgerBackupApp(LedgerVerb):
    """Copy the ledger into FILE (administrators), as it is at one instant, while the
    node manager goes on. FILE is yours, readable by you only, and replaced if it is there; it is
    looked at before it gets its name. The key beside the ledger is not in it."""

    name = "ledger backup"
    arguments = "FILE"
    examples = """
    jupyter gpushare ledger backup /var/backups/gpushare.sqlite
    """

    def work(self, arguments: list[str]) -> int:
        target = self.one_file(arguments, "say where to: jupyter gpushare ledger backup FILE")
        from ..ledger.ledger import check_backup

        descriptor, draft = tempfile.mkstemp(
            dir=target.absolute().parent, prefix=f".{target.name}."
        )
        try:
            with open(descriptor, "wb") as file:
                self._fill(file, target)
                file.flush()
                os.fsync(descriptor)
            health = check_backup(Path(draft))
            if health.problems:
                raise Refused(f"the copy is not whole: {health.problems[0]}")
            os.replace(draft, target)
        finally:
            Path(draft).unlink(missing_ok=True)
        answer = {"file": str(target.absolute()), **asdict(health)}
        return self.say(answer, f"{target}: {_described(answer)}")

    def _fill(self, file: IO[bytes], target: Path) -> None:
        node = self.node()
        if node is None:
            _not_itself(target, self.place())  # as who calls: its owner may not see the target
            with self.stopped() as ledger:
                copy = ledger.copy(ledger.path.with_name(f"{ledger.path.name}.backup"))
            with open(copy, "rb") as whole:
                shutil.copyfileobj(whole, file, 2**20)
            return
        with node:
            _not_itself(target, Path(node.call(Method.STATUS)["node"].get("ledger") or ""))
            copy_ledger(node, file)


class LedgerCheckApp(LedgerVerb):
    """Look at every page of the ledger (administrators), or of a backup of it, and
    say how large it is. Exit code 1: there is damage."""

    name = "ledger check"
    arguments = "[BACKUP]"

    def work(self, arguments: list[str]) -> int:
        from ..ledger.ledger import check_backup

        if arguments:
            file = self.one_file(arguments, "check one file")
            answer = {"path": str(file.absolute()), **asdict(check_backup(file))}
        elif (node := self.node()) is not None:
            with node:
                answer = node.call(Method.LEDGER_CHECK, patience=LONG)
        else:
            with self.stopped() as ledger:
                health = asdict(ledger.check())
                health["problems"] = [*health["problems"], *ledger.others_files()]
                answer = {"path": str(ledger.path), **health}
        if answer["problems"]:
            told = "\n  ".join([f"{answer['path']} has problems:", *answer["problems"]])
            self.say(answer, told)
            return 1
        return self.say(answer, f"{answer['path']}: {_described(answer)}")


class LedgerVacuumApp(LedgerVerb):
    """Forget what is past its time and give free room back to the disk
    (administrators), in small steps between which grants go on. This also happens by itself every
    ten minutes, except for an eighth of the file. If the node manager is stopped, the whole file is
    written anew, which needs as much room again meanwhile."""

    name = "ledger vacuum"

    def work(self, arguments: list[str]) -> int:
        node = self.node()
        if node is not None:
            with node:
                answer = node.call(Method.LEDGER_VACUUM, patience=LONG)
        else:
            with self.stopped() as ledger:
                before = ledger.path.stat().st_size if ledger.path.exists() else 0
                ledger.vacuum()
                answer = {"before": before, "after": ledger.path.stat().st_size}
        sizes = [format_size(answer[name]) for name in ("after", "before")]
        return self.say(answer, "The ledger takes {}; it took {}.".format(*sizes))


class LedgerRestoreApp(LedgerVerb):
    """Put a backup in the ledger's place (administrators), while the node manager is
    stopped. The backup is looked at first; the ledger that is there is renamed, not removed. What
    was recorded after the backup is not known any more; running kernels present their leases again
    after the start, and nothing is granted before they had time for it."""

    name = "ledger restore"
    arguments = "BACKUP"
    examples = """
    systemctl stop jupyter-gpushare.socket jupyter-gpushare.service
    jupyter gpushare ledger restore /var/backups/gpushare.sqlite
    systemctl start jupyter-gpushare.socket jupyter-gpushare.service
    """

    def work(self, arguments: list[str]) -> int:
        backup = self.one_file(arguments, "which backup? jupyter gpushare ledger restore BACKUP")
        from ..ledger.ledger import check_backup

        check_backup(backup)  # as who calls: its owner may not be the ledger's
        with open(backup, "rb") as file, self.stopped() as ledger:
            old = ledger.replace(file.fileno(), time.time())
        told = f"{ledger.path} was restored from {backup}."
        if old is not None:
            told += f" The previous ledger is in {old}."
        return self.say(
            {"path": str(ledger.path), "before": None if old is None else str(old)}, told
        )


class LedgerApp(LedgerCheckApp):
    """The ledger (administrators): make a backup while the node manager runs, look
    for damage, make the file smaller, put a backup back."""

    name = "ledger"
    arguments = "backup|check|vacuum|restore"
    subcommands: ClassVar[Any] = {
        "backup": ("cli.ledger.LedgerBackupApp", "Copy the ledger into a file."),
        "check": ("cli.ledger.LedgerCheckApp", "Look for damage in the ledger, or in a backup."),
        "vacuum": ("cli.ledger.LedgerVacuumApp", "Give free room of the file back to the disk."),
        "restore": ("cli.ledger.LedgerRestoreApp", "Put a backup in the ledger's place."),
    }


def copy_ledger(node: Node, file: IO[bytes]) -> None:
    """Write the ledger of a node manager, as it is at one instant, into an empty file."""
    while True:
        answer = node.call(Method.LEDGER_BACKUP, patience=LONG, offset=file.tell())
        file.write(base64.b64decode(answer["data"]))
        if file.tell() >= answer["bytes"]:
            return


def as_owner_of(ledger: Path) -> AbstractContextManager[None]:
    """Root acts as the owner of the ledger's folder for a while. Raises `Refused`."""
    there = next((place for place in (ledger.parent, ledger) if place.exists()), None)
    if there is None:
        return contextlib.nullcontext()
    owner = there.stat()
    if owner.st_uid == 0 and ledger.exists():
        owner = ledger.stat()
    if os.geteuid() not in (0, owner.st_uid):
        raise Refused(
            f"the ledger {ledger} is user {owner.st_uid}'s: do this as that user, or as root.",
            "not_allowed",
        )
    return acting_as(owner)


@contextlib.contextmanager
def acting_as(owner: os.stat_result) -> Iterator[None]:
    """Root acts as this file's owner for a while: in that user's folder nothing else is safe.

    Who is not root goes on as they are.
    """
    if os.geteuid() != 0 or owner.st_uid == 0:
        yield
        return
    groups, group = os.getgroups(), os.getegid()
    # Groups first, the user last: without root's rights they could not be set any more.
    os.setgroups([])
    os.setegid(owner.st_gid)
    os.seteuid(owner.st_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)
        os.setgroups(groups)


def _not_itself(target: Path, ledger: Path) -> None:
    """Raises `Refused` for a copy that would replace what it is a copy of."""
    if os.path.realpath(target) == os.path.realpath(ledger):
        raise Refused(f"{target} is the ledger itself: name another file.", "bad_request")


def _described(answer: dict[str, Any]) -> str:
    parts = [f"whole, {format_size(answer['bytes'])}, {format_size(answer['free'])} of it free"]
    if answer["since"] is not None:
        day = datetime.fromtimestamp(answer["since"]).strftime("%Y-%m-%d %H:%M")
        parts.append(f"{answer['records']} records since {day}")
    return ", ".join(parts) + "."
