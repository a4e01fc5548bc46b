"""The Jupyter server extension: joins the parts, and knows every setting.

A server is a witness and a messenger, not a party: kernels talk to the node manager themselves, and
what they hold does not depend on the server. The extension tells kernels where the node manager is,
tells people how it stands (REST, the panel, pages, metrics, events), and tells the node manager
what only a server knows, such as a notebook's new name. If any of this fails, nobody loses a GPU.

There may be a node manager for all users of the host, or this user's servers host one. Which one it
is is asked anew each time (:meth:`GpuShareExtension.find`), because either may come and go while
the server runs, and kernels must all go to the same one.

The server's own loop must never wait for a driver, a disk or a node manager: calls have a time
limit, and a node manager that we host is a process of its own.

Settings belong in ``jupyter_gpushare_config.py`` or ``.json``, for example
``c.GpuShareExtension.simulate = "2x24GiB"``.
"""

from __future__ import annotations

import atexit
import os
from contextlib import AsyncExitStack
from typing import Any

import prometheus_client
from jupyter_server.extension.application import ExtensionApp
from jupyter_server.serverapp import ServerApp
from traitlets import CaselessStrEnum, Dict, Int, Unicode, default

from jupyter_gpushare.link.errors import NodeProblem
from jupyter_gpushare.link.nodelink import NodeLink
from jupyter_gpushare.pages.live import Audience
from jupyter_gpushare.pages.site import STATIC
from jupyter_gpushare.protocol import names
from jupyter_gpushare.protocol.adapters import framework_modules
from jupyter_gpushare.protocol.address import (
    AWAY_FOR,
    CLEARED_BY,
    Presence,
    embedded_socket,
    find_socket,
    host_id,
    is_another_hosts,
    jupyter_runtime_dir,
    presence,
    system_socket,
    told_token,
)
from jupyter_gpushare.protocol.batchjob import leave_behind, why_no_gpu
from jupyter_gpushare.protocol.messages import Method
from jupyter_gpushare.satellites import Part, take, there
from jupyter_gpushare.traits import Duration, task_traits

from .embed import EmbeddedNode, gpu_driver_present
from .handlers import Elsewhere, kernel_routes, rest_routes
from .kernelenv import KernelEnvironment
from .leaseevents import SCHEMA_ID, SCHEMA_PATH, LeaseEvents
from .lifecycle import KernelLifecycle
from .live import live_route
from .metrics import GpuShareCollector
from .notebooks import NotebookDoor
from .otherpythons import OtherPythons
from .pages import make_site, page_routes
from .saved import without_waits

_TELL_WITHIN = 2.0  # seconds the node manager may take to hear of a kernel's end


def _embedded() -> str:
    """The socket of the node manager that this user's servers host here."""
    return embedded_socket(jupyter_runtime_dir(os.environ), host_id(os.environ))


class GpuShareExtension(ExtensionApp):
    """Shares the host's GPUs between this server's kernels and everybody else's."""

    name = "jupyter_gpushare"
    node: EmbeddedNode | None = None
    load_other_extensions = True
    static_paths = [str(STATIC)]  # noqa: RUF012 - a trait

    socket = Unicode(
        None,
        allow_none=True,
        help="""Path of the node manager's socket. By default: the environment variable
        JUPYTER_GPUSHARE_SOCKET, else the system node manager's, else the embedded one's.""",
    ).tag(config=True)

    embed = CaselessStrEnum(
        ["auto", "never", "always"],
        default_value="auto",
        help="""Whether this server may host a node manager for its user. 'auto': if no socket
        is configured, the host has no system node manager (one that is away for up to five minutes
        counts), and there is an NVIDIA driver or `simulate` is set. 'always': even so. 'never':
        only join one that is there.""",
    ).tag(config=True)

    simulate = Unicode(
        help="""Simulated GPUs for the embedded node manager, e.g. '2x24GiB,1x80GiB'.
        Default: the environment variable JUPYTER_GPUSHARE_SIMULATE.""",
    ).tag(config=True)

    ledger = Unicode(
        help="""Path of the embedded node manager's ledger. All servers of one user on a host must
        have the same. Not set: see NodeManagerApp.ledger.""",
    ).tag(config=True)

    node_config = Unicode(
        "",
        help="""Path of a configuration file for the embedded node manager (as
        `jupyter gpushare node --config`).""",
    ).tag(config=True)

    locals().update(task_traits(defaults=False))

    call_timeout = Duration(
        5.0,
        least=0.05,
        most=3600.0,
        help="Seconds the node manager may take to answer one request of this server.",
    ).tag(config=True)

    live_limit = Int(64, help="Most live status connections (open browser tabs) at once.").tag(
        config=True
    )

    kernel_variables = Dict(
        key_trait=Unicode(),
        value_trait=Unicode(),
        help="Further environment variables for kernels and terminals.",
    ).tag(config=True)

    @default("simulate")
    def _default_simulate(self) -> str:
        return os.environ.get("JUPYTER_GPUSHARE_SIMULATE", "")

    # -- which node manager -------------------------------------------------------------------

    def configured_socket(self) -> str | None:
        """Return the socket somebody configured, by trait or environment.

        A server started in another server's terminal inherits the embedded
        node manager's path: that is no configuration, it may have to host it.
        """
        given = self.socket or os.environ.get(names.SOCKET)
        if not given or given == _embedded() or is_another_hosts(given, os.environ):
            return None
        return given

    def find(self) -> str | None:
        """Return the socket of the node manager that this server and its kernels use."""
        if (configured := self.configured_socket()) is not None:
            return configured
        if self.node is not None and self.node.takes_part:
            return self.node.socket
        found = find_socket(os.environ, system_socket())
        return None if found is None else found.path

    def _token(self) -> str | None:
        # A node manager that servers host knows people by their OS user, and is no party to which
        # a Hub's token may be shown.
        return told_token(os.environ, shows_hub=self.find() != _embedded())

    def why(self) -> str | None:
        """Return for people why there is no node manager, as far as we know."""
        if self.node is not None and self.node.takes_part:
            return self.node.problem
        if self.configured_socket() is not None:
            return None
        system = system_socket()
        match presence(system):
            case Presence.THERE:
                return None
            case Presence.AWAY:
                away = f"The node manager for all users of this host, at {system}, is away."
                return f"{away} {self._then}"
        if self.embed == "never":
            return (
                f"No node manager listens at {system}, and this server is not to host one "
                '(c.GpuShareExtension.embed = "never").'
            )
        if self._has_gpus and (no_gpu := why_no_gpu(os.environ)) is not None:
            return no_gpu
        return (
            "This host shows no NVIDIA driver and no node manager for all users, so there is "
            "nothing to share. To try with simulated GPUs set JUPYTER_GPUSHARE_SIMULATE=2x24GiB."
        )

    @property
    def _then(self) -> str:
        """What becomes of a node manager for all users that does not come back."""
        if self.node is None:
            return "This server does not host one."
        return (
            f"If it does not come back within {AWAY_FOR / 60:.0f} minutes, this server hosts one. "
            f"Where it was removed for good, that happens at once after: {CLEARED_BY}"
        )

    def wants_embedded(self) -> bool:
        """Say whether this server should take part in hosting a node manager, now or later."""
        if self.embed == "always":
            return True
        if self.embed == "never" or self.configured_socket() is not None:
            return False
        return self._has_gpus and why_no_gpu(os.environ) is None

    @property
    def _has_gpus(self) -> bool:
        return bool(self.simulate) or gpu_driver_present()

    def _make_node(self) -> EmbeddedNode | None:
        if not self.wants_embedded():
            return None
        given = {"ledger": self.ledger, "simulate": self.simulate, "config": self.node_config}
        socket = self.configured_socket() or _embedded()
        return EmbeddedNode(
            socket=socket,
            arguments=[f"--{option}={value}" for option, value in given.items() if value],
            log=self.log,
            on_change=self._node_changed,
            may_host=lambda: self.embed == "always" or presence(system_socket()) is Presence.GONE,
        )

    # -- the extension's life -----------------------------------------------------------------

    def initialize_settings(self) -> None:
        """Make the parts; they start when the server's loop runs."""
        leave_behind(os.environ)
        server = self._server
        self._running = False
        self.node = self._make_node()
        self.link = NodeLink(
            find=self.find,
            why=self.why,
            token=self._token,
            timeout=self.call_timeout,
            log=self.log,
        )
        #: Those who are told the status, and the pages that are open.
        self.audiences = [Audience(self.live_limit, self.live_limit) for _ in range(2)]
        bus = server.event_logger
        assert bus is not None
        bus.register_event_schema(SCHEMA_PATH)
        self.events = LeaseEvents(
            emit=lambda data: bus.emit(schema_id=SCHEMA_ID, data=data),
            history=self._own_history,
            log=self.log,
        )
        self.link.subscribe(self._link_changed)
        self.metrics = GpuShareCollector(lambda: self.link.state.status, self.events.counts)
        self.kernel_environment = KernelEnvironment(
            kernel_manager=server.kernel_manager,
            session_manager=server.session_manager,
            contents_manager=server.contents_manager,
            socket=self.find,
            notebooks=lambda: self.door.path,
            settings=self._kernel_settings(),
            renamed=lambda kernel_id, path: self._tell(
                Method.TASK_RENAMED, kernel_id=kernel_id, name=os.path.basename(path), path=path
            ),
            log=self.log,
        )
        contents: Any = server.contents_manager  # its hooks have no types
        contents.register_pre_save_hook(without_waits)
        self.door = NotebookDoor(self.kernel_environment.notebook_of, self.log)
        self.kernel_environment.install()
        self.pythons = OtherPythons()
        self.elsewhere: Elsewhere | None = None
        if there(Part.ELSEWHERE):
            self.elsewhere = take(Part.ELSEWHERE).Elsewhere(
                server.kernel_manager, server.session_manager, server.kernel_spec_manager
            )
        self.lifecycle = KernelLifecycle(
            kernel_manager=server.kernel_manager,
            event_logger=bus,
            tell=lambda kernel_id, pid: self._tell(Method.TASK_ENDED, kernel_id=kernel_id, pid=pid),
            pythons=self.pythons,
            log=self.log,
        )

    def initialize_handlers(self) -> None:
        """Add the REST and WebSocket routes."""
        self.handlers.extend(rest_routes(self.link))
        self.handlers.extend(kernel_routes(self.pythons, self.elsewhere))
        told, pages = self.audiences
        self.handlers.append(live_route(self.link, told))
        site = make_site(self.link, self._server.web_app.settings, self.static_url_prefix)
        self.handlers.extend(page_routes(self.link, site, pages))

    @property
    def _server(self) -> ServerApp:
        assert self.serverapp is not None
        return self.serverapp

    async def _start_jupyter_server_extension(self, serverapp: Any) -> None:
        """Start what needs the running loop; twice is once."""
        if self._running:
            return
        self._running = True
        if self.node is not None:
            self.node.start()
        self.link.start()
        await self.door.open()
        self.lifecycle.start()
        prometheus_client.REGISTRY.register(self.metrics)
        if (terminals := self._server.web_app.settings.get("terminal_manager")) is not None:
            self.kernel_environment.add_to_terminals(terminals)

    async def stop_extension(self) -> None:
        """Stop all our parts.

        The server ends its kernels only after its extensions. A node manager
        that we host and that still has kernels of ours lives until this
        process ends, so that it sees them go.
        """
        if not self._running:
            return
        self._running = False
        # What is pushed last stops first, and a part that fails keeps no other from stopping.
        parts = AsyncExitStack()
        parts.push_async_callback(self._stop_node)
        parts.callback(self.door.close)
        parts.callback(self.kernel_environment.uninstall)
        parts.push_async_callback(self.link.close)
        parts.push_async_callback(self.events.close)
        parts.push_async_callback(self.lifecycle.stop)
        for audience in self.audiences:
            parts.callback(audience.close)
        parts.callback(prometheus_client.REGISTRY.unregister, self.metrics)
        try:
            await parts.aclose()
        except Exception:  # the server would wait for us without end
            self.log.exception("GPU sharing did not stop as it should; the server ends.")

    async def _stop_node(self) -> None:
        if self.node is None:
            return
        if self.node.hosting and self._server.kernel_manager.list_kernel_ids():
            await self.node.leave()
            atexit.register(self.node.end_child)
        else:
            await self.node.stop()

    # -- between the parts --------------------------------------------------------------------

    def _kernel_settings(self) -> dict[str, str]:
        given = {
            variable: value if isinstance(value, str | None) else f"{value:.12g}"
            for name, variable, *_ in names.SETTINGS
            for value in (getattr(self, name),)
        }
        given[names.FRAMEWORKS] = ",".join(sorted(framework_modules())) or None
        settings = {name: value for name, value in given.items() if value is not None}
        return {**settings, **self.kernel_variables}

    def _link_changed(self) -> None:
        state = self.link.state
        if self._running and self.node is not None and not state.connected:
            self.node.lost()
        self.events.observe(state.status)

    def _node_changed(self) -> None:
        if self.node is not None and self.node.hosting:
            self.link.hurry()

    async def _own_history(self) -> list[dict[str, Any]]:
        status = self.link.state.status
        environment = None if status is None else status["environment"]
        answer = await self.link.call(Method.HISTORY, limit=50, environment=environment)
        events: list[dict[str, Any]] = answer["events"]
        return events

    async def _tell(self, method: Method, **params: Any) -> None:
        try:
            await self.link.call(method, timeout=_TELL_WITHIN, **params)
        except NodeProblem as problem:
            # The node manager watches processes itself, so only the reason in the history is less
            # exact; and a lease has its notebook's new name the next time. An older one does not
            # know the call.
            self.log.debug("gpushare: %s could not be told: %s", method.value, problem)
