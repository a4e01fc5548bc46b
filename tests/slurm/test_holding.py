"""Jobs of a real Slurm hold GPUs for a pool: what can be kept is, and no token leaks."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.holding import GPUSHARE, OWNER, PERSON, Holding
from support.slurm import Slurm, missing

from jupyter_gpushare.pool import joining

PAGE = Path(__file__).parents[2] / "docs/how-to/slurm-pool.md"
#: The page's commands, and its folder of sockets.
BLOCKS = re.findall(r"^ *```bash\n(.*?)^ *```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
FOLDER = "/srv/course/gpushare"
pytestmark = pytest.mark.story("jupyter_gpushare/engines/", "tests/slurm/", "tests/support/")

GET = "from jupyter_gpushare.client import request; request(); x = 41; print('has', x)"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    if why := missing():
        pytest.skip(f"No Slurm can run here: {why}.")
    with Slurm(settings={"KillWait": "30"}) as running:
        yield running


@pytest.fixture
def holding(cluster: Slurm) -> Iterator[Holding]:
    with Holding(cluster) as running:
        yield running
        assert "Traceback" not in running.said()


def test_a_cancelled_jobs_successor_takes_its_people_over_with_their_variables(
    cluster: Slurm, holding: Holding
) -> None:
    holding.keep("--max=2")
    job = holding.comes("n1")
    row = holding.hosts()["n1"]
    assert row["held"]["text"].startswith(f"Slurm job {job} until ")
    notebook = holding.notebook("n1")
    assert "has 41" in notebook.run(GET)
    cluster.ask("root", "scancel", job)
    later = holding.comes("n1", but=f"job {job}")
    told = notebook.run("request(); print('has', x + 1)")
    assert "has 42" in told
    assert "its Slurm job was cancelled" in told, "why is said once code runs"
    assert cluster.state(job) == "CANCELLED"
    assert "still has memory" not in holding.log(job)
    assert later in holding.jobs()


@pytest.mark.long  # twice Slurm's KillWait
def test_who_computes_as_a_job_is_cancelled_and_the_pool_is_away_keeps_what_can_be_kept(
    cluster: Slurm, holding: Holding
) -> None:
    """One's cell ends in time, and another one's does not."""
    holding.keep("--max=2")
    job = holding.comes("n1")
    people = {seconds: holding.notebook("n1") for seconds in (3, 30)}
    for seconds, person in people.items():
        assert "has 41" in person.run(GET)
        # It stands for a computation, which takes this long.
        computes = f"import time; time.sleep({seconds}); print('now', x)"
        person.send(f"x += 1; open('began-{seconds}', 'w').close(); {computes}")
        began = cluster.home(PERSON) / f"began-{seconds}"
        cluster.until(began.exists, "the cell has begun")
    holding.away()
    cluster.ask("root", "scancel", job)
    cluster.ends(job, "CANCELLED")
    log = holding.log(job)
    assert log.count("lease.parked") == 1
    assert log.count("reason=revoked") == 1
    holding.serve()
    holding.comes("n1", but=f"job {job}")
    for person in people.values():
        shown = person.shows()
        assert "now 42" in shown
        told = person.run("request(); print('has', x)")
        assert "has 42" in told
        assert "its Slurm job was cancelled" in shown + told


#: Computes until it is stopped for the first time; then it goes on where it was, and ends.
TRAINING = """
import os, time
import jupyter_gpushare as gpushare

begun = step = int(open("step").read()) if os.path.exists("step") else 0

@gpushare.on_preempt
def save():
    with open("step", "w") as file:
        file.write(str(step))

print("from", step, flush=True)
while not begun or step < begun + 10:
    time.sleep(0.02)  # a step of the training
    step += 1
    gpushare.checkpoint()
print("done", flush=True)
"""


def test_a_program_that_can_stop_saves_before_the_job_ends_and_goes_on_in_the_next(
    cluster: Slurm, holding: Holding
) -> None:
    holding.keep("--max=2")
    job = holding.comes("n1")
    (cluster.home(PERSON) / "train.py").write_text(TRAINING)
    lines = [
        f"export JUPYTER_GPUSHARE_SOCKET={holding.sockets}/n1.sock",
        "exec jupyter gpushare run --requeue -- python train.py",
    ]
    person = cluster.submit(PERSON, "\n".join(lines), "--nodelist=n1")
    cluster.says(person, "from 0")
    cluster.ask("root", "scancel", job)
    cluster.ends(person)
    told = cluster.out(person)
    step = (cluster.home(PERSON) / "step").read_text()
    assert f"from {step}\n" in told
    assert told.strip().endswith("done")
    assert cluster.job(person)["Restarts"] == "0"
    assert "still has memory" not in holding.log(job)


def test_the_commands_of_the_page_do_what_it_says(cluster: Slurm, holding: Holding) -> None:
    """With as many GPUs as these hosts have, its folder of sockets, and a small program."""
    keep, server = (text.replace(FOLDER, str(holding.sockets)) for text in BLOCKS)
    words = shlex.split(keep.replace("--gpus 4", "--gpus 2"))
    assert words[:4] == ["jupyter", "gpushare", "pool", "slurm"]
    holding.keep_by(*words[4:], "--sbatch=--comment=class")
    job = holding.comes("n1")
    told = cluster.job(job)
    seen = [told[word] for word in ("Partition", "TimeLimit", "Comment", "NumNodes")]
    assert seen == ["gpu", "08:00:00", "class", "1"]
    program = "jupyter gpushare run -- printenv CUDA_VISIBLE_DEVICES"
    script = server.replace("jupyter lab --no-browser", program)
    assert program in script
    person = cluster.submit(PERSON, script, "--nodelist=n1")
    cluster.ends(person)
    assert re.search("^GPU-", cluster.out(person), re.MULTILINE)


#: In a notebook: hands in a job, as people do there.
SUBMIT = (
    "import subprocess; print('job', subprocess.run(['sbatch', '--parsable', *{options!r}], "
    "input={script!r}, capture_output=True, text=True, check=True).stdout)"
)
#: A program that needs a GPU: its lease, and where that is from.
ASKS = """#!/bin/bash
{node}
python -c "
import os
from jupyter_gpushare.client import request
from jupyter_gpushare.client.memory.stopping import is_under_run
request()
print('lease', os.environ['JUPYTER_GPUSHARE_LEASE'], is_under_run(os.environ))
"
jupyter gpushare status --json
"""
NODE = "exec 3< <(jupyter gpushare node --simulate=4x24GiB 2>/dev/null); read -u 3 ready socket"


def test_a_job_that_is_submitted_in_a_notebook_takes_nothing_of_its_lease_along(
    cluster: Slurm, holding: Holding
) -> None:
    """One with GPUs of its own does not talk to the notebook's node manager either."""
    holding.keep("--max=1", "--sbatch=--nodelist=n1")
    holding.comes("n1")
    notebook = holding.notebook("n1")
    assert "has 41" in notebook.run(GET)
    notebook.run("import os; os.environ['JUPYTER_GPUSHARE_RUN'] = str(os.getpid())")
    lease = notebook.run("print(os.environ['JUPYTER_GPUSHARE_LEASE'])")
    told = {}
    for options, node in ((["--nodelist=n2", "--gpus=1"], NODE), (["--nodelist=n1"], "")):
        options += [f"--output={cluster.home(PERSON)}/%j.out", "--error=/dev/null"]
        script = ASKS.format(node=node)
        job = notebook.run(SUBMIT.format(options=options, script=script)).split()[-1]
        cluster.ends(job)
        own, status = cluster.out(job).split("\n", 1)
        assert own.startswith("lease ")
        assert lease not in own
        assert own.endswith(" False"), "it is not below a run on another host"
        told[options[0]] = json.loads(status)
    assert len(told["--nodelist=n2"]["gpus"]) == 1
    assert len(told["--nodelist=n1"]["gpus"]) == 2, "those of the holder, on whose host it is"


# -- the token -------------------------------------------------------------------------------------

#: Leaves a letter as ``pool slurm`` does.
LEAVE = """
import sys
from pathlib import Path
from jupyter_gpushare.engines.letters import put
put(Path(sys.argv[1]), sys.argv[2], {"name": "n1", "token": sys.argv[3]})
"""

#: Makes a token for a job's host as ``pool slurm`` does.
INVITE = """
import sys
from jupyter_gpushare.console.node import Node
from jupyter_gpushare.protocol.poolcalls import PoolMethod
with Node("pool.sock", None, "pool") as pool:
    held = {"engine": "Slurm", "piece": sys.argv[1]}
    print(pool.call(PoolMethod.TOKEN, host="n1", **held)["token"])
"""


def submitted(holding: Holding, *options: str) -> str:
    """A holder job that the test itself lets in; it waits for its letter."""
    folder = f"--folder={holding.letters}"
    node = ("--", "--simulate=2x24GiB")
    line = " ".join([*GPUSHARE, "pool", "slurm-job", folder, "--grace=40", *options, *node])
    job = holding.slurm.submit(OWNER, f"exec {line}", "--gpus=2", "--nodelist=n1")
    holding.slurm.says(job, "waits to be let in")
    return job


def leave(holding: Holding, job: str, token: str) -> None:
    words = ("-c", LEAVE, str(holding.letters), f"job {job}", token)
    holding.slurm.ask(OWNER, GPUSHARE[0], *words)


def readable(cluster: Slurm, job: str) -> str:
    """All that Slurm tells of a job, and what the processes of its user say of themselves."""
    told = [
        cluster.ask("root", "scontrol", "show", "job", "-dd", job),
        cluster.ask("root", "scontrol", "write", "batch_script", job, "-"),
        cluster.ask("root", "squeue", "--format=%all", f"--jobs={job}"),
        cluster.out(job),
    ]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if process.stat().st_uid == cluster.people[OWNER]:
                files = [process / "cmdline", process / "environ"]
                told += [file.read_bytes().decode(errors="replace") for file in files]
        except OSError:
            continue  # it has ended
    return "\n".join(told)


def test_a_jobs_token_is_in_nothing_that_others_can_read_and_its_file_goes_at_once(
    cluster: Slurm, holding: Holding
) -> None:
    job = submitted(holding)
    token = holding.verb("token", "n1")["token"]
    leave(holding, job, token)
    cluster.says(job, "joined the pool")
    cluster.until(lambda: "n1" in holding.hosts(), "the pool reaches it")
    secret = joining.Token.read(token).secret
    told = readable(cluster, job)
    assert "slurm-job" in told, "it is the job that was looked at"
    assert token not in told
    assert secret not in told
    files = [file for file in holding.home.rglob("*") if file.is_file() and not file.is_symlink()]
    assert not [one for one in files if secret.encode() in one.read_bytes()]
    assert not list(holding.letters.glob("*.letter*"))
    look = f"ls {holding.letters}; cat {holding.letters}/*; echo over"
    assert cluster.ask(PERSON, "sh", "-c", look, host="n1").split() == ["over"]


def test_where_a_token_was_stolen_the_job_says_so_and_ends_and_the_thief_is_forgotten(
    cluster: Slurm, holding: Holding
) -> None:
    job = submitted(holding)
    token = cluster.ask(OWNER, GPUSHARE[0], "-c", INVITE, f"job {job}").strip()
    assert holding.thief("n2").run(f"token {token} n1") == "got n1"
    leave(holding, job, token)
    cluster.ends(job, "FAILED")
    assert "somebody else has" in cluster.out(job)
    assert "did not join: The pool does not take this token" in holding.said()
    holding.keep("--min=0")
    cluster.until(lambda: not holding.verb("hosts")["hosts"], "the thief's host is forgotten")


def test_a_job_that_begins_while_the_pool_is_away_joins_when_it_is_back(
    cluster: Slurm, holding: Holding
) -> None:
    job = submitted(holding)
    token = holding.verb("token", "n1")["token"]
    holding.away()
    leave(holding, job, token)
    cluster.says(job, "The pool cannot be reached")
    holding.serve()
    cluster.says(job, "joined the pool")
    cluster.until(lambda: "n1" in holding.hosts(), "the pool reaches it")


@pytest.mark.parametrize("whose", ["others", "open"])
def test_sockets_never_go_where_somebody_else_could_put_one(
    cluster: Slurm, holding: Holding, whose: str
) -> None:
    folder = cluster.folder / f"sockets-{whose}"
    folder.mkdir(exist_ok=True)
    os.chown(folder, cluster.people[PERSON if whose == "others" else OWNER], -1)
    folder.chmod(0o777 if whose == "open" else 0o755)
    job = submitted(holding, f"--sockets={folder}")
    leave(holding, job, holding.verb("token", "n1")["token"])
    cluster.ends(job, "FAILED")
    assert "folder of yours" in cluster.out(job)
    assert not list(folder.iterdir())


def test_a_second_job_on_a_host_is_a_host_of_its_own_at_the_same_place(holding: Holding) -> None:
    holding.keep("--min=2", "--max=2", "--sbatch=--nodelist=n1", gpus=1)
    for name in ("n1", "n1.2"):
        holding.comes(name)
    ranked = holding.verb("where", PERSON)["hosts"]
    assert {one["host"]: one["place"] for one in ranked} == {"n1": "n1", "n1.2": "n1"}


def test_somebody_elses_job_of_that_name_is_no_holder(cluster: Slurm, holding: Holding) -> None:
    other = cluster.submit(PERSON, "sleep 600", "--job-name=gpushare", "--nodelist=n1")
    cluster.has(other, "RUNNING")
    holding.keep("--max=2", gpus=1)
    cluster.until(holding.hosts, "a holder has joined")
    (row,) = holding.hosts().values()
    assert row["held"]["piece"] != f"job {other}"
    cluster.ask("root", "scancel", other)
