"""A real pool's authority changes while hosts work, and none is left out that was away."""

from __future__ import annotations

from pathlib import Path

from support.node import until
from support.runningpool import PoolHost, RunningPool

from jupyter_gpushare.protocol.messages import Method


def test_hosts_take_the_next_authority_also_one_that_was_away(tmp_path: Path) -> None:
    with (
        RunningPool(tmp_path / "lab", {"default": {"gpus": 1}}) as pool,
        PoolHost(tmp_path / "b", pool, "b", "1x24GiB") as b,
        PoolHost(tmp_path / "c", pool, "c", "1x24GiB") as c,
    ):
        pool.sees("b", "c")
        files = {host.name: host.directory / "pool" for host in (b, c)}
        before = {name: (folder / "host.pem").read_bytes() for name, folder in files.items()}
        with b.client("alice") as alice:
            lease = alice.request(gpus=1)
            c.kill9()
            assert pool.verb("rotate") == {}
            until(lambda: _trusts(files["b"]) == 2, "b knows both authorities")
            until(lambda: (files["b"] / "host.pem").read_bytes() != before["b"], "b is certified")
            assert _trusts(files["c"]) == 1
            # The link came back with the new certificate, and the lease saw nothing of it.
            pool.sees("b")
            c.start()
            pool.sees("c")
            pool.kill9()
            pool.start()
            until(lambda: _trusts(files["c"]) == 2, "c knows both authorities")
            pool.sees("b", "c")
            held = {row["id"]: row["phase"] for row in b_status(b)["leases"]}
            assert held[lease["lease"]] == "held"
        kinds = [one["kind"] for one in pool.verb("history")["events"]]
        assert "AuthorityRotated" in kinds
        again = pool.verb("rotate", check=False)
        assert "The last rotation is not over" in str(again)


def b_status(node: PoolHost) -> dict[str, list[dict[str, str]]]:
    with node.client("alice") as client:
        document: dict[str, list[dict[str, str]]] = client.call(Method.STATUS)
    return document


def _trusts(folder: Path) -> int:
    return (folder / "ca.pem").read_text().count("BEGIN CERTIFICATE")
