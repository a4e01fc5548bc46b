"""Sets variables for kernels and terminals: the sockets, the kernel's id, the notebook's settings.

A kernel's id is not in its environment by itself, so it is added where every
kernel of this server passes: ``MultiKernelManager.pre_start_kernel(name,
kwargs)``. It is the last step before the kernel manager is started, it is
called by the synchronous and the asynchronous manager and by their
subclasses, and it hands over the very ``kwargs`` that the start uses. What is
put into ``kwargs["env"]`` is kept by the kernel manager as its launch
arguments, so restarts and automatic restarts have it too. Managers that start
kernels elsewhere (a gateway) do not pass here, and there a local socket would
be of no use.

The methods are wrapped on the *instances* of this server, never on the
classes, and each wrapper calls what it found: subclasses and other extensions
that do the same keep working.

At its start a kernel gets the settings of the notebook whose path its session has then. JupyterLab
4.6 gives a made-up path first and the real one just afterwards. So a kernel asks again when it
needs the settings (`KernelEnvironment.notebook_of`), and uses the first ones only if no answer
comes.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import math
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

from jupyter_core.utils import ensure_async

from jupyter_gpushare.protocol import names
from jupyter_gpushare.protocol.batchjob import set_here
from jupyter_gpushare.protocol.notebook import Notebook

NOTEBOOK_KEYS = ("gpus", "memory", "class", "reserve")
"""The keys of a notebook's ``gpushare`` metadata that are passed on."""

_READ_TIMEOUT = 2.0  # seconds a kernel's start may wait for the notebook's metadata
_LARGEST_NOTEBOOK = 64 * 2**20  # bytes; a larger notebook is not parsed for a few words
_LONGEST_VALUE = 256  # characters of one metadata value
_NAMED_WITHIN = 1.0  # seconds that JupyterLab may take to say which notebook a session is for
_NAMED_POLL = 0.05  # seconds between two looks

#: What a lease of a process's own changes in its environment.
_OF_A_LEASE = (names.LEASE, names.SECRET, names.HIDDEN, "CUDA_VISIBLE_DEVICES")

# The notebook of the kernel that is being started in this asyncio task.
_starting_for: ContextVar[str | None] = ContextVar("gpushare_starting_for", default=None)


def _is_at(socket: str) -> dict[str, str]:
    """Where the node manager is, for all but jobs of a batch system that are submitted there."""
    return {names.SOCKET: socket, names.SET_IN: set_here(os.environ, socket)}


def notebook_wishes(metadata: object) -> str | None:
    """Return the JSON text of a notebook's ``gpushare`` metadata, ``None`` when it has none.

    Only known keys with plain values are kept; the kernel's side judges them.
    """
    if not isinstance(metadata, Mapping):
        return None
    gpushare = metadata.get("gpushare")
    if not isinstance(gpushare, Mapping):
        return None
    wishes = {key: gpushare[key] for key in NOTEBOOK_KEYS if _is_plain(gpushare.get(key))}
    return json.dumps(wishes) if wishes else None


def _is_plain(value: object) -> bool:
    match value:
        case bool():
            return False
        case int():
            return abs(value) < 2**53
        case float():
            return math.isfinite(value)
        case str():
            return len(value) <= _LONGEST_VALUE
    return False


def _may_be_notebook(path: object, kind: object) -> bool:
    """Whether a session may be a notebook's; an old front end does not tell the kind."""
    if not isinstance(path, str):
        return False
    return kind == "notebook" or (kind is None and path.endswith(".ipynb"))


class KernelEnvironment:
    """Puts our variables into the environment of every kernel and terminal of one server.

    ``socket`` returns the node manager's socket path, or ``None`` when this
    server has none (then kernels get nothing from us and stay inert);
    ``notebooks`` the path where kernels ask for their notebooks.
    ``settings`` are further variables that apply where the environment does
    not have them already. ``renamed`` is told a kernel's id and the new path
    of its notebook.
    """

    def __init__(
        self,
        *,
        kernel_manager: Any,
        session_manager: Any,
        contents_manager: Any,
        socket: Callable[[], str | None],
        notebooks: Callable[[], str | None],
        settings: Mapping[str, str],
        renamed: Callable[[str, str], Awaitable[None]],
        log: logging.Logger | logging.LoggerAdapter[Any],
    ) -> None:
        self._kernels = kernel_manager
        self._sessions = session_manager
        self._contents = contents_manager
        self._socket = socket
        self._door = notebooks
        self._settings = dict(settings)
        self._renamed = renamed
        self._log = log
        self._wrapped: list[tuple[Any, str, Callable[..., Any]]] = []
        self._at_start = {name: os.environ.get(name) for name in _OF_A_LEASE}

    def install(self) -> None:
        """Wrap the managers' methods."""
        self._wrap(self._kernels, "pre_start_kernel", self._pre_start)
        self._wrap(self._kernels, "restart_kernel", self._restart)
        self._wrap(self._sessions, "start_kernel_for_session", self._session_start)
        self._wrap(self._sessions, "update_session", self._session_update)

    def uninstall(self) -> None:
        """Remove our wrappers, except where another extension has wrapped them."""
        for owner, name, wrapper in self._wrapped:
            if vars(owner).get(name) is wrapper:
                delattr(owner, name)
        self._wrapped.clear()

    def add_to(self, env: MutableMapping[str, str]) -> None:
        """Add our variables to a process's environment, if there is a node manager.

        The environment wins over settings.
        """
        socket = self._socket()
        if socket is None:
            return
        for name, value in self._settings.items():
            env.setdefault(name, value)
        env.update(_is_at(socket))

    def _take_out_our_lease(self, env: MutableMapping[str, str]) -> None:
        """A GPU that a handler of this server has taken since is not the kernel's."""
        for name, before in self._at_start.items():
            if env.get(name) == os.environ.get(name):
                env.pop(name, None)
                if before is not None:
                    env[name] = before

    def add_to_terminals(self, terminal_manager: Any) -> None:
        """Have new terminals of ``terminal_manager`` (terminado's) get our variables."""
        extra = getattr(terminal_manager, "extra_env", None)
        if extra is None:
            extra = terminal_manager.extra_env = {}
        for name, value in self._settings.items():
            if name not in os.environ:
                extra.setdefault(name, value)
        if (socket := self._socket()) is not None:
            extra |= _is_at(socket)
            # Without a secret a terminal does not join a lease that the server itself has taken
            # since.
            extra.setdefault(names.SECRET, self._at_start[names.SECRET] or "")

    # -- wrappers -----------------------------------------------------------------------------

    def _wrap(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        """Have ``around`` called instead of a method, with it before the method's arguments."""
        original = getattr(owner, name, None)
        if original is None:  # a manager of another design: leave it alone
            self._log.debug("gpushare: %s has no %s", type(owner).__name__, name)
            return
        wrapper = partial(around, original)
        setattr(owner, name, wrapper)
        self._wrapped.append((owner, name, wrapper))

    def _pre_start(
        self, original: Callable[..., Any], kernel_name: str | None, kwargs: dict[str, Any]
    ) -> Any:
        found = original(kernel_name, kwargs)
        with self._guard("add to a kernel's environment"):
            kernel_id = found[-1]
            given = kwargs.get("env")
            # A copy: the caller's may be the server's own environment.
            env = dict(os.environ if given is None else given)
            self._take_out_our_lease(env)
            self.add_to(env)
            if names.SOCKET in env:
                env[names.KERNEL_ID] = kernel_id
                told = {names.NOTEBOOK_SOCKET: self._door(), names.NOTEBOOK: _starting_for.get()}
                for name, value in told.items():
                    env.pop(name, None)
                    if value is not None:
                        env[name] = value
                kwargs["env"] = env
        return found

    async def _session_start(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        wishes = None
        with self._guard("read the notebook's metadata"):
            given = inspect.signature(original).bind_partial(*args, **kwargs).arguments
            wishes = await self._read(given.get("path"), given.get("type"))
        # Not an attribute: several sessions may start at the same time, each in a task of its own.
        token = _starting_for.set(wishes)
        try:
            return await ensure_async(original(*args, **kwargs))
        finally:
            _starting_for.reset(token)

    async def _session_update(
        self, original: Callable[..., Any], session_id: str, **changes: Any
    ) -> Any:
        result = await ensure_async(original(session_id, **changes))
        if changes.get("path"):
            with self._guard("tell a notebook's new name"):
                session = await ensure_async(self._sessions.get_session(session_id=session_id))
                if _may_be_notebook(session.get("path"), session.get("type")):
                    place = self._place_of(session["path"])
                    await self._renamed(session["kernel"]["id"], place)
        return result

    async def _restart(
        self, original: Callable[..., Any], kernel_id: str, *args: Any, **kwargs: Any
    ) -> Any:
        with self._guard("refresh a kernel's environment"):
            await self._refresh(kernel_id)
        return await ensure_async(original(kernel_id, *args, **kwargs))

    # -- the notebook -------------------------------------------------------------------------

    async def _refresh(self, kernel_id: str) -> None:
        """Before a restart: the notebook's wishes may have been edited, the socket moved."""
        update_env = getattr(self._kernels, "update_env", None)
        if update_env is None or kernel_id not in self._kernels:
            return
        env: dict[str, str] = {}
        if (socket := self._socket()) is not None:
            env |= _is_at(socket)
        if (session := await self._session_of(kernel_id)) is not None:
            wishes = await self._read(session.get("path"), session.get("type"))
            # An empty one, not none: `update_env` only adds, and the wishes of before must go.
            env[names.NOTEBOOK] = wishes or "{}"
        if env:
            update_env(kernel_id=kernel_id, env=env)

    async def notebook_of(self, kernel_id: str) -> Notebook:
        """The notebook of a kernel as it is saved now; an empty one if the kernel has none."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _NAMED_WITHIN
        while True:
            session = await self._session_of(kernel_id)
            if session is None or not _may_be_notebook(session.get("path"), session.get("type")):
                return Notebook()
            path = session["path"]
            if await ensure_async(self._contents.file_exists(path)):
                metadata = await self._metadata(path)
                wishes = metadata.get("gpushare") if isinstance(metadata, Mapping) else None
                return Notebook(self._place_of(path), wishes)
            if loop.time() >= deadline:
                return Notebook()
            await asyncio.sleep(_NAMED_POLL)

    async def _session_of(self, kernel_id: str) -> Mapping[str, Any] | None:
        """The session of a kernel; of several, a notebook's rather than a console's."""
        sessions = [
            session
            for session in await ensure_async(self._sessions.list_sessions())
            if (session.get("kernel") or {}).get("id") == kernel_id
        ]
        notebooks = [session for session in sessions if session.get("type") == "notebook"]
        return next(iter(notebooks + sessions), None)

    def _place_of(self, path: str) -> str:
        """The notebook's folder and name on the host, as Jupyter tells its kernels."""
        return os.path.join(self._kernels.cwd_for_path(path), os.path.basename(path))

    async def _read(self, path: object, kind: object) -> str | None:
        if self._socket() is None or not _may_be_notebook(path, kind):
            return None
        async with asyncio.timeout(_READ_TIMEOUT):
            if not await ensure_async(self._contents.file_exists(path)):
                return None
            return notebook_wishes(await self._metadata(path))

    async def _metadata(self, path: object) -> object:
        get: Callable[..., Awaitable[Any]] = self._contents.get
        model: Any = await ensure_async(get(path, content=False))
        # Looked at without the content first: to parse a very large one would hold up the server.
        if (model.get("size") or 0) > _LARGEST_NOTEBOOK:
            return None
        model = await ensure_async(get(path, content=True, type="notebook"))
        return (model.get("content") or {}).get("metadata")

    @contextmanager
    def _guard(self, doing: str) -> Iterator[None]:
        """Kernels and sessions go on whether or not our part of it works."""
        try:
            yield
        except Exception:  # noqa: BLE001 - managers are pluggable: they may raise anything
            self._log.warning("gpushare could not %s; it goes on without", doing)
            self._log.debug("gpushare: the reason", exc_info=True)
