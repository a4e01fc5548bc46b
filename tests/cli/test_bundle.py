"""``jupyter gpushare doctor --bundle`` helps, and tells nothing that was planted as a secret."""

from __future__ import annotations

import json
import secrets
import string
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from golden.situations import golden
from hypothesis import given, settings as hypothesis_settings, strategies as st
from support.hub import free_ports
from support.livenode import LiveNode, in_process
from support.node import Puppet, RunningNode, until

from jupyter_gpushare.cli import bundle as made
from jupyter_gpushare.cli.redact import (
    Redactor,
    is_secret_name,
    mark,
    own_history,
    own_status,
    python_settings,
    settings,
)
from jupyter_gpushare.protocol.messages import Method

ALICE, BOB = "alices-own-token", "bobs-own-token"
BOBS_NOTEBOOK = "love letters/to my dear one.ipynb"
BOBS_TASK = "to my dear one"
BOBS_JOB = "surprise-for-carolina"
BOBS_KERNEL = "0f3b6a1e-1111-4222-8333-abcdefabcdef"
HUB_TOKEN = secrets.token_hex(16)
AWS = "wJalr/K7MDENG/bPxRfiCYzEXAMPLEKEY"
COOKIE = secrets.token_urlsafe(24)
PASSWORD = "hunter-two!"

CONFIG = f"""
import os
c.NodeManagerApp.metrics_port = 0
c.NodeManagerApp.measure_interval = 0.5
c.NodeManagerApp.admin_users = ["carolina"]
c.Quotas.users = {{"bobby-tables": {{"gpus": 1}}}}
c.Quotas.groups = {{"people-like-us": {{"gpus": 2}}}}
c.NodeManagerApp.admin_groups = ["fine-people"]
c.Quotas.default = {{"gpus": 2}}
c.Hub.api_url = "http://gpushare:{PASSWORD}@hub/api"
c.GpuShareHub.api_token = "{HUB_TOKEN}"
c.GpuShareHub.cookie_secret = os.environ.get("X", "{COOKIE}")
c.JupyterHub.db_url = "postgres://hub:{PASSWORD}@db/hub"
"""


@pytest.fixture(params=[False, True], ids=["user", "admin"])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[RunningNode, Path]]:
    """Alice asks, Bob has something to hide; the caller is Alice, who may be an administrator."""
    tokens = tmp_path / "tokens.json"
    tokens.touch(0o600)
    people = [{"token": ALICE, "environment": "alice", "admin": request.param}]
    people.append({"token": BOB, "environment": "bobby-tables", "admin": False})
    tokens.write_text(json.dumps({"tokens": people}))
    (port,) = free_ports(1)
    arguments = [f"--token-file={tokens}", f"--metrics-port={port}"]
    # These clients give no sign of life while the bundle is made.
    config = "c.Policy.heartbeat_timeout = 600.0\n"
    with RunningNode(tmp_path, config=config, arguments=arguments) as node, Puppet() as puppet:
        task = {"name": BOBS_TASK, "kind": "kernel", "path": BOBS_NOTEBOOK, "job": BOBS_JOB}
        with puppet.client(node.socket, BOB) as bob, node.client(ALICE) as alice:
            bobs = bob.call(Method.REQUEST, task={**task, "kernel_id": BOBS_KERNEL})
            alice.request(name="mine")
            until(lambda: "environment=alice" in node.story(), "the log has her grant")
            (tmp_path / "planted.log").write_text(
                f"Authorization: token {HUB_TOKEN}\nGET /?token={HUB_TOKEN[:7]}\n"
                f"ERROR saving {BOBS_NOTEBOOK}\n"
                f"cookie {COOKIE} set, {AWS}\nlease secret {bobs['secret']}\n" + node.story()
            )
            yield node, tmp_path


def unpack(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        return {
            str(Path(name).relative_to("gpushare")): archive.extractfile(name).read().decode()  # type: ignore[union-attr]
            for name in archive.getnames()
        }


def bundle(node: RunningNode, folder: Path) -> tuple[subprocess.CompletedProcess[str], Path]:
    """Made in this process; see `without_slow_checks`."""
    target = folder / "out.tar.gz"
    config = folder / "config"
    config.mkdir(exist_ok=True)
    (config / "jupyter_gpushare_node_config.py").write_text(CONFIG)
    environ = {
        **LiveNode(folder).environ,
        "JUPYTER_GPUSHARE_SOCKET": str(node.socket),
        "JUPYTER_GPUSHARE_TOKEN": ALICE,
        "JUPYTER_GPUSHARE_SECRET": secrets.token_hex(32),
        "JUPYTERHUB_API_TOKEN": HUB_TOKEN,
        "AWS_SECRET_ACCESS_KEY": AWS,
    }
    port = node.arguments[-1].partition("=")[2]
    command = ("doctor", f"--bundle={target}", f"--log={folder}/planted.log")
    metrics = f"--metrics=http://127.0.0.1:{port}/metrics"
    return in_process(*command, metrics, environ=environ), target


def test_it_helps_and_tells_nothing_that_was_planted(
    house: tuple[RunningNode, Path], without_slow_checks: None
) -> None:
    node, folder = house
    done, target = bundle(node, folder)
    assert done.returncode == 0, done.stderr
    assert target.stat().st_mode & 0o777 == 0o600
    parts = unpack(target)
    assert set(parts) == {
        *("README.txt", "versions.json", "doctor.txt", "environment.json", "settings.json"),
        *("status.json", "history.json", "log.txt", "metrics.txt"),
    }
    whole = "\n".join(parts.values())
    hidden = (ALICE, BOB, HUB_TOKEN, HUB_TOKEN[:7] + "\n", AWS, COOKIE, PASSWORD, "dear one")
    hidden = (*hidden, "love letters", BOBS_KERNEL, BOBS_JOB, "bobby-tables", "carolina", "db_url")
    for text in (*hidden, "people-like-us", "fine-people", "//gpushare"):
        assert text not in whole, text
    # What helps is there.
    status = json.loads(parts["status.json"])
    assert {gpu["health"] for gpu in status["gpus"]} == {"ok"}
    assert all(gpu["uuid"] in parts["log.txt"] for gpu in status["gpus"])
    assert len(status["leases"]) == 2
    assert status["environment"] == "alice"
    assert "node manager" in parts["doctor.txt"]
    assert json.loads(parts["versions.json"])["packages"]["traitlets"]
    told = next(iter(json.loads(parts["settings.json"]).values()))
    assert told["NodeManagerApp"]["measure_interval"] == 0.5
    assert told["Quotas"]["default"] == {"gpus": 2}
    assert told["Quotas"]["users"] == {mark("bobby-tables"): {"gpus": 1}}
    assert told["Quotas"]["groups"] == {mark("people-like-us"): {"gpus": 2}}
    assert "jupyter_gpushare_up 1.0" in parts["metrics.txt"]
    assert "lease.granted" in parts["log.txt"]
    assert "environment=alice" in parts["log.txt"]
    assert mark("bobby-tables") in parts["log.txt"]


def test_a_file_that_is_there_stays_as_it_is(tmp_path: Path, without_slow_checks: None) -> None:
    target = tmp_path / "out.tar.gz"
    target.write_text("precious")
    done = LiveNode(tmp_path).here("doctor", f"--bundle={target}")
    assert done.returncode == 1
    assert "is there already" in done.stderr
    assert target.read_text() == "precious"


def test_without_a_node_manager_it_says_so_and_has_the_rest(tmp_path: Path) -> None:
    """All of a real one: every check, in a process of its own."""
    target = tmp_path / "out.tar.gz"
    live = LiveNode(tmp_path)
    done = live.cli("doctor", f"--bundle={target}", "--log=/no/such/log", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["bundle"] == str(target)
    parts = unpack(target)
    assert "cannot be reached" in parts["status.json"]
    assert "cannot be read" in parts["log.txt"]
    assert "metrics_port" in parts["metrics.txt"]
    assert "jupyter_gpushare" in parts["versions.json"]


def test_where_there_is_a_journal_it_is_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        assert "--unit=jupyter-gpushare.service" in command
        return subprocess.CompletedProcess(command, 0, "it began\n", "")

    monkeypatch.setattr(made.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(made.subprocess, "run", run)
    assert list(made._logs(())) == ["== journalctl --unit=jupyter-gpushare.service", "it began\n"]


# -- the redactor by itself ----------------------------------------------------------------------

TOKENS = st.text(string.ascii_letters + string.digits + "_-", min_size=20, max_size=64).filter(
    lambda text: any(letter.isdigit() for letter in text)
)
PLACES = st.sampled_from(
    [
        "token={}",
        "?token={}&x=1",
        '"api_token": "{}"',
        "Authorization: Bearer {}",
        "https://hub:{}@db/x",
        "said {} once",
        "password = '{}'",
        "\n{}\n",
    ]
)


@hypothesis_settings(deadline=None)
@given(TOKENS, PLACES)
def test_what_looks_random_never_stays(token: str, place: str) -> None:
    assert token not in Redactor().text(f"before {place.format(token)} after")


@hypothesis_settings(deadline=None)
@given(st.text(min_size=6, max_size=40), st.text(max_size=30), st.text(max_size=30))
def test_what_is_known_never_stays(known: str, before: str, after: str) -> None:
    redactor = Redactor([known])
    told = redactor.text(f"{before}{known}{after}")
    assert told.count(known) <= (before + mark(known) + after).count(known)


SECRET = secrets.token_hex(16)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        # What helps stays.
        ("GPU-8a7f2a4b-9c1d-4e2f-8a3b-1c2d3e4f5a6b is lost", ()),
        ("2026-11-21T14:05:01.250Z INFO lease.granted call=3.2 environment=alice gpus=1", ()),
        ("jupyter_gpushare_queue_requests 1.0", ()),
        ("/usr/lib/python3.11/site-packages/jupyter_gpushare", ()),
        ("GpuShareExtension_NodeManagerApp reads JUPYTER_GPUSHARE_SOCKET", ()),
        # A token without a digit.
        ("cookie ZgPI_MFBANXrFW-kclgiahzGUuuMPhKz", ("ZgPI_MFBANXrFW-kclgiahzGUuuMPhKz",)),
        # Whose files they are, and whose address it is, are not told.
        ("cannot read /home/dave/papers/notes.txt: no such file; /home/eve", ("dave", "eve")),
        ("cannot read /Users/dave/papers/notes.txt: no such file; /Users/eve", ("dave", "eve")),
        ("GET https://bob@hub/x and https://hub/user/@x", ("bob",)),
        # The same secret has the same mark.
        (f"{SECRET} and {SECRET}", (SECRET,)),
    ],
    ids=range(10),
)
def test_what_helps_stays_and_the_rest_has_marks(text: str, names: tuple[str, ...]) -> None:
    expected = text
    for name in names:
        expected = expected.replace(name, mark(name))
    assert Redactor().text(text) == expected


@pytest.mark.parametrize("url", ["https://bob:pass@hub/x", "db://bob:@hub/x"])
def test_a_password_goes_with_its_name(url: str) -> None:
    told = Redactor().text(f"GET {url} and so on")
    assert told.startswith(f"GET {url.partition('bob')[0]}{mark('bob')}")
    assert told.endswith("@hub/x and so on")
    assert ":pass@" not in told


@pytest.mark.parametrize(
    "line",
    [
        'INFO lease.granted call=3.2 environment="dave smith" gpus=1',
        '{"event": "lease.granted", "environment": "dave smith", "gpus": 1}',
        "environment='dave smith'",
        r'INFO quota.set environment=x by="dave \" smith" gpus=1',
        'INFO task.gone environment="dave, smith"',
    ],
)
def test_a_name_in_quotes_is_taken_out_whole(line: str) -> None:
    told = Redactor().log(line, "x")
    assert "dave" not in told
    assert "smith" not in told
    assert ("gpus" in line) == ("gpus" in told), "and nothing else"


def test_ones_own_name_stays_and_people_and_groups_have_none() -> None:
    line = 'environment="dave smith" by=dave'
    assert Redactor().log(line, "dave smith") == f'environment="dave smith" by={mark("dave")}'
    told = Redactor().log('x{environment="bob",group="few"} 1\nquota.set group=few by=eve', "alice")
    assert not any(name in told for name in ("bob", "few", "eve"))


def test_a_configuration_is_read_and_never_run(tmp_path: Path) -> None:
    trap = tmp_path / "ran"
    source = f"open({str(trap)!r}, 'w')\nc.NodeManagerApp.token_file = open('/x').read()\n"
    source += "c.NodeManagerApp.hub = True\nc.Other.password = 'x'\n"
    told = settings(python_settings(source), Redactor())
    assert told == {"NodeManagerApp": {"token_file": "<an expression>", "hub": True}}
    assert not trap.exists()
    assert all(map(is_secret_name, ("api_token", "cookie_secret", "PASSWORD", "aws_key", "auth")))
    assert "cannot be read" in str(settings(python_settings("c.x = ("), Redactor()))


def test_an_administrators_history_has_others_without_names_and_texts() -> None:
    service = "The whole node is taken out of service by carolina: new GPUs"
    for who, kind, text, is_told in (
        ("bobby", "LeaseGranted", "got 1 GPU", False),
        ("alice", "LeaseQueued", "love.ipynb asked for 1 GPU", False),
        ("alice", "LeaseGranted", "got 1 GPU", True),
        (None, "GpuRemoved", "GPU-1 is gone", True),
        (None, "ServiceChanged", service, False),
        ("alice", "GroupsChanged", "groups: people-like-us", False),
        ("alice", "OfALaterRelease", "carolina did it", False),
    ):
        event = {"environment": who, "kind": kind, "text": text, "lease": "l", "detail": "d"}
        (row,) = own_history({"events": [event]}, "alice")["events"]
        assert row["text"] == (text if is_told else kind)
        assert row["environment"] == (mark("bobby") if who == "bobby" else who)
        assert (row["lease"], row["detail"]) == ("l" if who == "alice" else None, None)


def test_an_administrators_status_has_nobodys_notebooks() -> None:
    """Every field of a lease that tells who, or what they do, is blank; the test knows which."""
    status = golden("busy_and_idle", "root")
    first = status["leases"][0]
    first |= {"mine": True, "job": "surprise", "of_a_later_release": "love letters"}
    (mine,) = own_status({**status, "leases": [first]})["leases"]
    assert {mine[name] for name in ("name", "path", "job", "of_a_later_release")} == {None}
    assert mine["id"] == first["id"]
    (row,) = own_status({**status, "leases": [{**first, "mine": False}]})["leases"]
    harmless = {"mine", "state", "phase", "activity", "kind", "gpus", "asked", "priority_class"}
    harmless |= {"requested", "granted", "since", "age", "position", "reason", "rung"}
    harmless |= {"parked_memory", "overran", "reserve", "says"}
    facts = [one for one in row["says"] if one is not None]
    assert {type(one) for one in facts} == {dict}
    assert {one[part] for one in facts for part in ("text", "hint") if part in one} == {None}
    assert {name for name, value in row.items() if value is not None} <= harmless


def test_whatever_the_status_says_is_private_is_left_out_and_learned(node: LiveNode) -> None:
    status = node.json("status")
    out = {"reason": "new GPUs", "by": "carolina", "leases": 0}
    status["gpus"][0] |= {"out_of_service": out, "squatters": [{"pid": 7, "memory": 1}]}
    idle = {"mine": False, "environment": "bobby", "name": "love letters", "idle": 3.0}
    row = {"mine": True, "lease": "l", "message": "wait", "outlook": {"idle": idle}}
    status["queue"] = [row, {**row, "mine": False, "environment": "eve"}]
    status["predictions"] = [{"kernel_id": "k", "path": "love letters", "batch": 8}]
    learned: set[str] = set()
    told = own_status(status, learned.add)
    assert told["gpus"][0]["out_of_service"] == {**out, "by": None}
    assert told["gpus"][0]["squatters"] == [{"pid": None, "memory": 1}]
    assert told["queue"][0]["outlook"] == {"idle": {**idle, "environment": None, "name": None}}
    assert {told["queue"][1][name] for name in ("lease", "message", "outlook")} == {None}
    assert told["predictions"] == [{"kernel_id": None, "path": None, "batch": 8}]
    assert {"carolina", "bobby", "love letters", "eve"} <= learned
