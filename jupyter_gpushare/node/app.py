"""``jupyter gpushare node``: the node manager as a program, and all its switches.

Here everything is made and given to what needs it, and nothing is decided. What matters is the
order. What must fail aloud comes first: the socket that systemd hands over, the ledger with its
lock, the GPUs. The manager recovers from the ledger, measures, and gets its quotas before it
listens, so the first client meets the state as it was and nothing is granted on a GPU that somebody
else fills. Only when clients can come is it *ready*: systemd, JupyterHub and tests wait for that
word. The end has the reverse order, and takes no lease from anybody: the next node manager goes on
from the ledger.

A driver or a user database can hang for ever, in a thread that nobody can stop. So SIGTERM ends the
wait for them at the start too, and at the end the process leaves such a thread behind.

The switches are traitlets, because that is how Jupyter's people configure programs. What belongs to
the policy is declared there (`policy.words.config`), and only shown here.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from jupyter_core.application import JupyterApp
from jupyter_core.paths import SYSTEM_CONFIG_PATH, jupyter_data_dir, jupyter_runtime_dir
from traitlets import Bool, Enum, Integer, List, TraitError, Unicode, observe
from traitlets.config import Config
from traitlets.config.loader import KVArgParseConfigLoader

from .._version import __version__
from ..daemon.clock import Clock
from ..daemon.membership import POOL_DIRECTORY, BadMembership, Membership
from ..daemon.troubles import Trouble
from ..ledger import place as ledgerplace
from ..ledger.beside import UnsafeFile, check_directory, hub_people, key_beside, key_file
from ..ledger.learned import Learned
from ..ledger.ledger import Ledger, LedgerError
from ..policy.words.commands import BelongTo, ConfigureQuotas, Heartbeat
from ..policy.words.config import PolicyConfig
from ..policy.words.model import (
    EnvironmentName,
    Gpu,
    LeaseId,
    LeasePhase,
    ProcessId,
)
from ..predict.records import MODELS_FILE, RECORDS_FILE
from ..protocol import documents as doc, names
from ..protocol.address import (
    JOB_PREFIX,
    SYSTEM_SOCKET,
    configured_socket,
    embedded_socket,
    host_id,
)
from ..protocol.hostmemory import look, room
from ..protocol.parent import when_parent_ends
from ..protocol.secured import HOST_PORT
from ..quotas.config import NodeSize
from ..quotas.hub import HubQuotas
from ..traits import Duration, Finite, mistyped, word
from .configuration import Connections, Hub, Policy, Quotas, Rhythm
from .debugging import recorder_to
from .host import systemd
from .host.processes import ProcessError, sees_others
from .host.walls import Walls
from .inventory import SYSTEM_PROGRAMS, open_inventory
from .inventory.base import Inventory, InventoryError
from .inventory.simulated import SimulatedInventory
from .inventory.visible import VisibleInventory, given_gpus
from .manager import NODE, Manager
from .people import hubmemory
from .people.hubidentity import HubIdentity, HubTrust
from .people.hubmemory import HubMemory
from .people.identity import Identity, PeerIdentity, TokenFileIdentity
from .people.osusers import SUBORDINATES, SubordinateIds
from .people.peers import identify_peer
from .quotas import QuotasInForce
from .settings.commandline import StrictLoader
from .settings.presets import PRESETS, config_of, told_of
from .settings.traits import read
from .views.logs import FORMATTERS, EventLog, LogLines, LogStyle
from .wire.service import Service
from .wire.tls import TlsPort
from .wire.transport import Limits, SocketInUse, Transport, turnstile_of

#: Wall seconds after its last use until the ledger of a batch system's job is removed.
_JOBS_KEPT: Final = 7 * 86400.0
#: Seconds for which one thread may compute while others wait.
_SWITCH: Final = 0.0005


_NOTHING_TO_RELOAD: Final = (
    "Without --hub nothing is read again at SIGHUP: restart the node manager to read its "
    "configuration. Leases stay."
)
#: The system-wide folder of Jupyter's configuration, the last place where Jupyter looks.
FOR_ALL = SYSTEM_CONFIG_PATH[-1]


class NodeManagerApp(JupyterApp):
    """Run the node manager: the only owner of this host's GPUs."""

    name = "jupyter-gpushare-node"
    version = __version__
    description = __doc__
    classes = List([Quotas, Hub, Policy, Connections])
    config_file_name = Unicode("jupyter_gpushare_node_config")
    examples = """
    jupyter gpushare node                        # this host's GPUs
    jupyter gpushare node --simulate 2x24GiB     # two simulated ones
    jupyter gpushare node --generate-config      # a commented configuration file, for this user
    jupyter gpushare node --hub --generate-config   # for the one that JupyterHub or systemd runs
    """

    simulate = Unicode(
        "",
        help="Simulated GPUs instead of this host's: 2x24GiB, or by their kind: 1xA100,2xT4. "
        "A kind has its memory, and predictions are those of such GPUs.",
    ).tag(config=True)
    preset = word(
        tuple(PRESETS),
        allow_none=True,
        help="""Defaults for a dozen settings at once: "class" for a lesson, "lab" for a few people
        who need whole GPUs, "own" for a machine of one person. The table of presets has their
        values; what the configuration says itself goes before them. Not set: each setting's own
        default.""",
    ).tag(config=True)
    gpus = Unicode(
        "",
        help="""Which GPUs to share: indices or UUIDs by commas, or "all". Not set: those of
        CUDA_VISIBLE_DEVICES, as a batch system gives them to a job; where that is not set, all.""",
    ).tag(config=True)
    system_programs = List(
        Unicode(),
        list(SYSTEM_PROGRAMS),
        help="""Programs that use GPUs for the host itself, such as monitoring, each as USER:/PATH:
        who runs it, and the executable file. Their memory is shown as the system's, is given to
        nobody, and is nobody's fault; a whole GPU is all the rest. What only draws (for root, or
        for who is logged in at the host's screen) need not be named. For programs of other users
        than its own the node manager needs the capability CAP_SYS_PTRACE.""",
    ).tag(config=True)
    socket = Unicode(
        "",
        help="""Path of the socket. Not set: the environment variable JUPYTER_GPUSHARE_SOCKET, where
        clients look too; without it gpushare-node-HOST.sock in Jupyter's runtime directory, where
        HOST stands for eight digits of the host's own; in a batch system's job for "job" and eight
        digits of the job's. With `shared` it is /run/jupyter-gpushare/node.sock for root; others
        must name one.""",
    ).tag(config=True)
    shared = Bool(
        False,
        help="""Let every user of the host connect (they are told apart by the kernel).
        Not set: only the user who runs the node manager.""",
    ).tag(config=True)
    ledger = Unicode(
        "",
        help="""Path of the ledger. Not set: gpushare/ledger-HOST.sqlite in Jupyter's data
        directory; where that is on a network file system, on which SQLite cannot be trusted,
        jupyter-gpushare-UID/ledger-HOST.sqlite in /var/tmp or /tmp. In a batch system's job it is
        the job's own, and is removed when another job starts a week after its last use.""",
    ).tag(config=True)
    history_days = Finite(90.0, min=0.0, help="Days for which events are kept.").tag(config=True)
    ledger_bytes = Integer(
        2**30,
        min=8 * 2**20,
        help="""About how many bytes the ledger's file may have. If it grows larger, the oldest
        events of the environments with the most bytes are forgotten before history_days; one
        environment may have a sixteenth at most. GPU-hours are kept as sums, and what
        administrators did stays.""",
    ).tag(config=True)
    keep_runs = Bool(
        False,
        help="""Keep what finished runs needed, for `jupyter gpushare predictor retrain`: of those
        whose model a dry run told of (`%gpushare predict`). A run is a line in
        predictor-records.jsonl beside the ledger: counts and sizes of the model's operations, the
        kind of GPU, the measured memory, time and utilisation. No code, no data, no name of a
        person or notebook; at most 16 MiB.""",
    ).tag(config=True)
    measure_interval = Duration(
        2.0, least=0.05, help="Seconds between two measurements of the GPUs."
    ).tag(config=True)
    measured_within = Duration(
        30.0,
        least=1.0,
        help="Seconds for which a measurement of the GPUs counts. When the driver has not answered "
        "for longer, nothing more is granted until it does. At least three times measure_interval.",
    ).tag(config=True)
    discover_interval = Duration(
        60.0, least=1.0, help="Seconds between two listings of the GPUs, for MIG and hot-plug."
    ).tag(config=True)
    walls = Unicode(
        "",
        help="""Socket of the wall helper, by which the kernel lets the processes of a person open
        only the GPUs on which the person has a lease: /run/jupyter-gpushare-walls/walls.sock with
        the units of this package. Not set: no walls. While it is set and the helper does not
        answer, nothing more is granted, and requests wait.""",
    ).tag(config=True)
    pool_listen = Unicode(
        f"0.0.0.0:{HOST_PORT}",
        help="""Address and port at which the pool reaches this host, over TLS only. Nothing listens
        there unless the host has joined a pool (`jupyter gpushare pool join`).""",
    ).tag(config=True)
    pool_directory = Unicode(
        "",
        help="""Where `jupyter gpushare pool join` put what the host has of its pool. Not set: the
        directory `pool` beside the ledger.""",
    ).tag(config=True)
    token_file = Unicode(
        "",
        help="""Identify clients by the tokens in this file instead of their OS user; for trying
        things out. It is JSON like {"tokens": [{"token": "a-secret", "environment": "alice"}]},
        and only its owner may read it.""",
    ).tag(config=True)
    hub = Bool(
        False, help="Identify clients by their JupyterHub tokens instead of their OS user."
    ).tag(config=True)
    exit_with_parent = Bool(
        False,
        help="""End when the process that started the node manager ends: for one that
        JupyterHub runs, whose token ends with the Hub. Leases are in the ledger.""",
    ).tag(config=True)
    admin_users = List(Unicode(), help="OS users who may set quotas and revoke leases.").tag(
        config=True
    )
    admin_groups = List(Unicode(), help="OS groups whose members may do so.").tag(config=True)
    nameless_users = Bool(
        False,
        help="""Let OS users in who have no entry in the host's user database, each with an
        environment (uid-NUMBER) and a quota of its own. Without JupyterHub only. Subordinate users
        (/etc/subuid) count as their owners in any case; root's subordinate users belong to no
        person.""",
    ).tag(config=True)
    subordinate_users = Unicode(
        str(SUBORDINATES), help="The file that says whose subordinate user ids are."
    ).tag(config=True)
    metrics_port = Integer(0, min=0, max=65535, help="Port of Prometheus metrics; 0: none.").tag(
        config=True
    )
    metrics_address = Unicode("127.0.0.1", help="Address of Prometheus metrics.").tag(config=True)
    metrics_environments = Integer(
        0,
        min=0,
        max=10_000,
        help="""Metrics by environment for at most so many of them; all others count together as
        "(others)". 0: none. They name people to whoever reads the metrics.""",
    ).tag(config=True)
    log_style = Enum(
        [style.value for style in LogStyle],
        LogStyle.PLAIN.value,
        help="""How the log's lines look: "plain" for people, or "json", one object a line. One
        event a line in either; log_format and log_datefmt have no say.""",
    ).tag(config=True)
    debug_checks = Bool(
        False, help="Check all invariants after every step (slow; for developers)."
    ).tag(config=True)
    forget_hub = Bool(
        False,
        help="""Forget whom JupyterHub vouched for lately, and end. After that, nobody whose token
        the Hub must check gets in until the Hub answers again.""",
    ).tag(config=True)
    record = Unicode(
        "", help="Append every command and its events to this file (JSON lines; for developers)."
    ).tag(config=True)

    aliases = {  # noqa: RUF012 - traitlets wants a plain class attribute
        **JupyterApp.aliases,
        "preset": "NodeManagerApp.preset",
        "simulate": "NodeManagerApp.simulate",
        "socket": "NodeManagerApp.socket",
        "ledger": "NodeManagerApp.ledger",
        "token-file": "NodeManagerApp.token_file",
        "metrics-port": "NodeManagerApp.metrics_port",
        "log-style": "NodeManagerApp.log_style",
        "record": "NodeManagerApp.record",
    }
    flags = {  # noqa: RUF012
        **JupyterApp.flags,
        "hub": (
            {"NodeManagerApp": {"hub": True}},
            "Identify clients by their JupyterHub tokens.",
        ),
        "shared": ({"NodeManagerApp": {"shared": True}}, "Let every user of the host connect."),
        "forget-hub": (
            {"NodeManagerApp": {"forget_hub": True}},
            "Forget whom JupyterHub vouched for lately, and end.",
        ),
        "exit-with-parent": (
            {"NodeManagerApp": {"exit_with_parent": True}},
            "End with the process that started this one.",
        ),
    }

    def _create_loader(
        self, argv: Any, aliases: Any, flags: Any, classes: Any
    ) -> KVArgParseConfigLoader:
        return StrictLoader(argv, aliases, flags, classes=classes, log=self.log)

    def parse_command_line(self, argv: Any = None) -> None:
        """The command line; what it leaves open of the quotas JupyterHub's side may have set."""
        super().parse_command_line(argv)
        try:
            quotas = json.loads(os.environ.get(names.QUOTAS) or "{}")
            told = Config({"Quotas": dict(quotas)})
        except (TypeError, ValueError) as error:
            raise TraitError(f"{names.QUOTAS} holds no quotas: {error}.") from None
        told.merge(self.config)
        self.update_config(told)

    def initialize(self, argv: Any = None) -> None:
        """The configuration, and below it the preset that it names."""
        super().initialize(argv)
        if wrong := mistyped(self.config, (type(self), *self.classes)):
            self.exit_with(wrong)
        self._preset: doc.Preset | None = None
        if self.preset is not None:
            self._preset = told_of(self.preset, self.config)
            below = config_of(self.preset)
            below.merge(self.config)
            self.update_config(below)

    def write_default_config(self) -> None:
        """The path of a new configuration file: where a node manager for everybody looks for it."""
        if (self.hub or self.shared) and not self.config_file:
            # JupyterHub's or systemd's runs as another user, with no home of this one.
            self.config_file = os.path.join(FOR_ALL, f"{self.config_file_name}.py")
            os.makedirs(FOR_ALL, mode=0o755, exist_ok=True)  # Jupyter would make the folder private
        super().write_default_config()
        if os.path.dirname(os.path.abspath(self.config_file)) == FOR_ALL:
            print("Every node manager of this host reads it, JupyterHub's and systemd's too.")
        else:
            print(
                "A node manager that you start reads it, or your Jupyter server does. For the one "
                f"that JupyterHub or systemd runs write {FOR_ALL}: add --hub, as root."
            )

    def get_default_logging_config(self) -> dict[str, Any]:
        """As traitlets has it, with our lines."""
        config: dict[str, Any] = super().get_default_logging_config()
        config["formatters"]["console"]["class"] = FORMATTERS[LogStyle(self.log_style)]
        return config

    @observe("log_style")
    def _log_style_changed(self, change: Any) -> None:
        self._configure_logging()

    def start(self) -> None:
        """Serve until SIGTERM or SIGINT. Exit status 1 with one sentence when it cannot."""
        super().start()
        if self.forget_hub:
            self._forget_hub()
        try:
            # The loop is not to wait 5 ms for a thread that reads the ledger, each time it looks.
            sys.setswitchinterval(_SWITCH)
            asyncio.run(self._serve())
        except NodeManagerCrashed as error:
            self.log.critical("The node manager crashed", exc_info=error.__cause__)
            self._leave(1)
        except (
            BadMembership,
            LedgerError,
            InventoryError,
            SocketInUse,
            ProcessError,
            systemd.InheritedSocketWrong,
            TraitError,
            UnsafeFile,
            ValueError,
        ) as error:
            self.exit_with(str(error))
        except OSError as error:
            self.exit_with(f"The node manager cannot start: {error}")
        self._leave(0)

    def _ledger_place(self) -> tuple[Path, str | None]:
        """The ledger's path, and what is to be told of it."""
        if self.ledger:
            return Path(self.ledger), None
        home = Path(jupyter_data_dir())
        return ledgerplace.choose(home, host_id(os.environ), ledgerplace.mounts())

    def _forget_hub(self) -> None:
        """Leave a mark by which a running node manager, too, forgets whom the Hub vouched for."""
        path = hub_people(self._ledger_place()[0])
        try:
            hubmemory.forget(path)
        except FileNotFoundError:
            print(f"Nobody is remembered: there is no {path.parent}.")
        except OSError as error:
            self.exit_with(
                f"Nobody is forgotten: {path.parent} cannot be written ({error.strerror}). Mend "
                f"that, or stop the node manager and remove {path}."
            )
        else:
            print(f"Forgotten: whom JupyterHub vouched for lately ({path}).")
        self.exit(0)

    def exit_with(self, sentence: str) -> None:
        """Say why and leave."""
        print(f"jupyter gpushare node: {sentence}", file=sys.stderr)
        self._leave(1)

    def _leave(self, status: int) -> None:
        """End, even if a call into the driver or the user database never comes back."""
        deadline = time.monotonic() + 1.0
        threads = [t for t in threading.enumerate() if t is not threading.current_thread()]
        for thread in threads:
            if not thread.daemon:
                thread.join(max(0.0, deadline - time.monotonic()))
        # Python would wait for such a thread for ever as it ends.
        if any(thread.is_alive() and not thread.daemon for thread in threads):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        self.exit(status)

    async def _serve(self) -> None:
        _raise_file_limit()
        notifier = systemd.Notifier(systemd.take_ear(os.environ, os.getpid()), log=self.log)
        inherited = systemd.take_socket(os.environ, os.getpid())
        place = place_of_socket(self.socket, inherited, shared=self.shared)
        clock = Clock()
        ledger_path = self._own_ledger(clock)
        ledger = Ledger.open(ledger_path, history=self.history_days * 86400.0, wall=clock.wall())
        if ledger.notice:
            self.log.error(ledger.notice)
        check_directory(ledger_path.parent)
        membership = Membership.open(
            Path(self.pool_directory or ledger_path.parent / POOL_DIRECTORY)
        )
        # Before the key is made, which is there from the first start on.
        is_first = not key_file(ledger_path).exists()
        policy = Policy(parent=self)
        rhythm, config = read(policy, Rhythm), read(policy, PolicyConfig)
        whole = open_inventory(self.simulate or None, now=clock.boot, programs=self.system_programs)
        given = given_gpus(self.gpus, os.environ)
        inventory: Inventory = whole if given is None else VisibleInventory(whole, given)
        limits = read(Connections(parent=self), Limits)
        turnstile = turnstile_of(limits)
        manager = Manager(
            config=config,
            clock=clock,
            charges=turnstile,
            ledger=ledger,
            inventory=inventory,
            # People's kernels are in groups of their own, and look at those themselves.
            host_memory=lambda: room(look(groups=not (self.hub or self.shared))),
            walls=Walls(self.walls, config) if self.walls else None,
            measure_interval=self.measure_interval,
            measured_within=self.measured_within,
            discover_interval=self.discover_interval,
            budget_interval=rhythm.budget_interval,
            ledger_bytes=self.ledger_bytes,
            check=self.debug_checks,
            recorder=recorder_to(self.record) if self.record else None,
            is_first=is_first,
            log=self.log,
        )
        lines = LogLines(clock.boot)
        manager.listeners.append(EventLog(self.log, lines).heard)
        if isinstance(whole, SimulatedInventory):
            manager.listeners.append(whole.heard)
        key = key_beside(ledger_path)
        identity = self._identity(clock, key, ledger_path)
        quotas = Quotas(parent=self)
        in_force = QuotasInForce(
            quotas.default,
            quotas.groups,
            quotas.users,
            clock.boot,
            partial(manager.ask, owner=NODE),
        )
        groups = self._hub_quotas(manager, in_force) if self.hub else None
        service = Service(
            manager,
            key=key,
            name=socket.gethostname() if membership is None else membership.name,
            version=__version__,
            heartbeat_interval=rhythm.heartbeat_interval,
            models=ledger_path.with_name(MODELS_FILE),
            learned=Learned(ledger_path.with_name(RECORDS_FILE)) if self.keep_runs else None,
            membership=membership,
            preset=self._preset,
            knows=identity.knows,
            groups=groups,
            log=self.log,
        )
        boot_id = clock.boot_id()
        if self.shared and os.getuid() != 0 and not sees_others():
            self.log.warning(
                "The node manager sees no other user's process. If /proc is mounted with hidepid, "
                "nobody else gets a GPU: give it the group of the mount's gid= option "
                "(SupplementaryGroups= in its service)."
            )
        transport = Transport(
            place,
            limits=limits,
            turnstile=turnstile,
            identity=identity,
            handler=service,
            identify_process=lambda peer: identify_peer(peer, boot_id),
            shared=self.shared,
            inherited=inherited,
            subordinates=SubordinateIds(Path(self.subordinate_users)),
            log=self.log,
            lines=lines,
        )
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        if notifier.ear.address is not None:
            # A service is told to reload by SIGHUP, and must not end by it.
            loop.add_signal_handler(signal.SIGHUP, self.log.info, _NOTHING_TO_RELOAD)
        if self.exit_with_parent:
            when_parent_ends(loop, stop.set)
        ends = {
            loop.create_task(stop.wait()),
            loop.create_task(manager.crashed.wait()),
        }
        port: TlsPort | None = None
        exporter: Any = None
        background: list[asyncio.Task[None]] = []
        try:
            # Before the start: it also hears of the GPUs that the first listing finds.
            manager.listeners.append(in_force.heard)

            async def first_quotas(gpus: Sequence[Gpu]) -> ConfigureQuotas:
                known = {} if groups is None else await groups.first(NodeSize.of(gpus))
                return in_force.of(gpus, known)

            starting = loop.create_task(manager.start(first_quotas))
            # A driver may hang right here; the waiting caller must be able to give up.
            if not await _first(starting, ends):
                return
            pool = None if membership is None else membership.pool
            if pool != manager.state.quotas.pool:
                await manager.submit(BelongTo(clock.boot(), pool))
            # Before anybody can connect, so that the first request has the estimate of earlier
            # runs.
            await service.recall()
            for warning in service.quotas.warnings():
                self.log.warning("Quotas: %s", warning)
            if groups is not None:
                background.append(loop.create_task(groups.run()))

                def reload() -> None:
                    notifier.reloading(time.monotonic())
                    groups.hurry(notifier.ready)

                loop.add_signal_handler(signal.SIGHUP, reload)
            # The quotas are known and the ledger is read by now: whoever connects is answered for
            # good.
            await transport.start()
            service.start()
            if membership is not None:
                port = TlsPort(
                    membership.context,
                    transport.connect,
                    log=self.log,
                    seen=membership.seen(),
                    keep_seen=membership.keep_seen,
                )
                self.log.info(
                    "The pool %s reaches this host, %s, at %s",
                    membership.pool,
                    membership.name,
                    await self._listen(port),
                )
            if self.metrics_port:
                from ..daemon import metricsport
                from .views.metrics import registry_of

                registry = registry_of(
                    manager, transport, self.metrics_environments, service.serving
                )
                exporter = metricsport.serve(registry, self.metrics_address, self.metrics_port)
            kind = "simulated" if inventory.simulated else "real"
            self.log.info("%d %s GPUs, ledger %s", len(manager.state.gpus), kind, ledger_path)
            # The present objects stay for good. The garbage collector would look through them again
            # and again, and stop the loop for 40 ms each time.
            gc.collect()
            gc.freeze()
            print(f"ready {transport.path}", flush=True)
            notifier.ready()
            telling = systemd.keep_telling(notifier, lambda: _how_it_is(manager))
            background.append(loop.create_task(telling))
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            notifier.stopping()
            for task in (*ends, *background):
                task.cancel()
            if exporter is not None:
                exporter.stop()
                await exporter.close_all_connections()
            if port is not None:
                await port.close()
            # First nobody else is let in. The manager, who writes the ledger, goes last.
            await transport.close()
            await service.close()
            await manager.close()
            if manager.crash is not None:
                raise NodeManagerCrashed from manager.crash

    async def _listen(self, port: TlsPort) -> str:
        """Raises :class:`ValueError` for an address without a port, :class:`OSError`."""
        address, _, number = self.pool_listen.rpartition(":")
        if not address or not number.isdigit():
            raise ValueError(
                f"{self.pool_listen!r} is no address with a port: c.NodeManagerApp.pool_listen = "
                f'"0.0.0.0:{HOST_PORT}" is one.'
            )
        host, bound = await port.start(address.strip("[]"), int(number))
        return f"{host}:{bound}"

    def _own_ledger(self, clock: Clock) -> Path:
        """The ledger's path; to its default place one of this host's former name is moved.

        A job's ledger begins empty: another job's GPUs are not its own.
        """
        path, told = self._ledger_place()
        if self.ledger:
            return path
        if host_id(os.environ).startswith(JOB_PREFIX):
            moved = ledgerplace.remove_jobs(path.parent, clock.wall() - _JOBS_KEPT)
        else:
            moved = ledgerplace.adopt(path)
        for sentence in filter(None, (told, moved)):
            self.log.warning(sentence)
        return path

    def _hub_quotas(self, manager: Manager, in_force: QuotasInForce) -> HubQuotas:
        hub = Hub(parent=self)
        api = hub.api()

        def node() -> NodeSize:
            return NodeSize.of(books.gpu for books in manager.state.gpus.values())

        async def apply(groups: dict[str, Any]) -> None:
            gpus = [books.gpu for books in manager.state.gpus.values()]
            await manager.submit(in_force.of(gpus, groups))
            self.log.info("Quotas of %d JupyterHub groups hold now", len(groups))

        return HubQuotas(
            api,
            hub.own_token(),
            refresh=hub.refresh,
            node=node,
            apply=apply,
            in_ledger=lambda work: manager.in_ledger(lambda: work(manager.ledger)),
            wall=manager.clock.wall,
            log=self.log,
        )

    def _identity(self, clock: Clock, key: bytes, ledger: Path) -> Identity:
        if self.hub:
            hub = Hub(parent=self)
            trust = read(hub, HubTrust)
            token, api = hub.own_token(), hub.api()
            memory = HubMemory(
                trust.hub_away,
                now=clock.boot,
                key=key,
                path=hub_people(ledger),
                made_for=json.dumps([clock.boot_id(), api.url, trust.service, trust.per_server]),
                log=self.log,
            )
            return HubIdentity(api, token, trust, now=clock.boot, memory=memory, log=self.log)
        if self.token_file:
            over = f"The token file {self.token_file} can be used again"
            by_token = TokenFileIdentity(self.token_file, Trouble(self.log, clock.boot, over))
            by_token.read()  # one that lets nobody in ends the start with its reason
            return by_token
        return PeerIdentity(
            frozenset(self.admin_users),
            frozenset(self.admin_groups),
            nameless=self.nameless_users,
        )


class NodeManagerCrashed(Exception):
    """Our bug stopped the node manager's loop; its cause is the story."""


def place_of_socket(configured: str, inherited: socket.socket | None, *, shared: bool) -> str:
    """The socket's place. Raises :class:`InheritedSocketWrong` if two places are configured.

    A socket unit overrides the environment variable, which is mainly for clients. Raises
    :class:`ValueError` where no place for all users is known.
    """
    if inherited is None:
        told = configured or configured_socket(os.environ)
        if told or not shared:
            return told or embedded_socket(jupyter_runtime_dir(), host_id(os.environ))
        if os.getuid() == 0:
            return SYSTEM_SOCKET
        raise ValueError(
            "--shared needs a place where other users find the socket: --socket=PATH, in a folder "
            "of yours that they may enter but not write, such as one beside the course's files. "
            f"Their programs and Jupyter servers find it by {names.SOCKET}=PATH."
        )
    path: str = inherited.getsockname()
    if configured and os.path.abspath(configured) != path:
        raise systemd.InheritedSocketWrong(
            f"The socket unit listens on {path}, but the node manager is told to listen on "
            f"{configured}. Take --socket (or c.NodeManagerApp.socket) away, or make the socket "
            "unit's ListenStream= the same."
        )
    return path


async def _how_it_is(manager: Manager) -> str:
    """One line about the node; comes back only when the manager's loop came round."""
    # A heartbeat of no lease: it is decided like any other, and changes nothing.
    nobody = ProcessId(manager.state.boot.boot_id, 0, 0)
    await manager.submit(Heartbeat(manager.clock.boot(), LeaseId(""), EnvironmentName(""), nobody))
    state = manager.state
    if state.problem is not None:
        return f"Grants nothing now: {state.problem}"
    if state.rebuild is not None:
        return "Grants nothing now: tasks may present leases that the ledger does not know"
    if manager.readings.problem is not None:
        return f"Cannot measure the GPUs: {manager.readings.problem}"
    waiting = sum(lease.phase is LeasePhase.QUEUED for lease in state.leases.values())
    return f"{len(state.gpus)} GPUs, {len(state.leases) - waiting} leases, {waiting} waiting"


async def _first(work: asyncio.Task[None], ends: set[asyncio.Task[Any]]) -> bool:
    """Whether ``work`` ended before any of ``ends``; otherwise ``work`` is cancelled."""
    await asyncio.wait({work, *ends}, return_when=asyncio.FIRST_COMPLETED)
    if work.done():
        work.result()
        return True
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    return False


def _raise_file_limit() -> None:
    """A connection and a watched process cost a descriptor each."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for most in (max(hard, 65536), hard):  # only the privileged may go beyond the hard limit
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
            return


main = NodeManagerApp.launch_instance
