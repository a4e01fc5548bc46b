"""Starts a kernel on the host of the pool that has a free GPU, and reaches it over OpenSSH.

One ``ssh`` for each kernel. It runs :mod:`.there`, whose child the kernel is, and forwards the
kernel's five sockets: Unix sockets in folders of mode 0700 at both ends, so that no kernel ever
listens on a network. The kernel's end is the connection's end, and the other way round. A link that
is cut for some minutes ends neither, because TCP goes on where it stopped.

The sockets at this end keep their names when the kernel restarts, also on another host: whoever is
connected stays so.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import signal
import socket
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.provisioning.provisioner_base import KernelProvisionerBase
from traitlets import Dict, List, Unicode

from ..protocol import names
from ..protocol.address import SYSTEM_SOCKET
from ..protocol.privateplace import private_file
from .reach import HostAway, NotStarted, Reached, Started
from .wishes import Choice, PoolAway, PoolRefused, Wish, where_over_http

#: The name of its entry point.
PROVISIONER: Final = "gpushare-pool"
_CHANNELS: Final = ("shell", "iopub", "stdin", "control", "hb")
#: Of this host and this process, and so of no use to a kernel elsewhere.
_OWN: Final = (
    names.NOTEBOOK_SOCKET,
    names.KERNEL_HOST,
    "JPY_PARENT_PID",
    "XDG_RUNTIME_DIR",
    "HOSTNAME",
)
#: What ssh may call a host, with or without a person before it.
_DESTINATION: Final = re.compile(r"(\w[\w.@+-]*@)?[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
#: A quarter of an hour without a sign of life, and the host counts as gone.
_OPTIONS: Final = {
    "ServerAliveInterval": "60",
    "ServerAliveCountMax": "15",
    # Without one of its channels a kernel would run, and nobody could reach it.
    "ExitOnForwardFailure": "yes",
    # The sockets keep their names over a restart, and the `ssh` before may have left its own.
    "StreamLocalBindUnlink": "yes",
    "StreamLocalBindMask": "0177",
    # Each attempt before the kernel listens would be told.
    "LogLevel": "ERROR",
}
_POLL: Final = 0.1  # seconds; as LocalProvisioner
#: Seconds in which a killed kernel's connection ends; then the connection is given up.
_KILLED_WITHIN: Final = 5.0


class PoolProvisioner(KernelProvisionerBase):
    """A kernel on another host; the kernelspec's ``config`` or ``c.PoolProvisioner`` set it."""

    gpus = Unicode("1", config=True, help="GPUs that the kernel is expected to ask for.")
    gpu_memory = Unicode("", config=True, help="Memory on each, like 24GiB. Empty: the quota's.")
    gpu_kind = Unicode("", config=True, help="The GPUs' name. Empty: any.")
    host = Unicode("", config=True, help="The host to start on. Empty: the pool says.")
    hosts = List(
        Unicode(),
        config=True,
        help="Hosts to try, in this order, where the pool cannot be asked. The first that can be "
        "reached is taken.",
    )
    pool_url = Unicode(
        config=True,
        help="Where the pool is asked: the pages' address, like "
        "http://hub:10204/services/gpushare/. Not set: $JUPYTER_GPUSHARE_POOL_URL.",
    )
    destinations = Dict(
        key_trait=Unicode(),
        value_trait=Unicode(),
        config=True,
        help="What ssh calls a host, by the pool's name for it. Default: the name itself.",
    )
    ssh = List(
        Unicode(),
        ["ssh", "-o", "BatchMode=yes"],
        config=True,
        help="The ssh command, with its options.",
    )
    python = Unicode(
        sys.executable,
        config=True,
        help="The Python on the hosts that has jupyter_gpushare. Default: the server's.",
    )
    node_socket = Unicode(
        SYSTEM_SOCKET, config=True, help="The node manager's socket on the hosts."
    )

    #: Where the kernel runs, and why there.
    choice: Choice | None = None
    #: For the next start only: a person chose this host.
    next_host: str = ""
    _reached: Reached | None = None
    _process: Started | None = None
    _local: str = ""

    # -- what the kernel manager asks -----------------------------------------------------------

    @property
    def has_process(self) -> bool:
        """Whether it was started, and nobody has seen its end."""
        return self._reached is not None

    async def poll(self) -> int | None:
        """``None`` while it runs."""
        return 0 if self._reached is None else self._reached.gone

    async def wait(self) -> int | None:
        """Wait for its end; the exit status."""
        while (code := await self.poll()) is None:
            await asyncio.sleep(_POLL)
        self._reached = None
        return code

    async def send_signal(self, signum: int) -> None:
        """Send a signal to the kernel and its children."""
        if self._reached is not None and self._process is not None:
            told = {"number": int(signum), "group": True, **asdict(self._process)}
            self._reached.tell("signal", **told)

    async def kill(self, restart: bool = False) -> None:
        """End it at once. Where the host cannot be reached, what is left ends when it can be."""
        await self.send_signal(signal.SIGKILL)
        reached = self._reached
        if reached is None:
            return
        try:
            async with asyncio.timeout(_KILLED_WITHIN):
                while reached.gone is None:
                    await asyncio.sleep(_POLL)
        except TimeoutError:
            await reached.close(kill=True)

    async def terminate(self, restart: bool = False) -> None:
        """Ask it to end."""
        await self.send_signal(signal.SIGTERM)

    async def cleanup(self, restart: bool = False) -> None:
        """Hang up, and after the last start take the sockets away."""
        if self._reached is not None:
            await self._reached.close()
            self._reached = None
        if not restart and self._local:
            for number in range(1, 1 + len(_CHANNELS)):
                Path(f"{self._local}-{number}").unlink(missing_ok=True)

    # -- starting -------------------------------------------------------------------------------

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """Name the sockets at this end, which no restart changes."""
        manager: Any = self.parent
        if not self._local:
            # A name that nobody guesses, and short: a socket's path has 107 bytes.
            self._local = private_file(os.environ, f"k{secrets.token_hex(6)}")
            manager.transport = "ipc"
            manager.ip = self._local
            for number, channel in enumerate(_CHANNELS, 1):
                setattr(manager, f"{channel}_port", number)
        # ssh encrypts already.
        kwargs.pop("transport_encryption", None)
        manager.write_connection_file(
            jupyter_session=kwargs.get("env", {}).get("JPY_SESSION_NAME", "")
        )
        self.connection_info = manager.get_connection_info()
        cmd = manager.format_kernel_cmd(extra_arguments=kwargs.pop("extra_arguments", []))
        return dict(await super().pre_launch(cmd=cmd, **kwargs))

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        """Start it on the first host that can be reached; the connection to it."""
        away = []
        for choice in await self._ranked(kwargs["env"]):
            try:
                await self._start_on(choice, cmd, kwargs)
            except HostAway as error:
                self.log.warning("jupyter_gpushare: %s", error)
                away.append(str(error))
                continue
            self.choice = choice
            self.log.info("jupyter_gpushare: kernel %s on host %s", self.kernel_id, choice)
            return self.connection_info
        raise RuntimeError(f"No host can be reached, so no kernel was started: {'; '.join(away)}.")

    async def _ranked(self, environ: dict[str, str]) -> tuple[Choice, ...]:
        chosen, self.next_host = self.next_host or self.host, ""
        if self.choice is None:
            chosen = environ.get(names.KERNEL_HOST) or chosen
        if chosen:
            return (Choice(chosen, reasons=("You chose it.",)),)
        wish = Wish.read(
            {"gpus": self.gpus, "gpu_memory": self.gpu_memory, "gpu_kind": self.gpu_kind}
        )
        url = self.pool_url or environ.get(names.POOL_URL, "")
        try:
            ranked = await where_over_http(url, environ.get(names.HUB_TOKEN, ""), wish)
        except PoolAway as why:
            self.log.warning("jupyter_gpushare: %s", why)
            # Better here than nowhere: this host's node manager lets it wait.
            known = list(self.hosts) or [socket.gethostname()]
            return tuple(Choice(host, reasons=("The pool was not asked.",)) for host in known)
        except PoolRefused as refused:
            raise RuntimeError(f"No kernel starts: {refused}") from refused
        possible = tuple(choice for choice in ranked if choice.possible)
        if not possible:
            why_not = " ".join(map(str, ranked[:5]))
            raise RuntimeError(f"No host of the pool has {wish}, so no kernel starts. {why_not}")
        # A restart stays where it was, if it fits there: the person's files and caches are warm.
        stays = self.choice.host if self.choice is not None else ""
        return tuple(
            sorted(possible, key=lambda choice: not (choice.fits_now and choice.host == stays))
        )

    async def _start_on(self, choice: Choice, cmd: list[str], kwargs: dict[str, Any]) -> None:
        remote = f"/tmp/jupyter-gpushare-{secrets.token_hex(8)}"
        manager: Any = self.parent
        info: dict[str, Any] = {**self.connection_info, "key": manager.session.key.decode()}
        here = choice.at == socket.gethostname()
        # On this host there is no `ssh`: the kernel listens at the sockets themselves.
        if not here:
            info["ip"] = f"{remote}/s"
        reached = await Reached.open(
            choice.host, [] if here else self._over_ssh(choice, info["ip"]), self.python
        )
        try:
            told = await reached.call(
                "start",
                command=[word.replace(manager.connection_file, f"{remote}/c") for word in cmd],
                environ=self._environ(kwargs["env"]),
                cwd=str(kwargs.get("cwd") or os.getcwd()),
                attached=True,
                folder=remote,
                files={"c": json.dumps(info)},
            )
        except BaseException as error:
            await reached.close(kill=True)
            # The host was reached and said no, so another one would say it, too.
            if isinstance(error, NotStarted):
                raise RuntimeError(f"The kernel was not started: {error}") from error
            raise
        self._reached, self._process = reached, Started.read(told)

    def _over_ssh(self, choice: Choice, remote: str) -> list[str]:
        destination = self.destinations.get(choice.host, choice.at)
        if not _DESTINATION.fullmatch(destination):
            raise HostAway(f"{destination!r} is no host's name")
        options = [word for name in _OPTIONS for word in ("-o", f"{name}={_OPTIONS[name]}")]
        forwards = [
            word
            for number in range(1, 1 + len(_CHANNELS))
            for word in ("-L", f"{self._local}-{number}:{remote}-{number}")
        ]
        return [*self.ssh, "-T", *options, *forwards, "--", destination]

    def _environ(self, env: dict[str, str]) -> dict[str, str]:
        told = {name: value for name, value in env.items() if name not in _OWN}
        return told | {
            names.SOCKET: self.node_socket,
            names.STARTED_FROM: socket.gethostname(),
        }

    # -- over a restart of the server nothing is kept: the kernel ends with its connection -------

    async def get_provisioner_info(self) -> dict[str, Any]:
        """The host, for whoever looks."""
        info: dict[str, Any] = await super().get_provisioner_info()
        return {**info, "host": self.choice.host if self.choice else ""}
