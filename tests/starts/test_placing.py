"""The pool chooses the host for any spawner, and what an administrator wrote stays.

With the spawners' real classes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from email.message import Message
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock
from urllib.error import HTTPError

import pytest
from jupyterhub.objects import Hub, Server
from jupyterhub.spawner import Spawner
from support.poolwhere import Ranking
from traitlets.config import Config

from jupyter_gpushare.hub import setup
from jupyter_gpushare.starts import wishes
from jupyter_gpushare.starts.placing import (
    NoHost,
    Placed,
    choose_host,
    on_kubernetes,
    on_slurm,
    options_form,
    options_from_form,
    place_servers,
)
from jupyter_gpushare.starts.reach import Started
from jupyter_gpushare.starts.spawner import PoolSpawner
from jupyter_gpushare.starts.wishes import PoolAway, PoolRefused, Wish, where_over_http

LABEL = "kubernetes.io/hostname"


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[tuple[Ranking, str]]:
    ranking = Ranking("b", "a")
    with ranking.served(tmp_path / "pool.sock"):
        yield ranking, str(tmp_path / "pool.sock")


def _made(kind: type[Spawner], **given: Any) -> Any:
    """A spawner of alice's, as the Hub makes one."""
    user = SimpleNamespace(
        name="alice", escaped_name="alice", id=1, url="/user/alice", server=Server(), settings={}
    )
    orm = SimpleNamespace(name="", server=None, state=None, oauth_client_id="jupyterhub-user-alice")
    spawner = kind(user=user, hub=Hub(), orm_spawner=orm, **given)
    spawner.user_options = {}
    return spawner


def test_a_wish_is_read_as_people_write_it() -> None:
    given = {"gpus": "2", "gpu_memory": "24GiB", "gpu_kind": "Any", "profile": "large"}
    assert Wish.read(given) == Wish(2, 24 * 2**30, None)
    assert Wish.read({}) == Wish(1, None, None)
    assert Wish.read({"gpus": "", "gpu_memory": " ", "gpu_kind": "H100"}) == Wish(1, None, "H100")
    assert str(Wish(2, 24 * 2**30)) == "2 GPUs, 24 GiB, any kind"
    for wrong in ({"gpus": "-1"}, {"gpus": "٣"}, {"gpus": 5000}, {"gpu_memory": "much"}):
        with pytest.raises(ValueError, match="write"):
            Wish.read(wrong)


def test_the_form_gives_what_is_read() -> None:
    form = options_form(('A "quoted" kind',))
    assert "A &quot;quoted&quot; kind" in form
    for name in ("gpus", "gpu_memory", "gpu_kind"):
        assert f'name="{name}"' in form
    given = {"gpus": ["2"], "gpu_memory": [""], "gpu_kind": ["H100"], "memory": ["1T"]}
    assert options_from_form(given) == {"gpus": "2", "gpu_memory": "", "gpu_kind": "H100"}
    with pytest.raises(ValueError, match="no memory size"):
        options_from_form({"gpu_memory": ["much"]})


async def test_the_hook_says_which_hosts(pool: tuple[Ranking, str]) -> None:
    ranking, socket = pool
    spawner = _made(Spawner)
    spawner.user_options = {"gpus": 2, "gpu_kind": "H100"}
    ranking.rank({"host": "c", "possible": False}, "b", {"host": "a", "fits_now": False})
    assert [choice.host for choice in await choose_host(spawner, socket)] == ["b", "a"]
    assert ranking.asked == [{"environment": "alice", "gpus": 2, "kind": "H100"}]
    ranking.rank({"host": "c", "possible": False, "reasons": ["It has no H100."]})
    with pytest.raises(NoHost, match=r"\(2 GPUs, H100\).*c: It has no H100\. Choose") as failed:
        await choose_host(spawner, socket)
    assert failed.value.jupyterhub_message == str(failed.value)
    with pytest.raises(PoolAway, match="did not answer"):
        await choose_host(spawner, socket + "-gone")


@pytest.mark.parametrize(
    ("code", "body", "told"),
    [
        (404, '{"message": "It has no H100."}', PoolRefused),
        (404, "<html>", PoolAway),
        (502, '{"message": "Bad gateway."}', PoolAway),
    ],
)
async def test_only_a_sentence_of_the_pools_is_its_answer(
    monkeypatch: pytest.MonkeyPatch, code: int, body: str, told: type[Exception]
) -> None:
    """Who hears none starts where it would have without a pool."""

    def answers(_request: object) -> bytes:
        raise HTTPError("", code, "", Message(), BytesIO(body.encode()))

    monkeypatch.setattr(wishes, "_read", answers)
    with pytest.raises(told):
        await where_over_http("http://hub", "token", Wish())


async def test_a_hook_that_was_there_is_kept(pool: tuple[Ranking, str]) -> None:
    _ranking, socket = pool
    told: list[str] = []

    async def before(spawner: Any) -> None:
        told.append(f"before {spawner.user.name}")

    hook = Placed(lambda _spawner, host: told.append(host), socket=socket, before=before)
    await hook(_made(Spawner))
    assert told == ["before alice", "b"]
    # Its own scheduler chooses, and nothing of an earlier choice is left.
    await Placed(lambda _spawner, host: told.append(host), socket=socket + "-gone")(_made(Spawner))
    assert told[2:] == [""]


def part_of(host: str) -> dict[str, str]:
    """A second job on a host has a part of it, and a name of its own in the pool."""
    return {"host": f"{host}.2", "place": host}


@pytest.fixture
def kube(monkeypatch: pytest.MonkeyPatch) -> type[Spawner]:
    """KubeSpawner itself; only a cluster is not looked for."""
    module = pytest.importorskip("kubespawner.spawner")
    monkeypatch.setattr(module, "load_config", lambda **_given: None)
    found: type[Spawner] = module.KubeSpawner
    return found


async def _nodes(spawner: Any) -> list[list[tuple[str, list[str]]]]:
    """What the pod's manifest requires of a node, as it is sent."""
    made = await spawner.get_pod_manifest()
    manifest = spawner.api.api_client.sanitize_for_serialization(made)
    node = manifest["spec"].get("affinity", {}).get("nodeAffinity", {})
    required = node.get("requiredDuringSchedulingIgnoredDuringExecution", {})
    return [
        [(part["key"], part["values"]) for part in term["matchExpressions"]]
        for term in required.get("nodeSelectorTerms", ())
    ]


@pytest.mark.parametrize("zones", [(), ("east", "west")])
async def test_kubespawners_pod_goes_to_the_host_and_what_was_required_stays_required(
    pool: tuple[Ranking, str], kube: type[Spawner], zones: tuple[str, ...]
) -> None:
    ranking, socket = pool
    spawner = _made(kube, _mock=True)
    before = [[("zone", [zone])] for zone in zones]
    spawner.node_affinity_required = [
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}
        for zone in zones
    ]
    hook = Placed(on_kubernetes, socket=socket)
    # The next start of the same server has another answer.
    for host in ("b", "a"):
        ranking.rank(part_of(host))
        await hook(spawner)
        assert await _nodes(spawner) == [[*term, (LABEL, [host])] for term in before or [[]]]
    await Placed(on_kubernetes, socket=socket + "-gone")(spawner)
    assert await _nodes(spawner) == before


async def test_batchspawners_job_goes_to_the_host(pool: tuple[Ranking, str]) -> None:
    batchspawner = pytest.importorskip("batchspawner")
    ranking, socket = pool

    class Slurm(batchspawner.SlurmSpawner):  # type: ignore[misc, name-defined]
        """Hands the script to nobody."""

        command = script = ""

        async def run_command(self, cmd: str, input: str | None = None, env: Any = None) -> str:
            self.command, self.script = cmd, input or ""
            return "209"

        def get_env(self) -> dict[str, str]:
            return {}

    spawner = _made(Slurm, batch_submit_cmd="sbatch --parsable", req_homedir="/home/alice")
    spawner.cmd = ["jupyterhub-singleuser"]
    # What a form of jupyterhub_moss says takes the place of all options in the script.
    spawner.user_options = {"gpus": 1, "gpu_memory": "24GiB", "options": "--exclusive"}
    hook = Placed(on_slurm, socket=socket)
    for host in ("b", "a"):
        ranking.rank(part_of(host))
        await hook(spawner)
        await spawner.submit_batch_script()
        assert spawner.command.endswith(f" sbatch --parsable --nodelist={host}")
        assert "#SBATCH --exclusive\n" in spawner.script
        assert spawner.pool_host == f"{host}.2"
        assert "--mem" not in spawner.script
    await Placed(on_slurm, socket=socket + "-gone")(spawner)
    assert (spawner.batch_submit_cmd, spawner.pool_host) == ("sbatch --parsable", "")


def _plain(c: Config, section: str, name: str) -> Any:
    return c[section][name] if section in c and name in c[section] else None


def test_setup_lets_the_pool_choose_for_the_spawner_in_use(tmp_path: Path) -> None:
    def other(spawner: Any) -> None:
        raise AssertionError

    for spawner, place in (
        ("kubespawner.KubeSpawner", on_kubernetes),
        ("batchspawner.SlurmSpawner", on_slurm),
    ):
        c = Config()
        c.JupyterHub.spawner_class = spawner
        c.JupyterHub.base_url = "/people/"
        c.Spawner.pre_spawn_hook = other
        for _twice in range(2):
            setup(
                c,
                node="external",
                token_file=str(tmp_path / "token"),
                pool=str(tmp_path),
                url="http://10.0.0.1:10999",
            )
        hook = c.Spawner.pre_spawn_hook
        assert isinstance(hook, Placed)
        assert (hook._place, hook._before) == (place, other)
        assert hook._socket == f"{tmp_path}/pool.sock"
        assert 'name="gpu_memory"' in c.Spawner.options_form
        told = c.Spawner.environment["JUPYTER_GPUSHARE_POOL_URL"]
        assert told == "http://10.0.0.1:10999/people/services/gpushare/"


def test_setup_keeps_an_administrators_form_and_spawner(tmp_path: Path) -> None:
    c = Config()
    c.JupyterHub.spawner_class = PoolSpawner
    c.Spawner.options_form = "mine"
    place_servers(c, "/run/pool.sock")
    assert c.PoolSpawner.pool_socket == "/run/pool.sock"
    assert c.Spawner.options_form == "mine"
    assert _plain(c, "Spawner", "pre_spawn_hook") is None
    c = Config()
    c.JupyterHub.spawner_class = "kubespawner.KubeSpawner"
    c.KubeSpawner.profile_list = [{"display_name": "large"}]
    place_servers(c, "/run/pool.sock")
    assert _plain(c, "Spawner", "options_form") is None
    c = Config()
    assert "use PoolSpawner" in place_servers(c, "/run/pool.sock")
    assert _plain(c, "Spawner", "pre_spawn_hook") is None


def test_a_spawner_with_a_form_of_its_own_keeps_it() -> None:
    c = Config()
    c.JupyterHub.spawner_class = pytest.importorskip("jupyterhub_moss").MOSlurmSpawner
    place_servers(c, "/run/pool.sock")
    assert _plain(c, "Spawner", "options_form") is None
    assert c.Spawner.pre_spawn_hook._place is on_slurm


NOBODYS = ("-oproxycommand=touch {} #", "x;touch {};", "$(touch {})", "-x", "a b", "x\ny", "")


@pytest.mark.parametrize("name", NOBODYS)
@pytest.mark.parametrize("where", [["ssh", "{username}@b", "--"], ["sh", "-c", "echo {username}"]])
def test_a_name_that_is_an_option_or_a_command_runs_nothing(
    tmp_path: Path, name: str, where: list[str]
) -> None:
    """The real ssh and shell: before names were checked, some of these made the file."""
    made = tmp_path / "made"
    person = SimpleNamespace(name=name.format(made))
    hosts = {"b": where}
    spawner = PoolSpawner(user=person, hosts=hosts, pool_socket=str(tmp_path / "away"))
    with pytest.raises(NoHost, match="may have only letters, digits"):
        asyncio.run(spawner.start())
    assert not made.exists()
    # Of a server that an earlier release started nothing is known, and nothing is run either.
    spawner.host, spawner.started = "b", Started(1, 1, "boot")
    assert asyncio.run(spawner.poll()) is None
    assert not made.exists()


@pytest.mark.parametrize("name", ["alice", "_x", "ünal", "a.b-c+d@example.org", "12345"])
def test_a_plain_name_stands_for_the_person(name: str) -> None:
    spawner = PoolSpawner(user=SimpleNamespace(name=name), hosts={"b": ["ssh", "{username}@b"]})
    assert spawner.prefix("b") == ["ssh", f"{name}@b"]


async def test_a_part_of_a_host_is_reached_by_the_hosts_own_name(
    pool: tuple[Ranking, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by a Hub that was started again, and while the pool is away."""
    ranking, socket = pool
    ranking.rank(part_of("b"))
    spawner = _made(PoolSpawner, pool_socket=socket)
    spawner.hosts = {"*": ["run", "{host}", "{place}"]}
    reached, told = list[Any](), {"port": 8888, "pid": 1, "started": 1.0, "boot": "x"}
    there = SimpleNamespace(call=AsyncMock(return_value=told), close=AsyncMock())

    async def opened(host: str, prefix: list[str], python: str) -> Any:
        reached.append((host, *prefix))
        return there

    monkeypatch.setattr("jupyter_gpushare.starts.spawner.Reached.open", opened)
    monkeypatch.setattr(spawner, "get_env", dict)
    assert await spawner.start() == ("b", 8888)
    again = _made(PoolSpawner, pool_socket=socket + "-gone")
    again.hosts = spawner.hosts
    again.load_state(spawner.get_state())
    monkeypatch.setattr(again, "get_env", dict)
    assert await again.start() == ("b", 8888)
    assert reached == [("b.2", "run", "b.2", "b")] * 2
