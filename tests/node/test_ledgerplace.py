"""Which ledger a host's node manager has where a home directory is shared by hosts."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.node import open_directory

from jupyter_gpushare.node import ledgerplace
from jupyter_gpushare.node.ledger import Ledger, LedgerInUse

HOST = "0a1b2c3d"
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
    assert told is not None
    assert "network file system (nfs4)" in told
    assert str(path) in told
    # Somebody else made that one first, to read along or to keep us out.
    path.parent.chmod(0o777)
    assert ledgerplace.choose(home, HOST, lines, [var, tmp])[0].is_relative_to(tmp)
    with pytest.raises(ledgerplace.NoLocalDisk, match=r"open to other users.*GpuShareExtension"):
        ledgerplace.choose(home, HOST, lines, [var])
    with pytest.raises(ledgerplace.NoLocalDisk, match="no local disk"):
        ledgerplace.choose(home, HOST, lines + mounted(var, "cifs"), [var])


# -- what an earlier release left --------------------------------------------------------------


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A ledger as an earlier release named it, closed, with its key."""
    path = tmp_path / "data" / "gpushare" / "ledger.sqlite"
    ledger = Ledger.open(path, history=1e6, wall=1.0)
    ledger.remember("found", "again")
    ledger.close()
    path.with_suffix(".key").write_bytes(b"k" * 32)
    return path


NOWHERE = Path("/nowhere/node.sock")


def test_an_earlier_releases_ledger_is_found_again(old: Path) -> None:
    new = old.with_name(f"ledger-{HOST}.sqlite")
    told = ledgerplace.adopt(old, new, NOWHERE)
    assert told is not None
    assert str(new) in told
    assert not old.exists()
    assert new.with_suffix(".key").read_bytes() == b"k" * 32, "leases' secrets hold"
    ledger = Ledger.open(new, history=1e6, wall=2.0)
    assert ledger.recollect("found") == "again"
    ledger.close()
    assert ledgerplace.adopt(old, new, NOWHERE) is None


def test_it_takes_what_a_killed_node_manager_had_not_folded_in(tmp_path: Path) -> None:
    write = (
        "import os, sys\nfrom jupyter_gpushare.node.ledger import Ledger\n"
        "ledger = Ledger.open(sys.argv[1], history=1e6, wall=1.0)\n"
        "ledger.remember('found', 'again')\nos._exit(9)\n"
    )
    old = tmp_path / "ledger.sqlite"
    subprocess.run([sys.executable, "-c", write, old], check=False)
    assert old.with_suffix(".sqlite-wal").stat().st_size > 0
    new = tmp_path / "local" / f"ledger-{HOST}.sqlite"
    assert ledgerplace.adopt(old, new, NOWHERE) is not None
    ledger = Ledger.open(new, history=1e6, wall=2.0)
    assert ledger.recollect("found") == "again"
    ledger.close()


@pytest.mark.skipif(
    not os.path.isdir("/dev/shm") or os.stat("/dev/shm").st_dev == os.stat("/tmp").st_dev,
    reason="there is no second file system",
)
def test_it_goes_to_another_disk(old: Path) -> None:
    local = Path("/dev/shm") / f"gpushare-test-{os.getpid()}"
    new = local / f"ledger-{HOST}.sqlite"
    try:
        assert ledgerplace.adopt(old, new, NOWHERE) is not None
        assert not old.exists()
        assert sorted(path.name for path in local.iterdir()) == [
            f"ledger-{HOST}.key",
            f"ledger-{HOST}.sqlite",
        ]
        assert new.stat().st_mode & 0o777 == 0o600
        ledger = Ledger.open(new, history=1e6, wall=2.0)
        assert ledger.recollect("found") == "again"
        ledger.close()
    finally:
        shutil.rmtree(local)


def test_one_in_use_on_another_host_is_left_alone(old: Path) -> None:
    in_use = Ledger.open(old, history=1e6, wall=1.0)
    try:
        assert ledgerplace.adopt(old, old.with_name(f"ledger-{HOST}.sqlite"), NOWHERE) is None
    finally:
        in_use.close()
    assert old.exists()


def test_one_in_use_here_has_the_gpus(old: Path, listening: Path) -> None:
    with pytest.raises(LedgerInUse, match="Restart the Jupyter server that hosts it"):
        ledgerplace.adopt(old, old.with_name(f"ledger-{HOST}.sqlite"), listening)
    assert old.exists()


@pytest.fixture
def listening() -> Iterator[Path]:
    with open_directory() as folder, socket.socket(socket.AF_UNIX) as there:
        there.bind(str(folder / "gpushare-node.sock"))
        there.listen()
        yield folder / "gpushare-node.sock"
