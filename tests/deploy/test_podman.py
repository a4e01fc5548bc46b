"""What docs/deploy/docker.md says works with real images and containers: those of podman.

Pretended are GPUs. All containers have the host's network, as one without bridges gives it; so each
server has a port of its own.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator

import pytest
from support.hub import RunningHub, free_ports, why_not
from support.jupyter import Kernel, wait_for
from support.podman import ROOT, Podman, missing, stale

WHY_NOT = why_not() or missing() or stale()
# Without podman, or with packages older than the sources, it would test nothing of today's.
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT),
]
PAGE = (ROOT / "docs/deploy/docker.md").read_text("utf-8")
((BUILD, RUN),) = re.findall(r"```bash\nmake dist\n(.*?)(docker run .*?)\n```", PAGE, re.DOTALL)
NODE = "gpushare"
PEOPLE = ("alice", "bob", "carol")
#: Seconds for what imports many modules for the first time, on a machine with other work.
LONG = 180.0
CLASS = """
from dockerspawner import DockerSpawner

class WithPort(DockerSpawner):
    ports = {ports!r}

    async def start(self):
        self.port = self.ports[self.user.name]
        return await super().start()

    async def get_ip_and_port(self):
        return "127.0.0.1", self.port

c.JupyterHub.load_groups = {{"class": {{"users": [*WithPort.ports],
    "properties": {{"gpushare": {{"gpus": 1, "memory": "8GiB"}}}}}}}}
c.JupyterHub.spawner_class = WithPort
c.DockerSpawner.image = "localhost/jupyter-gpushare-singleuser:0.1.0"
c.DockerSpawner.pull_policy = "never"
c.DockerSpawner.network_name = "host"
c.DockerSpawner.use_internal_ip = True
c.DockerSpawner.remove = True
c.Spawner.http_timeout = c.Spawner.start_timeout = {long}
"""


class PodmanHub(RunningHub):
    """A Hub with servers in containers, whose node manager is in one, too."""

    podman: Podman

    def start_node(self) -> None:
        """By the page's line, with folders and ports of the test's own."""
        (self.home / "state").mkdir()
        (self.home / "node").mkdir()
        folders = {"run": "node", "var/lib": "state", "etc": ""}
        line = RUN.replace("--runtime nvidia ", "")
        for place, ours in folders.items():
            assert f"-v /{place}/jupyter-gpushare:" in line
            line = line.replace(f"-v /{place}/jupyter-gpushare:", f"-v {self.home / ours}:")
        (url,) = (one for one in self.node_arguments if one.startswith("--Hub.api_url"))
        line, count = re.subn(r"--Hub\.api_url=\S+", url, line)
        assert count == 1, RUN
        # Its usual port may be somebody's here.
        (metrics,) = free_ports(1)
        self.podman.script(f"{line} --simulate=2x24GiB --metrics-port={metrics}")


@pytest.fixture(scope="module")
def podman() -> Iterator[Podman]:
    """With both images, built by the page's lines."""
    made = Podman(ROOT / "build" / "podman")
    made.make_base()
    made.script(BUILD)
    with made.service():
        yield made


@pytest.fixture(scope="module")
def hub(podman: Podman) -> Iterator[PodmanHub]:
    """With the node manager in its container."""
    more = CLASS.format(ports=dict(zip(PEOPLE, free_ports(3), strict=True)), long=LONG)
    PodmanHub.podman = podman
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", f"unix://{podman.socket}")
        with PodmanHub.make(external=True, more=more) as running:
            yield running


def request(kernel: Kernel) -> str:
    """The GPU that a notebook gets."""
    return kernel.run(
        "from jupyter_gpushare.client import request\nlease = request()\n"
        "print(lease.visible_devices)",
        LONG,
    ).strip()


#: What somebody in a container is and can do.
LOOK = """
import os
told = [open(f"/proc/{name}/environ", "rb").read() for name in os.listdir("/proc")
    if name.isdigit() and os.access(f"/proc/{name}/environ", os.R_OK)]
users = {one.split(b"JUPYTERHUB_USER=")[1].split(bytes(1))[0].decode() for one in told
    if b"JUPYTERHUB_USER=" in one}
try:
    open(os.environ["JUPYTER_GPUSHARE_SOCKET"] + ".mine", "w")
except OSError as error:
    print(os.getuid(), *users, os.strerror(error.errno))
"""


def test_three_containers_share_two_gpus_and_nobody_loses_more_than_what_was_killed(
    hub: PodmanHub, podman: Podman
) -> None:
    wait_for(lambda: podman.is_healthy(NODE), LONG, "the node manager's HEALTHCHECK to pass")
    people = [hub.person(name) for name in PEOPLE]
    gpus: dict[str, str] = {}
    for person in people:
        person.start_server()
        assert person.wait_connected(LONG)["environment"] == person.name
        kernel = person.start_kernel()
        gpus[person.name] = request(kernel)
        assert kernel.run(LOOK).split() == [*("1000", person.name, "Read-only", "file", "system")]
    assert len(set(gpus.values())) == 2, gpus
    bob, carol = people[1:]  # carol is an administrator, who sees all leases
    before = hub.leases(carol.token)
    assert len(before) == 3

    # podman starts the node manager again, and every lease is there.
    killed = podman.pid(NODE)
    os.kill(killed, signal.SIGKILL)
    wait_for(lambda: podman.pid(NODE) not in (0, killed), LONG, "the node manager to be restarted")
    wait_for(lambda: hub.knows(carol.token), LONG, "the node manager")
    for person in people:
        person.wait_connected(LONG)
    wait_for(lambda: hub.leases(carol.token) == before, what="everybody's lease to be there")

    # Of a container that is killed the GPU is free, and its person's next server gets it.
    podman("kill", f"jupyter-{bob.name}")
    wait_for(lambda: len(hub.leases(carol.token)) == 2, what="the lease of whom was killed to end")
    wait_for(lambda: not bob.is_ready(), LONG, "the Hub to notice")
    bob.start_server()
    assert request(bob.start_kernel()) == gpus[bob.name]

    begun = time.monotonic()
    podman("stop", "--time=60", NODE)
    assert time.monotonic() - begun < 30.0
    assert podman.inspect(NODE)["State"]["ExitCode"] == 0
