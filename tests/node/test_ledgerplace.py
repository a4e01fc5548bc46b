"""Each host's node manager has a ledger of its own, beside files that nobody else could change."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.node import RunningNode, needs_root, open_directory

from jupyter_gpushare.ledger import place as ledgerplace
from jupyter_gpushare.ledger.beside import UnsafeFile, check_directory, key_beside
from jupyter_gpushare.ledger.ledger import Ledger

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
