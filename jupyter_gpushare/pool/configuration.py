"""The pool's section of a configuration file, for the pool alone and for the one in the Hub."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any, Final

from jupyter_core.paths import jupyter_data_dir
from traitlets import Dict, Float, Integer, TraitError, Unicode, default, validate
from traitlets.config import Configurable

from ..protocol import names
from ..protocol.poolcalls import POOL_SOCKET
from ..protocol.secured import JOIN_PORT
from .words.config import PoolConfig

# Not in the node manager's: its user could replace the folder, and be the pool.
SYSTEM_FOLDER: Final = "/var/lib/jupyter-gpushare-pool"
_RULES: Final = PoolConfig()


class Pool(Configurable):
    """Several hosts as one: where the pool keeps what it knows, and what people may hold."""

    folder = Unicode(
        help=f"""The folder of the pool's ledger, keys and certificates, for its OS user only. Not
        set: {SYSTEM_FOLDER} for root, gpushare-pool in Jupyter's data directory for others."""
    ).tag(config=True)
    title = Unicode("gpushare", help="The pool's name, as hosts know it.").tag(config=True)
    socket = Unicode(
        help=f"""The socket for administrators: root and the pool's own OS user. Not set:
        {POOL_SOCKET} for root, pool.sock in the folder for others."""
    ).tag(config=True)
    listen = Unicode(
        f"0.0.0.0:{JOIN_PORT}", help="Where hosts join, over TLS; empty: none can join."
    ).tag(config=True)
    address = Unicode(
        help="""The address by which hosts reach the place where they join: tokens contain it. Not
        set: with JupyterHub the host of the pages' url, else this host's name."""
    ).tag(config=True)
    authority_file = Unicode(
        help="""A file with the certificate authority that a new pool begins with, and its key; the
        chart for Kubernetes makes one. A pool that is there keeps its own. Not set: a new pool
        makes one."""
    ).tag(config=True)
    join_token_file = Unicode(
        help="""A file with a token by which any number of new hosts may join, as long as the pool
        runs with this setting: for nodes that Kubernetes adds by itself. It is as secret as the
        pool's folder. Not set: each token works once."""
    ).tag(config=True)
    join_token_engine = Unicode(
        help="""What gives the hosts that join by this token; `pool hosts` and the pages show it
        with the host's name. The chart for Kubernetes says "Kubernetes node". Not set: nothing is
        shown."""
    ).tag(config=True)
    metrics_port = Integer(
        0, min=0, max=65535, help="Port of the pool's Prometheus metrics; 0: none."
    ).tag(config=True)
    metrics_address = Unicode("127.0.0.1", help="Address of the pool's Prometheus metrics.").tag(
        config=True
    )
    validity = Float(
        _RULES.validity,
        min=1.0,
        help="""Seconds for which a host may go on with what it was lent while the pool is away.
        After that, nothing new starts there; what runs or is parked stays.""",
    ).tag(config=True)
    drift = Float(
        _RULES.drift, min=0.0, max=0.2, help="The part by which hosts' clocks may differ."
    ).tag(config=True)
    answer_timeout = Float(
        2.0, min=0.05, help="Seconds in which a host must answer; then it counts as lost."
    ).tag(config=True)
    silence = Float(
        5.0, min=0.05, help="Seconds after which a host that reports nothing is asked."
    ).tag(config=True)
    quotas = Dict(
        help="""What people may hold on all hosts together: {"default": …, "groups": {…}, "users":
        {…}}, each quota like {"gpus": 1, "memory": "16GiB"}. "gpus" may be "all". Not set: all
        GPUs, whole."""
    ).tag(config=True)

    @default("folder")
    def _default_folder(self) -> str:
        return (
            SYSTEM_FOLDER if os.geteuid() == 0 else str(Path(jupyter_data_dir(), "gpushare-pool"))
        )

    @default("socket")
    def _default_socket(self) -> str:
        is_system = os.geteuid() == 0 and self.folder == SYSTEM_FOLDER
        return POOL_SOCKET if is_system else str(Path(self.folder, "pool.sock"))

    @default("address")
    def _default_address(self) -> str:
        return socket.getfqdn()

    @default("quotas")
    def _default_quotas(self) -> dict[str, Any]:
        try:
            return dict(json.loads(os.environ.get(names.QUOTAS) or "{}"))
        except (TypeError, ValueError) as error:
            raise TraitError(f"{names.QUOTAS} holds no quotas: {error}.") from None

    @validate("quotas")
    def _check_quotas(self, proposal: dict[str, Any]) -> dict[str, Any]:
        if unknown := sorted(set(proposal["value"]) - {"default", "groups", "users"}):
            raise TraitError(f"Pool.quotas: unknown {unknown[0]!r}; say default, groups or users.")
        return dict(proposal["value"])

    @validate("listen")
    def _check_listen(self, proposal: dict[str, Any]) -> str:
        where = str(proposal["value"])
        host, _, port = where.rpartition(":")
        if where and not (host and port.isdecimal() and int(port) < 65536):
            raise TraitError(
                f"Pool.listen: {where!r} is no address with a port: 0.0.0.0:{JOIN_PORT}."
            )
        return where

    def rules(self) -> PoolConfig:
        """The settings that the pure rules read."""
        return PoolConfig(validity=self.validity, drift=self.drift)
