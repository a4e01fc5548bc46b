"""The tutorials' own cells and configuration do what the pages say."""

from __future__ import annotations

import re
import textwrap
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.kernel import Kernel, Shown
from support.node import GIB, NodeClient, RunningNode, token_file, until
from traitlets.config import Config

from jupyter_gpushare.cli import hubchecks
from jupyter_gpushare.console.check import Level
from jupyter_gpushare.protocol.messages import Method

TUTORIALS = Path(__file__).resolve().parents[2] / "docs" / "tutorials"
CELL = re.compile(r"<!-- (first|second)(?:: (\w+))? -->\n```python\n(.*?)\n```", re.DOTALL)
#: What the page says that a cell shows follows the cell.
SAID = re.compile(r"\s*```text\n(.*?)\n```", re.DOTALL)


def same_times(text: str) -> str:
    return re.sub(r"\d+ s\b", "N s", text)


def seen(shown: Shown) -> str:
    """All that a person sees of a cell."""
    errors = "\n".join("\n".join(one["traceback"]) for one in shown.of("error"))
    return "\n".join((shown.plain(), shown.stream("stdout"), shown.stream("stderr"), errors))


def test_the_first_hour(tmp_path):
    """Every cell of the page, in the page's order, in two kernels of one person."""
    page = (TUTORIALS / "first-hour.md").read_text("utf-8")
    cells = list(CELL.finditer(page))
    assert len(cells) > 12
    with ExitStack() as stack:
        node = stack.enter_context(RunningNode(tmp_path))
        kernels: dict[str, Kernel] = {}
        waiting: tuple[Kernel, Shown, str] | None = None
        for cell in cells:
            who, what, code = cell.groups()
            if who not in kernels:
                (home := tmp_path / who).mkdir()
                kernels[who] = stack.enter_context(Kernel(home, node.socket))
            kernel = kernels[who]
            said = SAID.match(page, cell.end())
            promised = same_times(said[1]) if said else ""
            if what == "waits":
                shown = kernel.start(code)
                until(lambda s=shown, k=kernel: k.pump() or "number 1 in line" in seen(s), "a wait")
                waiting = (kernel, shown, code)
                words = re.sub(r" about 30 min;", "", promised)
                assert words in same_times(re.sub(r" about \d+ min;", "", seen(shown)))
                continue
            if waiting and who == "second":
                assert "Granted: GPU 0 and GPU 1 (16 GiB of 24 GiB each)." in seen(
                    waiting[0].finish(waiting[1])
                )
                waiting = None
            shown = kernel.run(code)
            if what is None:
                assert not shown.of("error"), (code, seen(shown))
            else:
                assert shown.error()["ename"] == what
            if code != "%gpushare release":  # what follows on the page is the other notebook's
                assert promised in same_times(seen(shown)), (code, seen(shown))


@pytest.fixture
def rehearsal(tmp_path, monkeypatch) -> Config:
    """The Hub's configuration on the page."""
    page = (TUTORIALS / "class-of-40.md").read_text("utf-8")
    found = re.search(r"<!-- rehearsal -->\n *```python\n(.*?)\n *```", page, re.DOTALL)
    assert found is not None
    monkeypatch.chdir(tmp_path)
    c = Config()
    exec(compile(textwrap.dedent(found[1]), "class-of-40.md", "exec"), {"c": c})
    return c


def test_the_rehearsals_configuration_lacks_nothing(rehearsal):
    checks = list(hubchecks.configuration(rehearsal))
    assert [check for check in checks if check.level is Level.PROBLEM] == []
    assert len(rehearsal.JupyterHub.load_groups["class"]["users"]) == 40


def test_sixteen_of_the_class_compute_at_once(rehearsal, tmp_path):
    """As the plan on the page says: 16 have a GPU, 24 wait."""
    group: dict[str, Any] = rehearsal.JupyterHub.load_groups["class"]
    people = group["users"]
    services = rehearsal.JupyterHub.services
    assert any("--preset=class" in service.get("command", ()) for service in services)
    config = f"c.Quotas.default = {group['properties']['gpushare']!r}\n"
    tokens = token_file(tmp_path, *people, "ada", admin="ada")
    with ExitStack() as stack:
        node = stack.enter_context(
            RunningNode(
                tmp_path,
                simulate="4x24GiB",
                config=config,
                arguments=[tokens, "--preset=class"],
            )
        )
        clients = [stack.enter_context(NodeClient(node.socket, one)) for one in people]
        asked = [client.ask() for client in clients]
        ada = stack.enter_context(NodeClient(node.socket, "ada"))
        until(lambda: len(ada.call(Method.STATUS)["leases"]) == 40, "all requests")
        status = ada.call(Method.STATUS)
        answered = [client.answered(one) for client, one in zip(clients, asked, strict=True)]
        assert sum(answered) == 16
        assert len(status["queue"]) == 24
        assert [gpu["reserved"] for gpu in status["gpus"]] == [24 * GIB] * 4
