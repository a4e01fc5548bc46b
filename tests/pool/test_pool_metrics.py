"""What the pool tells Prometheus of its hosts is how they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from support.exporter import samples
from support.node import until
from support.runningpool import PoolHost, RunningPool, free_port

from jupyter_gpushare.protocol.errors import RemoteError
from jupyter_gpushare.protocol.poolcalls import PoolMethod

RULES = Path(__file__).parents[2] / "etc" / "prometheus" / "jupyter-gpushare.rules.yml"
POOL = "jupyter_gpushare_pool"


def test_the_pools_metrics_say_how_its_hosts_stand(tmp_path: Path) -> None:
    port = free_port()
    # A short time, so that what a lost host was lent is over within the test.
    options = (f"--metrics-port={port}", "--Pool.validity=3")
    with RunningPool(tmp_path / "pool", {"default": {"gpus": 1}}, *options) as pool:

        def hosts() -> dict[str, float]:
            return {word: samples(port)[f'{POOL}_hosts{{state="{word}"}}'] for word in STANDINGS}

        def gpus(kind: str) -> dict[str, float]:
            of = f'{POOL}_gpus{{{{kind="Simulated GPU ({kind})",state="{{}}"}}}}'
            return {word: samples(port)[of.format(word)] for word in GPUS}

        # The port makes five answers a second anew, so what is new is waited for.
        until(lambda: hosts() == dict.fromkeys(STANDINGS, 0.0), "there is no host")
        with (
            PoolHost(tmp_path / "a", pool, "a", "1x24GiB"),
            PoolHost(tmp_path / "b", pool, "b", "2x40GiB") as b,
        ):
            pool.sees("a", "b")
            until(lambda: hosts()["in_service"] == 2, "both serve")
            with b.client("alice") as alice:
                alice.request(gpus=1)
                now = {"free": 1.0, "used": 1.0, "out_of_service": 0.0, "unknown": 0.0}
                until(lambda: gpus("40 GiB") == now, "alice's GPU is used")
                assert gpus("24 GiB")["free"] == 1
                assert samples(port)[f'{POOL}_lent_gpus{{hosts="reached"}}'] == 1
                pool.verb("drain", "a", "--reason=new fans")
                until(lambda: hosts()["out_of_service"] == 1, "a is out of service")
                assert gpus("24 GiB")["out_of_service"] == 1
                pool.ask(PoolMethod.WHERE, environment="bob", gpus=1)
                with pytest.raises(RemoteError):
                    pool.ask(PoolMethod.DRAIN, host="nowhere", reason="x")
                refused = f'{POOL}_refusals_total{{reason="bad_request"}}'
                until(lambda: samples(port)[refused] == 1, "the refusal is counted")
                assert samples(port)[f"{POOL}_where_seconds_count"] == 1
                b.kill9()
                until(lambda: hosts()["lost"] + hosts()["given_up"] == 1, "b is lost")
                assert samples(port)[f'{POOL}_host_reached{{host="b"}}'] == 0
                assert gpus("40 GiB")["unknown"] == 2
                until(lambda: hosts()["given_up"] == 1, "what b was lent is over")
        names = {name.partition("{")[0] for name in samples(port)}
        rules = yaml.safe_load(RULES.read_text())["groups"]
        asked = " ".join(rule["expr"] for group in rules for rule in group["rules"])
        wanted = set(re.findall(rf"{POOL}_\w+", asked))
        assert wanted
        assert wanted <= names


STANDINGS = ("in_service", "out_of_service", "lost", "given_up")
GPUS = ("free", "used", "out_of_service", "unknown")
