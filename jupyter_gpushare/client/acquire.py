"""Get this process its GPUs when a framework is imported, and give them back.

`jupyter_gpushare._boot` calls `before_framework` and `after_framework` around
the execution of a framework's module. Everything a process knows about its
lease is in its one `Broker`; a forked child gets a broker of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import Enum
from pathlib import PurePath
from types import ModuleType
from typing import Any, Protocol

from ..protocol import names
from ..protocol.address import Found, find_socket
from ..protocol.errors import Reason
from ..protocol.messages import Method
from . import display
from .adapters import registry
from .errors import GpuShareError, LeaseLost, NodeUnavailable
from .grant import Grant, GrantedGpu
from .session import Link, Session
from .settings import Acquire, Ask, Fallback, Settings, read_settings, read_token

VISIBLE = "CUDA_VISIBLE_DEVICES"


class Standing(Enum):
    """How this process stands with its GPUs."""

    FREE = "free"
    HELD = "held"
    JOINED = "joined"
    FELL_BACK = "fell_back"
    LOST = "lost"


class Display(Protocol):
    """Shows that we wait."""

    def update(self, notice: Mapping[str, Any]) -> None: ...
    def done(self, text: str | None = None) -> None: ...


class Broker:
    """One process's dealings with the node manager.

    ``environ`` is changed: ``CUDA_VISIBLE_DEVICES`` becomes the granted UUIDs,
    and the lease's id and secret are left there for child processes to join.
    """

    def __init__(
        self,
        environ: Any,
        settings: Settings,
        *,
        make_display: Callable[[], Display] = display.waiting_display,
        say: Callable[[str], None] = display.say,
    ) -> None:
        self.settings = settings
        self.standing = Standing.FREE
        self.grant: Grant | None = None
        self.lost: str | None = None
        self._environ = environ
        self._make_display = make_display
        self._say = say
        self._asked = Ask()
        self._session: Session | None = None
        self._adapters: dict[str, tuple[registry.Adapter, ModuleType | None]] = {}
        self._lock = threading.RLock()  # held while waiting in the queue
        self._session_lock = threading.Lock()  # never held for longer than a hello
        self._was_visible: str | None = environ.get(VISIBLE)
        self._found: Found | None = find_socket(environ)
        # Our parent's marks; without them this process asks for itself.
        self._parent_lease = environ.get(names.LEASE) or None
        self._parent_secret = environ.get(names.SECRET) or None
        for complaint in settings.complaints:
            say(complaint)

    # -- what the import hook needs --------------------------------------------------

    @property
    def configured(self) -> bool:
        """Whether there is a node manager to ask; if not, everything here is inert."""
        if self._found is None:
            self._found = find_socket(self._environ)
        return self._found is not None

    def before_framework(self, module: str) -> None:
        """Called before a framework's module runs; may wait in the queue.

        Raises :class:`GpuShareError` only with ``fallback = "error"``, and
        :class:`KeyboardInterrupt` when the user leaves the queue.
        """
        if not self.configured or self._wants_cpu():
            return
        adapter = self._adapter(module)
        if adapter is None:
            return
        late = self.settings.acquire is Acquire.FIRST_USE and adapter.catches_first_use
        if late and self.grant is None and self._parent_lease is None:
            # Whatever reaches CUDA by a way we do not see finds no GPU, not somebody else's.
            self._environ[VISIBLE] = ""
            adapter.before(None)
        else:
            adapter.before(self.ensure(f"import {module}"))
        self._adapters[module] = (adapter, None)

    def after_framework(self, module: str, loaded: ModuleType) -> None:
        """Called when the framework's module has run."""
        if module not in self._adapters:
            return
        adapter, _ = self._adapters[module]
        self._adapters[module] = (adapter, loaded)
        late = self.settings.acquire is Acquire.FIRST_USE and adapter.catches_first_use
        if late and self.grant is None and self.standing is Standing.FREE:
            adapter.first_use(loaded, lambda: self.ensure(f"first use of {module}"), self.expected)
        else:
            adapter.after(loaded, self.grant)

    def expected(self) -> int:
        """GPUs that a request would get as the quota stands; asks at most once."""
        if self.grant is not None:
            return len(self.grant.gpus)
        try:
            quota = self._connect().hello.get("quota")
        except GpuShareError:
            return 0
        allowed = quota.get("gpus") if isinstance(quota, dict) else None
        wanted = self.ask().gpus or 1
        return wanted if isinstance(allowed, int) and wanted <= allowed else 0

    def ensure(self, why: str) -> Grant | None:
        """The grant this process has, or gets now; ``None``: run on the CPU.

        Raises :class:`GpuShareError` with ``fallback = "error"``.
        """
        with self._lock:
            if self.grant is not None or self.standing is Standing.FELL_BACK:
                return self.grant
            try:
                return self._join() or self.request(Ask())
            except GpuShareError as error:
                return self._fall_back(why, error)

    # -- what people and programs call -------------------------------------------------

    def ask(self) -> Ask:
        """What a request of this process asks, from all who may say."""
        return self._asked.over(self.settings.ask)

    def set_ask(self, ask: Ask) -> None:
        """What the next request asks, stronger than any setting."""
        self._asked = ask.over(self._asked)

    def configure(self, traits: Settings) -> None:
        """Traits were read: the weakest source of settings."""
        self.settings = read_settings(self._environ, traits)
        for complaint in self.settings.complaints:
            self._say(complaint)

    def request(self, ask: Ask, *, wait: bool = True) -> Grant:
        """Get a lease, waiting visibly. Raises :class:`GpuShareError`, :class:`KeyboardInterrupt`.

        A process has one lease at a time; asking again while it holds one
        gives that one back first.
        """
        with self._lock:
            if self.grant is not None:
                self.release()
            result = self._ask_node(ask.over(self.ask()), wait)
            self._adopt(result, Standing.HELD)
            assert self.grant is not None
            return self.grant

    def release(self) -> Mapping[str, Any] | None:
        """Give the lease back; the answer's ``state``, or ``None`` if there was none."""
        with self._lock:
            if self.grant is None:
                return None
            lease, session = self.grant.lease, self._session
            joined = self.standing is Standing.JOINED
            self._forget()
            if session is None:
                return None
            session.let_go(lease)
            if joined:
                return {"state": "joined"}
            result = session.call(Method.RELEASE, lease=lease)
            return result if isinstance(result, dict) else None

    def call(self, method: Method, **params: Any) -> Any:
        """Any call; its result. Raises :class:`GpuShareError`."""
        return self._connect().call(method, **params)

    def status(self) -> dict[str, Any]:
        """The status document. Raises :class:`GpuShareError`."""
        result = self.call(Method.STATUS)
        if not isinstance(result, dict):
            raise NodeUnavailable("The node manager's status makes no sense.")
        return result

    def set_activity(self, busy: bool) -> None:
        """Tell what the task does. Never waits, never raises."""
        grant, session = self.grant, self._session
        if grant is not None and session is not None and self.standing is Standing.HELD:
            session.set_activity(grant.lease, busy)

    def close(self) -> None:
        """The process ends: give back what is ours. The node manager sees it die anyway."""
        session, self._session = self._session, None
        if session is None:
            return
        if self.grant is not None and self.standing is Standing.HELD and session.link is Link.UP:
            session.tell(Method.RELEASE, lease=self.grant.lease)
        session.close(0.2)

    def abandon_in_child(self) -> Broker:
        """After a fork: a broker for the child, which joins the parent's lease if it needs one."""
        if self._session is not None:
            self._session.abandon_in_child()
        child = Broker(self._environ, replace(self.settings, complaints=()))
        child._asked = self._asked
        child._adapters = self._adapters
        child._was_visible = self._was_visible
        child.grant = self.grant
        if self.grant is not None:
            child.standing = Standing.JOINED
        return child

    # -- inside ---------------------------------------------------------------------

    def _wants_cpu(self) -> bool:
        """The user hid the GPUs; that was not us, and it is respected."""
        visible = self._environ.get(VISIBLE)
        hidden = visible is not None and visible.strip() in ("", "-1", "NoDevFiles")
        return hidden and self.standing is Standing.FREE and self._was_visible == visible

    def _adapter(self, module: str) -> registry.Adapter | None:
        try:
            return registry.find(module)
        except Exception as error:  # noqa: BLE001 - another package's adapter may raise anything
            self._say(f"The adapter for {module} cannot be used and is left out: {error!r}")
            return None

    def _connect(self) -> Session:
        with self._session_lock:
            if self._session is not None and self._session.link is not Link.CLOSED:
                return self._session
            if not self.configured or self._found is None:
                raise NodeUnavailable(
                    "No GPU node manager is set up for this process. In Jupyter it comes with "
                    "the server; elsewhere start `jupyter gpushare node` or set "
                    f"{names.SOCKET}."
                )
            session = Session(
                self._found.path,
                read_token(self._environ),
                self.settings.answer_timeout,
                on_lost=self._lost,
            )
            session.open()
            self._session = session
            return session

    def _join(self) -> Grant | None:
        """Our parent's lease, if it left us one that still holds."""
        if not self._parent_lease or not self._parent_secret:
            return None
        lease, secret = self._parent_lease, self._parent_secret
        self._parent_lease = self._parent_secret = None
        try:
            result = self._connect().call(Method.ATTACH, lease=lease, secret=secret)
        except LeaseLost:
            return None
        if not isinstance(result, dict) or result.get("state") == "queued":
            return None
        self._adopt(result, Standing.JOINED)
        self._connect().hold(lease, secret)
        return self.grant

    def _ask_node(self, ask: Ask, wait: bool) -> dict[str, Any]:
        session = self._connect()
        shown = self._make_display()
        last: dict[str, Any] = {}

        def queued(notice: Mapping[str, Any]) -> None:
            last.update(notice)
            shown.update(notice)

        def waiting() -> None:
            if last:
                shown.update(last)

        params: dict[str, Any] = {
            "request_id": uuid.uuid4().hex,
            "task": describe_task(self._environ),
            "gpus": ask.gpus,
            "memory": ask.memory,
            "priority_class": ask.priority_class,
            "wait": wait,
        }
        try:
            result = session.request(params, queued, waiting, self.settings.wait_timeout)
        except BaseException:
            shown.done(None)
            raise
        shown.done("GPU granted.")
        return result

    def _adopt(self, result: Mapping[str, Any], standing: Standing) -> None:
        grant = read_grant(result)
        self.grant, self.standing, self.lost = grant, standing, None
        self._environ[VISIBLE] = grant.visible_devices
        self._environ[names.LEASE] = grant.lease
        self._environ[names.SECRET] = str(result.get("secret", ""))
        self._tell_adapters()

    def _tell_adapters(self) -> None:
        for adapter, loaded in self._adapters.values():
            if loaded is not None:
                adapter.after(loaded, self.grant)

    def _forget(self) -> None:
        self.grant, self.standing = None, Standing.FREE
        for name in (names.LEASE, names.SECRET):
            with contextlib.suppress(KeyError):
                del self._environ[name]

    def _lost(self, lease: str, message: str) -> None:
        """Called on the session's thread."""
        if self.grant is None or self.grant.lease != lease:
            return
        self._forget()
        self.standing, self.lost = Standing.LOST, message
        self._say(
            f"This process's GPU lease has ended: {message} What it still has on the GPU counts "
            "as used without a lease. Use `%gpushare request`, or restart the kernel."
        )

    def _fall_back(self, why: str, error: GpuShareError) -> Grant | None:
        if self.settings.fallback is Fallback.ERROR:
            raise error
        self.standing = Standing.FELL_BACK
        self._environ[VISIBLE] = ""
        self._say(
            f"`{why}` goes on without a GPU (fallback = cpu): {error} "
            "Use `%gpushare request` to try again before CUDA is used."
        )
        return None


def read_grant(result: Mapping[str, Any]) -> Grant:
    """The grant in an answer. Raises :class:`NodeUnavailable` when it makes no sense."""
    try:
        gpus = tuple(
            GrantedGpu(
                uuid=str(gpu["uuid"]),
                index=int(gpu["index"]),
                name=str(gpu["name"]),
                memory=int(gpu["memory"]),
                capacity=int(gpu.get("capacity", gpu["memory"])),
            )
            for gpu in result["gpus"]
        )
        return Grant(str(result["lease"]), gpus)
    except (KeyError, TypeError, ValueError) as error:
        raise NodeUnavailable(
            f"The node manager's grant makes no sense ({error!r}); are both of the same release?",
            Reason.UNAVAILABLE,
        ) from error


def is_kernel() -> bool:
    """Whether this process is a Jupyter kernel. Imports nothing."""
    app = getattr(sys.modules.get("ipykernel.kernelapp"), "IPKernelApp", None)
    return app is not None and bool(app.initialized())


def describe_task(environ: Mapping[str, str]) -> dict[str, Any]:
    """What people are shown of this process; nothing here is trusted by anybody."""
    if is_kernel():
        path = environ.get("JPY_SESSION_NAME") or None
        name = PurePath(path).name if path else "notebook kernel"
        kernel_id = environ.get(names.KERNEL_ID) or None
        return {"name": name[:256], "kind": "kernel", "kernel_id": kernel_id, "path": path}
    script = sys.argv[0] if sys.argv and sys.argv[0] not in ("", "-c", "-m") else ""
    name = PurePath(script).name if script else "python"
    path = os.path.abspath(script)[:4096] if script else None
    return {"name": name[:256] or "python", "kind": "process", "path": path}


class _Process:
    """This process's broker: the one thing that must be found from an import hook."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.broker: Broker | None = None

    def get(self) -> Broker:
        with self.lock:
            if self.broker is None:
                self.broker = Broker(os.environ, read_settings(os.environ))
                os.register_at_fork(after_in_child=self.forked)
                atexit.register(self.close)
            return self.broker

    def forked(self) -> None:
        self.lock = threading.Lock()
        if self.broker is not None:
            self.broker = self.broker.abandon_in_child()

    def close(self) -> None:
        if self.broker is not None:
            self.broker.close()


_process = _Process()


def broker() -> Broker:
    """This process's broker."""
    return _process.get()


def before_framework(module: str) -> None:
    """The import hook: a framework's module is about to run."""
    broker().before_framework(module)


def after_framework(module: str, loaded: ModuleType) -> None:
    """The import hook: a framework's module has run."""
    broker().after_framework(module, loaded)
