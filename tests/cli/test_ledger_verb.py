"""A ledger is backed up while it is used, looked at and put back, and root never spoils it."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import stat
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.livenode import CLI, in_process
from support.node import GIB, Puppet, RemoteError, RunningNode, needs_root, open_directory, until
from support.systemd import UnprivilegedNode

from jupyter_gpushare.ledger.ledger import Ledger, Record, StoppedLedger
from jupyter_gpushare.protocol.messages import Method, Notice

SERVICE = 54219


def verb(node: RunningNode, *arguments: str) -> subprocess.CompletedProcess[str]:
    """One that finds the node manager as any other does, if it runs."""
    environ = {**os.environ, "JUPYTER_GPUSHARE_SOCKET": str(node.socket)}
    return in_process("ledger", *arguments, environ=environ)


def told(node: RunningNode, *arguments: str) -> dict[str, Any]:
    done = verb(node, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def refused(node: RunningNode, said: str, *arguments: str | Path) -> None:
    done = verb(node, *map(str, arguments))
    assert (done.returncode, said in done.stdout + done.stderr) == (1, True)


def quotas(node: RunningNode) -> set[str]:
    with node.client() as client:
        answer = client.call(Method.QUOTA_LIST)["quotas"]
    return {row["environment"] for row in answer if row["source"] == "override"}


def set_quota(node: RunningNode, name: str) -> None:
    with node.client() as client:
        client.call(Method.QUOTA_SET, environment=name, gpus=1)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    config = "c.NodeManagerApp.ledger_bytes = 8 * 2**20\n"
    with RunningNode(tmp_path_factory.mktemp("node"), config=config) as node:
        yield node
        assert "Traceback" not in node.story()


def test_a_backup_is_made_while_grants_go_on(node: RunningNode, tmp_path: Path) -> None:
    stop, failed = threading.Event(), []

    def work() -> None:
        with node.client() as client:
            while not stop.is_set():
                try:
                    client.call(Method.RELEASE, lease=client.request()["lease"])
                except (RemoteError, OSError, AssertionError) as error:
                    failed.append(error)
                    return

    set_quota(node, "ada")
    busy = threading.Thread(target=work)
    busy.start()
    try:
        backup = tmp_path / "copy.sqlite"
        backup.write_text("an older one")
        answer = told(node, "backup", str(backup))
    finally:
        stop.set()
        busy.join()
    assert failed == []
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    assert backup.stat().st_size == answer["bytes"]
    assert [file.name for file in tmp_path.iterdir()] == ["copy.sqlite"]
    assert not list(node.ledger.parent.glob("*.backup*"))
    looked = told(node, "check", str(backup))
    assert (looked["records"], looked["problems"]) == (answer["records"], [])
    with sqlite3.connect(backup) as copy:
        found = copy.execute("SELECT environment FROM records WHERE kind = 'QuotaChanged'")
        assert ("ada",) in found.fetchall()
    copy.close()


def test_the_ledger_in_use_is_looked_at_and_made_smaller(node: RunningNode) -> None:
    looked = told(node, "check")
    assert (looked["path"], looked["problems"]) == (str(node.ledger), [])
    assert looked["records"] > 0
    assert "whole" in verb(node, "check").stdout
    sizes = told(node, "vacuum")
    assert sizes["after"] <= sizes["before"]
    assert told(node, "check")["free"] == 0


def test_what_a_backup_may_not_be(node: RunningNode, tmp_path: Path) -> None:
    refused(node, "is the ledger itself", "backup", node.ledger)
    refused(node, "No such file", "backup", str(tmp_path / "no such folder" / "copy"))
    refused(node, "is no backup", "check", node.ledger)
    refused(node, "", "restore", node.ledger)
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as shell:
        shell.execute("CREATE TABLE mine (x)")
    shell.close()
    refused(node, "of something else", "restore", f"--ledger={tmp_path / 'ledger.sqlite'}", other)
    assert not (tmp_path / "ledger.sqlite").exists()


def test_a_ledger_in_use_is_not_replaced(node: RunningNode, tmp_path: Path) -> None:
    backup = tmp_path / "copy.sqlite"
    told(node, "backup", str(backup))
    refused(node, "in use", "restore", f"--ledger={node.ledger}", backup)
    set_quota(node, "still-there")


def test_leases_given_after_the_backup_are_had_back(tmp_path: Path) -> None:
    """A ledger that was restored says so once; nobody gets a GPU that another may hold.

    What else became of a lease since then is in tests/policy/test_rebuild.py.
    """
    directory = tmp_path / "node"
    directory.mkdir()
    backup = tmp_path / "copy.sqlite"
    named = f"--ledger={directory / 'ledger.sqlite'}"
    presenting = "c.Policy.restart_grace = {0}\nc.Policy.heartbeat_timeout = {0}\n"
    config = presenting.format(60.0)
    with (
        RunningNode(directory, simulate="1x24GiB", config=config) as node,
        Puppet() as puppet,
    ):
        told(node, "backup", str(backup))
        granted = puppet.client(node.socket).request(memory=8 * GIB)
        node.terminate()
        told(node, "restore", named, str(backup))
        node.start()
        with node.client() as another:
            another.ask(memory=16 * GIB)
            assert "present it again" in another.wait_notice(Notice.QUEUED)["message"]
        shown = {name: granted[name] for name in ("lease", "secret", "voucher")}
        again = puppet.client(node.socket).call(Method.ATTACH, **shown)
        assert again["gpus"][0]["uuid"] == granted["gpus"][0]["uuid"]
        # The time begins anew with each start until it has passed; then it is over for good.
        node.terminate()
        node.config.write_text(presenting.format(3.0) + "c.Policy.heartbeat_interval = 0.2\n")
        node.start()
        until(lambda: node.status()["node"]["problem"] is None, "leases had time")
        node.restart()
        assert node.status()["node"]["problem"] is None


def test_damage_is_found(node: RunningNode, tmp_path: Path) -> None:
    backup = tmp_path / "copy.sqlite"
    told(node, "backup", str(backup))
    with backup.open("r+b") as file:
        file.seek(4096 * 3)
        file.write(b"\xff" * 8192)
    refused(node, "has problems", "check", backup)
    refused(node, "not whole", "restore", f"--ledger={tmp_path / 'new.sqlite'}", backup)
    assert not (tmp_path / "new.sqlite").exists()


def hot_journal(path: Path) -> bytes:
    """What a program leaves beside ``path`` that is killed while it writes there."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as shell:
        shell.execute("PRAGMA journal_mode = DELETE")
        shell.execute("PRAGMA cache_size = 1")
        shell.execute("BEGIN IMMEDIATE")
        shell.execute("UPDATE records SET data = data || ' '")
        journal = path.with_name(f"{path.name}-journal").read_bytes()
        shell.execute("ROLLBACK")
    assert journal[:8] == b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"
    return journal


@pytest.mark.parametrize("beside", ["ledger.sqlite.restore", "ledger.sqlite"])
def test_what_a_killed_restore_left_spoils_no_other(tmp_path: Path, beside: str) -> None:
    """SQLite believed the old one's journal to be of the new file, which lost its end."""

    def records(count: int) -> list[Record]:
        return [Record("Noted", float(n), 1e9, "ada", None, {"n": "x" * 900}) for n in range(count)]

    source, backup = tmp_path / "source.sqlite", tmp_path / "copy.sqlite"
    ledger = Ledger.open(source, history=1e9, wall=1e9)
    try:
        ledger.append(records(200))
        earlier = tmp_path / "earlier.sqlite"
        with open(ledger.copy(tmp_path / "draft"), "rb") as copy:
            earlier.write_bytes(copy.read())
        ledger.append(records(2000))
        with open(ledger.copy(tmp_path / "draft"), "rb") as copy:
            backup.write_bytes(copy.read())
    finally:
        ledger.close()
    place = tmp_path / "node"
    place.mkdir()
    (place / f"{beside}-journal").write_bytes(hot_journal(earlier))
    stopped = StoppedLedger(place / "ledger.sqlite")
    with backup.open("rb") as file, contextlib.closing(stopped):
        stopped.replace(file.fileno(), 1e9)
        health = stopped.check()
        assert (health.problems, health.records) == ((), 2200)
    assert not [file.name for file in place.iterdir() if ".restore" in file.name]


@needs_root
def test_root_spoils_nothing_of_the_service_users(tmp_path: Path) -> None:
    """All of it by root, on the ledger of a node manager that another user runs and has stopped."""
    with open_directory() as place:
        backup = tmp_path / "copy.sqlite"
        node = UnprivilegedNode(place, SERVICE)
        named = f"--ledger={node.ledger}"
        with node:
            set_quota(node, "ada")
            told(node, "backup", str(backup))
            assert backup.stat().st_uid == 0
            set_quota(node, "eve")
            with node.client() as client:
                client.request()
            node.kill9()  # its log is still beside it
            late = tmp_path / "late.sqlite"
            assert told(node, "backup", named, str(late))["records"] > 0
            assert told(node, "check", named)["problems"] == []
            told(node, "vacuum", named)
            assert {file.stat().st_uid for file in place.glob("ledger*")} == {SERVICE}
            node.start()
            assert quotas(node) == {"ada", "eve"}
            assert len(node.status()["leases"]) == 1
            node.terminate()
            done = told(node, "restore", named, str(backup))
            assert Path(done["before"]).name.startswith("ledger.sqlite.before-")
            assert {file.stat().st_uid for file in place.glob("ledger*")} == {SERVICE}
            node.start()
            assert quotas(node) == {"ada"}
            assert node.status()["leases"] == []  # it was given after the backup
            node.terminate()
            # What an sqlite3 shell of root's leaves behind is named, with its remedy.
            log = node.ledger.with_name("ledger.sqlite-wal")
            log.touch()
            refused(node, "chown", "check", named)
            log.unlink()
            node.start()


@needs_root
def test_another_user_is_told_who_may() -> None:
    script = (
        "import os, sys, jupyter_gpushare.cli.ledger as ledger; from pathlib import Path;"
        "os.setegid(1); os.seteuid(1)\n"
        "try:\n    with ledger.as_owner_of(Path(sys.argv[1])): pass\n"
        "except ledger.Refused as error: print(error)"
    )
    # Not in `tmp_path`: each pytest that begins bars others from the folder above it.
    with tempfile.TemporaryDirectory() as place:
        os.chown(place, SERVICE, SERVICE)
        os.chmod(place, 0o755)
        done = subprocess.run(
            [CLI[0], "-c", script, f"{place}/ledger.sqlite"],
            capture_output=True,
            text=True,
            check=True,
        )
    assert f"is user {SERVICE}'s" in done.stdout
