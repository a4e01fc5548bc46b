"""A real JupyterHub starts people's servers on hosts that a real Slurm's jobs hold for its pool."""

from __future__ import annotations

import contextlib
import re
import sys
import textwrap
from pathlib import Path
from subprocess import CalledProcessError

import pytest
from support.hub import needs_hub
from support.jupyter import wait_for
from support.slurm import Slurm
from support.slurmhub import SlurmHub

pytestmark = [pytest.mark.long, pytest.mark.timeout(600), needs_hub]

PAGE = Path(__file__).parents[2] / "docs/how-to/hub-on-slurm.md"
#: The page's configurations: servers as jobs of their own, such jobs by jupyterhub_moss' form, and
#: servers as programs of the holder's.
OWN_JOBS, FORM, INSIDE = (
    textwrap.dedent(block)
    for block in re.findall(r"^ *```python\n(.*?)^ *```", PAGE.read_text("utf-8"), re.DOTALL | re.M)
)
GET = "from jupyter_gpushare.client import request; request(gpus={}); x = 41; print('has', x)"
WHERE = "import os; print(os.uname().nodename)"


def test_servers_are_jobs_of_their_own_where_the_pool_says_and_outlive_the_holder(
    slurm: Slurm,
) -> None:
    with SlurmHub(slurm, OWN_JOBS) as hub:
        hub.keep("--min=2", "--max=2")
        hub.comes("n2")
        hub.comes("n1")
        alice = hub.serves("alice").start_kernel()
        first = alice.run(WHERE).strip()
        assert "has 41" in alice.run(GET.format(2))
        own = alice.run("print(os.environ['SLURM_JOB_ID'])").strip()
        assert slurm.job(own)["UserId"].startswith("alice(")
        assert "gres" not in slurm.job(own).get("TresPerNode", "")
        # That host has no GPU left, so the pool ranks the other one first.
        bob = hub.serves("bob").start_kernel()
        assert {first, bob.run(WHERE).strip()} == {"n1", "n2"}
        holder = hub.comes(first)
        slurm.ask("root", "scancel", holder)
        hub.comes(first, but=holder)
        assert "has 42" in alice.run("request(gpus=2); print('has', x + 1)")
        assert slurm.state(own) == "RUNNING"


def test_a_server_that_the_form_of_jupyterhub_moss_asks_for_goes_where_the_pool_says(
    slurm: Slurm,
) -> None:
    pytest.importorskip("jupyterhub_moss")
    form = FORM.replace("/opt/jupyter/bin", str(Path(sys.executable).parent))
    with SlurmHub(slurm, OWN_JOBS + form) as hub:
        hub.keep("--min=2", "--max=2")
        hub.comes("n2")
        hub.comes("n1")
        where = set()
        for name in ("alice", "bob"):
            person = hub.person(name)
            with contextlib.closing(person.browser()) as browser:
                page = browser.get("/hub/spawn")
                assert "Notebooks that share GPUs" in page.text
                # An option of the person's own cannot lead to another host.
                answer = browser.post(
                    "/hub/spawn",
                    params={"_xsrf": browser.cookies.get("_xsrf", path="/hub/")},
                    data={
                        **{"partition": "gpu", "runtime": "0:30:00", "nprocs": "1", "ngpus": "0"},
                        **{"options": "--nodelist=n1", "environment_id": "default"},
                        "default_url": "/lab",
                    },
                    headers={"Referer": str(page.url)},
                )
            assert answer.status_code == 200, answer.text
            wait_for(person.is_ready, 90, f"{name}'s server; log:\n{hub.tail()}")
            kernel = person.start_kernel()
            assert "has 41" in kernel.run("import os; " + GET.format(2))
            job = kernel.run("print(os.environ['SLURM_JOB_ID'])").strip()
            assert slurm.job(job)["TimeLimit"] == "00:30:00"
            where.add(kernel.run(WHERE).strip())
        assert where == {"n1", "n2"}


def test_servers_of_two_holders_on_one_host_use_the_one_that_the_pool_chose(slurm: Slurm) -> None:
    with SlurmHub(slurm, OWN_JOBS) as hub:
        hub.keep("--min=2", "--max=2", "--sbatch=--nodelist=n1", gpus=1)
        for name in ("n1", "n1.2"):
            hub.comes(name)
        used = set()
        for who in ("alice", "bob"):
            kernel = hub.serves(who).start_kernel()
            assert kernel.run(WHERE).strip() == "n1"
            used.add(kernel.run("print(os.environ['JUPYTER_GPUSHARE_SOCKET'])").strip())
            assert "has 41" in kernel.run(GET.format(1))
        assert used == {f"{hub.sockets}/{name}.sock" for name in ("n1", "n1.2")}


def test_servers_inside_the_holder_can_open_its_gpus_only_and_end_with_it(walled: Slurm) -> None:
    opens = f"""
kept = open("{walled.folder}/dev/nvidia0")
try:
    open("{walled.folder}/dev/nvidia1")
except OSError as error:
    print(error.strerror, os.getuid(), open("/proc/self/cgroup").read(), *os.environ)
"""
    with SlurmHub(walled, INSIDE) as hub:
        hub.keep("--servers", "--max=1", gpus=1)
        holder = hub.comes("n1")
        alice = hub.serves("alice")
        kernel = alice.start_kernel()
        assert "has 41" in kernel.run("import os; " + GET.format(1))
        told = kernel.run(opens)
        assert told.startswith(f"Operation not permitted {walled.people['alice']} ")
        assert f"/job_{holder}/" in told
        assert "SLURM_JOB" not in told
        # Nothing of the Hub's environment comes along into the job.
        environ = hub.inside("n1", "alice", "env", secret="of-the-hubs-proxy")
        assert "of-the-hubs-proxy" not in environ
        assert "SLURM" not in environ
        # The Hub hears that the server has ended with its job, and starts it in the next one.
        walled.ask("root", "scancel", holder)
        hub.comes("n1", but=holder)
        wait_for(lambda: not alice.is_ready(), 60, "the Hub knows that it has ended")
        alice.start_server()
        assert "has 41" in alice.start_kernel().run("import os; " + GET.format(1))
        assert hub.inside("n1", "alice", "id", "-un") == "alice\n"
        with pytest.raises(CalledProcessError) as gone:
            hub.inside("n2", "alice", "id")
        assert gone.value.returncode == 69
