"""A release older or newer than a ledger reads all of it; each host has one, which is safe."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.node import GIB, RunningNode, needs_root, open_directory

from jupyter_gpushare.ledger import ledger as ledger_module, place as ledgerplace
from jupyter_gpushare.ledger.beside import UnsafeFile, check_directory, key_beside
from jupyter_gpushare.ledger.codec import from_record, to_record
from jupyter_gpushare.ledger.ledger import Ledger, LedgerFailed, Record
from jupyter_gpushare.node.views.history import entry, telling
from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.books.state import State
from jupyter_gpushare.policy.words import events as ev
from jupyter_gpushare.policy.words.model import Quota
from jupyter_gpushare.policy.words.versions import RELEASES
from jupyter_gpushare.protocol.messages import Method

BEYOND = max(RELEASES) + 1
LATER = {**RELEASES, BEYOND: "9.9"}


def open_ledger(path: Path) -> Ledger:
    return Ledger.open(path, history=1e6, wall=1.7e9)


def record(version: int | None = None) -> Record:
    return Record("Noted", 1.0, 1.7e9, None, None, {} if version is None else {"v": version})


def test_a_ledger_of_a_later_release_is_refused_and_left_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless what only the later one can read is history."""
    path = tmp_path / "ledger.sqlite"

    def later(write: Callable[[Ledger], object]) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(ledger_module, "RELEASES", LATER)
            with contextlib.closing(open_ledger(path)) as ledger:
                write(ledger)
            open_ledger(path).close()

    for write in (
        lambda ledger: ledger.append([record(), record(BEYOND)]),
        lambda ledger: ledger.write_snapshot([record(BEYOND)]),
    ):
        later(write)
        before = path.read_bytes()
        with pytest.raises(LedgerFailed, match=r"only jupyter_gpushare 9\.9 or later can read it"):
            open_ledger(path)
        assert path.read_bytes() == before
        assert list(path.parent.glob("*corrupt*")) == []
    later(lambda ledger: ledger.write_snapshot([record()]))
    with contextlib.closing(open_ledger(path)) as ledger:
        assert len(ledger.load()[0]) == 1


#: A ledger of commit 23a31f90, and the snapshot that it made of it.
BEFORE, SNAPSHOT = Path(__file__).with_name("ledger_before.sql").read_text().split("-- snapshot\n")
ALICE, BOB, CAROL = "alice", "bob", "carol"


@pytest.fixture
def before(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.sqlite"
    run(path, BEFORE)
    return path


def run(path: Path, script: str) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript(script)


def events(path: Path) -> list[ev.Event]:
    ledger = open_ledger(path)
    assert ledger.notice is None
    snapshot, after = ledger.load()
    ledger.close()
    return [from_record(one) for one in (*snapshot, *after)]


def state_of(told: Iterable[ev.Event]) -> State:
    state = State()
    for event in told:
        state = core.evolve(state, event)
    core.check(state)
    return state


def test_a_ledger_of_the_release_before_is_read_and_written_on(before: Path) -> None:
    told = events(before)
    assert len({type(event) for event in told}) > 25
    assert all(event.DURABLE for event in told), "what is only asked of a task is not on disk"
    state = state_of(told)
    own = state.quotas.overrides[ALICE]
    assert len(own.names) == 12, "a whole quota was set"
    mine = own.quota
    assert (mine.gpus, mine.memory, mine.gpu_hours, mine.per) == (2, 20 * GIB, 0.5, "month")
    assert (mine.burst_memory, mine.interactive, mine.share) == (0.5, 5, 50)
    assert state.quotas.pool == "lab"
    phases = sorted((lease.environment, lease.phase.value) for lease in state.leases.values())
    assert phases == [(BOB, "held"), (BOB, "queued"), (CAROL, "held"), (CAROL, "parked")]
    ledger = open_ledger(before)
    ledger.write_snapshot([to_record(event, 1.8e9) for event in core.summarise(state)])
    ledger.close()
    assert state_of(events(before)) == state_of(core.summarise(state))


def test_its_snapshot_says_the_same_as_its_records(before: Path, tmp_path: Path) -> None:
    summed = tmp_path / "summed.sqlite"
    open_ledger(summed).close()
    run(summed, SNAPSHOT)
    told = events(summed)

    def plain(said: Iterable[ev.Event]) -> list[ev.Event]:
        """It had them in another order, and forgot what a request was passed over by."""
        same = [replace(e, urgent_at=0) if isinstance(e, ev.LeaseQueued) else e for e in said]
        return sorted(same, key=repr)

    assert plain(core.summarise(state_of(events(before)))) == plain(told)


def test_a_node_manager_serves_with_it(before: Path) -> None:
    """The boot is another one: all leases are over. Quotas, history and usage stay."""
    people = {name: ["class"] for name in (ALICE, BOB, CAROL, "root")}
    with RunningNode(before.parent, simulate="3x24GiB", people=people) as node:
        root, alice = node.client("root"), node.client("alice")
        quotas = root.call(Method.QUOTA_LIST)
        texts = [one["text"] for one in root.call(Method.HISTORY, limit=200)["events"]]
        rows = root.call(Method.USAGE, since=100 * 365 * 86400.0)["rows"]
        granted = alice.request(memory=8 * GIB)
        assert alice.call(Method.HEARTBEAT, lease=granted["lease"])["state"] == "held"
    assert {row["environment"]: row["gpus"] for row in quotas["quotas"]}["bob"] == 2
    assert any("after 10 s its promise was kept" in text for text in texts)
    assert {row["environment"] for row in rows} == {"alice", "bob", "carol"}
    assert "Traceback" not in node.story()


QUOTA = {"quota": {"gpus": 2}, "named": ["gpus"], "by": "root"}
FLAG = {"gpu": "G", "process": {"boot_id": "b", "pid": 7, "start_time": 1}, "kind": "squatter"}
PARTS = [{"gpu": "G", "memory": GIB}]
#: What each kind of record that only the release before wrote said, and its sentence.
SAID: dict[str, tuple[dict[str, Any], str]] = {
    "GpuLost": ({"gpu": "G", "problem": "off"}, "G takes no new leases: off"),
    "GpuRestored": ({"gpu": "G"}, "G works again"),
    "GrantingChanged": ({"problem": "no disk"}, "nothing is granted: no disk"),
    "GpuTakenOut": (
        {"gpu": "G", "reason": "dust", "by": "root", "with_node": True},
        "root took G out of service: dust",
    ),
    "GpuPutBack": ({"gpu": "G", "by": "root"}, "root put G back into service"),
    "NodeTakenOut": (
        {"reason": "dust", "by": "root"},
        "root took the whole node out of service: dust",
    ),
    "NodePutBack": ({"by": "root"}, "root put the node back into service"),
    "PoolJoined": ({"pool": "lab"}, "this host belongs to the pool lab now"),
    "PoolLeft": ({}, "this host belongs to no pool any more"),
    "QuotaOverridden": (QUOTA, "quota set to GPUs: 2, by root"),
    "QuotaOverrideRemoved": ({"by": "root"}, "has the configured quota again, by root"),
    "GroupQuotaOverridden": (
        {"group": "class", **QUOTA},
        "quota of group class set to GPUs: 2, by root",
    ),
    "GroupQuotaOverrideRemoved": (
        {"group": None, "by": "root"},
        "the default quota is the configured one again, by root",
    ),
    "ProcessFlagged": ({**FLAG, "memory": 1}, "process 7 on G: squatter"),
    "FlagActed": (FLAG, "acted against process 7 on G"),
    "FlagCleared": (FLAG, "process 7 on G is within bounds again"),
    "LeaseOutlived": ({}, "has ended, and its process still has memory on the GPUs"),
    "LimitTold": ({"gpus": PARTS}, "may use 1 GiB of G"),
    "LimitConfirmed": ({"gpus": PARTS, "live": True}, "has its new memory limit"),
    "MemberJoined": ({"process": FLAG["process"], "worker": True}, "process 7 joined"),
    "MemberLeft": ({"process": FLAG["process"]}, "process 7 ended"),
    "PromiseEnded": (
        {"state": "missed", "named": True, "seconds": 61.0, "why": "slow"},
        "after 1 min its promise was missed: its steps take so long that all of the GPU would not "
        "be enough",
    ),
    "RebuildBegun": (
        {"until": 9.0},
        "the ledger is new, or an older copy: programs may present the leases that it lacks",
    ),
    "RebuildEnded": ({"leases": 2}, "programs presented so many leases again: 2"),
    "LeaseRebuilt": ({}, "presented a lease that the ledger lacked, and has it again"),
    "RebuildRefused": ({"processes": [], "why": "others have it"}, "others have it"),
}


def test_what_only_the_release_before_wrote_is_told_in_its_words(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path / "ledger.sqlite")
    for kind, (data, _text) in SAID.items():
        environment = (
            "alice" if kind.startswith(("Quota", "Lease", "Limit", "Promise", "RebuildR")) else None
        )
        lease = (
            "l" if kind.startswith(("Lease", "Limit", "Member", "Promise", "RebuildR")) else None
        )
        ledger.append([Record(kind, 1.0, 1.7e9, environment, lease, {**data, "v": 3})])
    told = ledger.history(None, len(SAID))[::-1]
    ledger.close()
    rows = [entry(one, telling({})) for one in told]
    assert [row["text"] for row in rows] == [text for _data, text in SAID.values()]
    titles = {row["what"] for row in rows}
    assert {"GPU lost", "GPU works again", "node serves again", "quota of a group set"} <= titles
    assert all(from_record(one) for one in told)


def stored(**changes: Any) -> Record:
    made = to_record(ev.QuotaChanged(1.0, ALICE, None, Quota(2), ALICE), 1.7e9)
    return Record(made.kind, 1.0, 1.7e9, "alice", None, {**made.data, **changes})


def test_an_unknown_field_is_refused_and_not_dropped() -> None:
    assert from_record(stored()) == ev.QuotaChanged(1.0, ALICE, None, Quota(2), ALICE)
    quota = stored().data["quota"]
    assert isinstance(quota, dict)
    with pytest.raises(LedgerFailed, match="a field 'colour'"):
        from_record(stored(colour="red"))
    with pytest.raises(LedgerFailed, match="a field 'colour'"):
        from_record(stored(quota={**quota, "colour": "red"}))
    with pytest.raises(LedgerFailed, match=f"of version {BEYOND}"):
        from_record(stored(v=BEYOND))
    del quota["per"]
    assert from_record(stored(quota=quota)) == from_record(stored()), "as older ledgers have it"


# -- where it is -----------------------------------------------------------------------------------

HOST = "0a1b2c3d"
STRANGER = 54321
ROOT = "23 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"


def mounted(point: str | Path, kind: str) -> str:
    return f"99 23 0:42 / {point} rw shared:2 - {kind} server:/x rw\n"


@pytest.mark.parametrize(
    ("kind", "network"),
    [
        *[(kind, True) for kind in ("nfs4", "nfs", "cifs", "smb3", "lustre", "gpfs", "ceph")],
        *[(kind, True) for kind in ("fuse.sshfs", "fuse.glusterfs", "fuse", "beegfs")],
        *[(kind, False) for kind in ("ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay")],
        *[(kind, False) for kind in ("fuse.fuse-overlayfs", "fuseblk", "")],
    ],
)
def test_kinds_of_file_systems(kind: str, network: bool) -> None:
    assert ledgerplace.is_network(kind) is network


def test_the_deepest_and_last_mount_counts(tmp_path: Path) -> None:
    there = tmp_path / "home" / "a b"
    deep = mounted(str(there).replace(" ", "\\040"), "xfs")
    lines = ROOT + mounted(tmp_path / "home", "nfs4") + deep
    assert ledgerplace.file_system(there / "not/there", lines) == "xfs"
    assert ledgerplace.file_system(tmp_path / "home/other", lines) == "nfs4"
    assert ledgerplace.file_system(tmp_path / "homely", lines) == "ext4"
    hidden = lines + mounted(tmp_path / "home", "ext3")
    assert ledgerplace.file_system(tmp_path / "home/other", hidden) == "ext3"
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "home")
    assert ledgerplace.file_system(link, lines) == "nfs4", "a link leads elsewhere"
    assert ledgerplace.file_system(tmp_path, "nonsense\n\n1 2 3 - x\n") == ""
    assert ledgerplace.file_system(Path("/"), ledgerplace.mounts()), "as Linux writes it"


def test_a_local_home_keeps_it(tmp_path: Path) -> None:
    place = ledgerplace.choose(tmp_path, HOST, ROOT, [])
    assert place == (tmp_path / f"gpushare/ledger-{HOST}.sqlite", None)


def test_a_network_home_has_it_on_a_local_disk(tmp_path: Path) -> None:
    home, var, tmp = (tmp_path / name for name in ("home", "var", "tmp"))
    var.mkdir()
    tmp.mkdir()
    lines = ROOT + mounted(home, "nfs4")
    path, told = ledgerplace.choose(home, HOST, lines, [var, tmp])
    assert path == var / f"jupyter-gpushare-{os.getuid()}" / f"ledger-{HOST}.sqlite"
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert "network file system (nfs4)" in told
    assert str(path) in told
    with pytest.raises(ledgerplace.NoLocalDisk, match="no local disk"):
        ledgerplace.choose(home, HOST, lines + mounted(var, "cifs"), [var])


def test_somebody_who_makes_our_folders_first_keeps_nobody_out(tmp_path: Path) -> None:
    """Two mkdirs for each uid, and nobody with a home on NFS had a node manager."""
    home, var, tmp = (tmp_path / name for name in ("home", "var", "tmp"))
    lines = ROOT + mounted(home, "nfs4")
    fixed = [one / f"jupyter-gpushare-{os.getuid()}" for one in (var, tmp)]
    for folder in fixed:
        folder.mkdir(parents=True)
        folder.chmod(0o777)
    path, told = ledgerplace.choose(home, HOST, lines, [var, tmp])
    assert str(path) in told
    assert (path.parent.parent, path.name) == (var, f"ledger-{HOST}.sqlite")
    assert path.parent.name.startswith(f"{fixed[0].name}-")
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert ledgerplace.look(home, HOST, lines, [var, tmp]) == path
    path.touch()
    fixed[0].rmdir()  # where ours was from the beginning, it stays
    assert ledgerplace.choose(home, HOST, lines, [var, tmp])[0] == path
    other = ledgerplace.choose(home, "another0", lines, [var, tmp])[0]
    assert other.parent == fixed[0], "what is remembered is one host's"
    # What was remembered is not believed when it is open to others, or is somewhere else.
    path.parent.chmod(0o755)
    fixed[0].chmod(0o777)
    second = ledgerplace.choose(home, HOST, lines, [var])[0]
    assert second.parent not in (path.parent, fixed[0])
    (home / "gpushare" / f"ledger-{HOST}.place").write_text(f'"{tmp_path}/elsewhere"')
    third = ledgerplace.choose(home, HOST, lines, [var])[0]
    assert third.parent not in (path.parent, fixed[0], second.parent)
    # Without a memory each start would begin with an empty ledger.
    (home / "gpushare" / f"ledger-{HOST}.place").unlink()
    (home / "gpushare" / f"ledger-{HOST}.place").mkdir()
    before = sorted(var.iterdir())
    with pytest.raises(ledgerplace.NoLocalDisk, match=r"open to other users.*GpuShareExtension"):
        ledgerplace.choose(home, HOST, lines, [var])
    assert sorted(var.iterdir()) == before


@needs_root
def test_where_a_ledger_is_is_told_beside_a_folder_that_nobody_may_look_into() -> None:
    """The doctor ended in a traceback."""
    with open_directory() as place:
        home, var = place / "home", place / "var"
        taken = var / f"jupyter-gpushare-{STRANGER}"
        taken.mkdir(parents=True)
        taken.chmod(0o700)
        var.chmod(0o1777)
        nfs = ROOT + mounted(home, "nfs4")
        asked = (
            "import os\nfrom pathlib import Path\n"
            "from jupyter_gpushare.cli.checks import ledger_place\n"
            "from jupyter_gpushare.ledger.place import look\n"
            f"os.setgroups([])\nos.setgid({STRANGER})\nos.setuid({STRANGER})\n"
            f"for lines in {[ROOT, nfs]!r}:\n"
            f"    path = look(Path({str(home)!r}), {HOST!r}, lines, [Path({str(var)!r})])\n"
            "    print(path, ledger_place(path).level.value)\n"
            f"print(ledger_place(Path({str(taken / 'x')!r})).level.value)\n"
        )
        done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True)
        assert done.stdout.splitlines() == [
            f"{home}/gpushare/ledger-{HOST}.sqlite problem",
            f"{var}/ledger-{HOST}.sqlite ok",
            "problem",
        ], done.stderr


# -- what a host of another name left ------------------------------------------------------------


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """The ledger of a container that is gone, closed, with its key."""
    path = tmp_path / "data" / "gpushare" / "ledger-00000000.sqlite"
    ledger = Ledger.open(path, history=1e6, wall=1.0)
    ledger.remember("found", "again")
    ledger.close()
    path.with_suffix(".key").write_bytes(b"k" * 32)
    return path


def test_a_container_with_a_new_name_finds_its_ledger(old: Path) -> None:
    """Without a machine id a host is known by its name: DockerSpawner gives another each time."""
    folder = old.parent
    names = [old, *(folder / f"ledger-{n:08x}.sqlite" for n in range(1, 4))]
    Ledger.open(names[1], history=1e6, wall=1.0).close()  # an older one
    os.utime(names[1], (1.0, 1.0))
    in_use = Ledger.open(names[2], history=1e6, wall=1.0)
    try:
        told = ledgerplace.adopt(names[3])
    finally:
        in_use.close()
    assert told == f"The ledger {names[0]} is this host's now: {names[3]}."
    assert [name.exists() for name in names] == [False, True, True, True]
    assert names[3].with_suffix(".key").read_bytes() == b"k" * 32, "leases' secrets hold"
    ledger = Ledger.open(names[3], history=1e6, wall=2.0)
    assert ledger.recollect("found") == "again"
    ledger.close()
    assert ledgerplace.adopt(names[3]) is None
    # One that is somebody else's is not touched.
    link = folder / "elsewhere" / "ledger-11111111.sqlite"
    link.parent.mkdir()
    link.symlink_to(names[3])
    if os.getuid() == 0:
        os.chown(link, STRANGER, STRANGER, follow_symlinks=False)
        assert ledgerplace.adopt(link.with_name("ledger-22222222.sqlite")) is None


def test_a_jobs_ledger_is_no_hosts_and_does_not_stay(old: Path) -> None:
    hosts, jobs = old.with_name(f"ledger-{HOST}.sqlite"), []
    for name, last in (("job00000001", 1.0), ("job00000002", 1.0), ("job00000003", 3.0)):
        ledger = Ledger.open(old.with_name(f"ledger-{name}.sqlite"), history=1e6, wall=1.0)
        jobs.append(ledger.path)
        if name != "job00000002":
            ledger.close()
        else:
            running = ledger
        for suffix in (".sqlite", ".sqlite-wal"):
            if (part := ledger.path.with_suffix(suffix)).exists():
                os.utime(part, (last, last))
    try:
        old.rename(old.with_name("elsewhere"))
        assert ledgerplace.adopt(hosts) is None, "it is not this host's"
        told = ledgerplace.remove_jobs(old.parent, before=2.0)
        assert told == "Ledgers of jobs that ended, removed: 1."
        assert [job.exists() for job in jobs] == [False, True, True]
        assert not list(old.parent.glob("ledger-job00000001*"))
        assert ledgerplace.remove_jobs(old.parent, before=2.0) is None
    finally:
        running.close()


def test_it_takes_what_a_killed_node_manager_had_not_folded_in(tmp_path: Path) -> None:
    write = (
        "import os, sys\nfrom jupyter_gpushare.ledger.ledger import Ledger\n"
        "ledger = Ledger.open(sys.argv[1], history=1e6, wall=1.0)\n"
        "ledger.remember('found', 'again')\nos._exit(9)\n"
    )
    old = tmp_path / "ledger-00000000.sqlite"
    subprocess.run([sys.executable, "-c", write, old], check=False)
    assert old.with_suffix(".sqlite-wal").stat().st_size > 0
    new = tmp_path / f"ledger-{HOST}.sqlite"
    assert ledgerplace.adopt(new) is not None
    ledger = Ledger.open(new, history=1e6, wall=2.0)
    assert ledger.recollect("found") == "again"
    ledger.close()


# -- files that others could write or read ---------------------------------------------------------


def test_what_others_could_write_or_know_is_refused_at_the_start(tmp_path: Path) -> None:
    place = tmp_path / "ledger"
    place.mkdir()
    place.chmod(0o777)
    node = RunningNode(tmp_path, ledger=place / "ledger.sqlite")
    said = node.refuses()
    assert "others could replace the ledger" in said
    assert "chmod go-w" in said
    place.chmod(0o1777)  # as /tmp is: nobody replaces another's file there
    with node:
        assert node.status()["node"]
    (place / "ledger.key").chmod(0o644)
    assert "others could know it" in node.refuses()


@needs_root
def test_another_users_directory_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 54118, 54118)
    with pytest.raises(UnsafeFile, match="belongs to user 54118"):
        check_directory(tmp_path)


def test_a_key_that_others_may_read_is_refused_and_made_anew(tmp_path: Path) -> None:
    before = key_beside(tmp_path / "ledger.sqlite")
    key = tmp_path / "ledger.key"
    assert key.stat().st_mode & 0o777 == 0o600
    assert key_beside(tmp_path / "ledger.sqlite") == key.read_bytes() == before
    key.chmod(0o644)
    with pytest.raises(UnsafeFile, match="others could know it"):
        key_beside(tmp_path / "ledger.sqlite")
    key.unlink()
    assert key_beside(tmp_path / "ledger.sqlite") != before
