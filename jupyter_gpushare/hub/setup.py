"""``setup(c)``: sets all that ``jupyterhub_config.py`` needs, in one line.

By hand these are two services with tokens and scopes, a role, and variables and a mount for each
kind of spawner, and one that is forgotten shows only when somebody gets no GPU. So the whole is
worked out from the present configuration, as a :class:`Plan`, and then merged in. It replaces no
setting of the administrator, and a second call changes nothing. Call it last, because later
settings override it.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import pwd
import secrets
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from traitlets.config import Config

from ..protocol import heldport, names
from ..protocol.address import SYSTEM_SOCKET
from ..protocol.poolcalls import POOL_SOCKET
from ..protocol.sockets import answers
from ..satellites import Part, take, there
from .configuration import SpawnerKind, spawner_kind, spawner_sections, value

#: The node manager's rights at the Hub: to read a token's owner, the owner's groups and roles, and
#: the groups' properties. It can change nothing.
NODE_SCOPES: Final = (
    "read:users:name",
    "read:users:groups",
    "read:roles:users",
    "list:groups",
    "read:groups",
)
#: The rights of the service that runs a pool: it reads the groups' properties and members.
POOL_SCOPES: Final = ("list:groups", "read:groups")
SYSTEM_POOL: Final = "/var/lib/jupyter-gpushare-pool"
#: Runs a module, and starts it again at once when it is killed: the Hub looks only every 30 s.
_KEPT: Final = (sys.executable, "-m", "jupyter_gpushare.protocol.keeper")
#: The pages' port: one at which only root can listen, or where the Hub is not root's another.
ROOTS_PORT: Final = 204
PORT: Final = 10204
SYSTEM_LEDGER: Final = "/var/lib/jupyter-gpushare/ledger.sqlite"
#: Seconds for what a Hub that just ended has left running. What still runs then is another Hub's.
_ENDS_WITHIN: Final = 3.0
#: The default scopes of a server's own token: JupyterHub's role ``server``.
SERVER_SCOPES: Final = ("users:activity!user", "access:servers!server")


#: Addresses that this process keeps until it ends.
_held: Final[set[tuple[str, int | None]]] = set()
_only_looks: ContextVar[bool] = ContextVar("gpushare_only_looks", default=False)


@contextmanager
def only_looking() -> Iterator[None]:
    """Within it :func:`setup` says what it would set, and makes no file."""
    token = _only_looks.set(True)
    try:
        yield
    finally:
        _only_looks.reset(token)


class SetupError(ValueError):
    """The set-up cannot work as it was asked for; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings to make. ``warnings`` are sentences for the administrator."""

    # Not in the repr: there may be a token in it.
    services: tuple[Mapping[str, Any], ...] = field(repr=False)
    roles: tuple[Mapping[str, Any], ...]
    access: str
    environment: Mapping[str, str]
    #: How servers in containers see the socket's directory: the trait, and the directory.
    mount: tuple[str, str] | None
    warnings: tuple[str, ...] = ()
    #: Where that service is asked on which host a server starts.
    pool_socket: str = ""

    def lines(self) -> list[str]:
        """The plan for a terminal; without tokens."""
        told = []
        for service in self.services:
            what = " ".join(service["command"]) if "command" in service else "run by somebody else"
            at = f" at {service['url']}" if "url" in service else ""
            told.append(f"service {service['name']}{at}: {what}")
        for role in self.roles:
            told.append(f"role {role['name']}: {', '.join(role['scopes'])}")
        told.append(f"every user and every server's token may: {self.access}")
        told += [f"every server gets {name}={what}" for name, what in self.environment.items()]
        if self.pool_socket:
            told.append(f"the pool at {self.pool_socket} says on which host a server starts")
        if self.mount is not None:
            told.append("every container sees {1} ({0})".format(*self.mount))
        return told


def setup(
    c: Config,
    *,
    node: str | None = None,
    socket: str | None = None,
    ledger: str | None = None,
    quotas: Mapping[str, Any] | None = None,
    per_server: bool = False,
    failover_open: bool = True,
    simulate: str | None = None,
    node_arguments: Sequence[str] = (),
    node_user: str | None = None,
    token_file: str | None = None,
    name: str = "gpushare",
    url: str | None = "http://127.0.0.1",
    pool: bool | str = False,
) -> Plan:
    """Share this Hub's GPUs between its users. Returns what was set.

    ``node``: ``"managed"``, the Hub runs the node manager as a service of its
    own (the default where servers run on the Hub's host), or ``"external"``,
    somebody else does, systemd or a DaemonSet, with the token in
    ``token_file`` (made if it is not there) or the one configured for the
    service ``NAME-node``. ``socket`` is the node manager's, the same path for
    it and for the servers; by default ``/run/jupyter-gpushare/node.sock``, and
    for a managed one of a Hub that is not root's ``jupyter-gpushare/node.sock``
    in the Hub's own folder. ``ledger`` is a managed node manager's; by default
    ``/var/lib/jupyter-gpushare/ledger.sqlite``, or in the Hub's folder, too.

    ``quotas`` is ``{"default": …, "groups": {…}, "users": {…}}`` for a managed
    node manager; group properties ``gpushare`` need nothing here. With
    ``per_server`` each named server has its own. ``failover_open``: what
    kernels do when they get no GPU because the node manager is down: go on
    without one after a warning, or (``False``) raise. No spawn ever waits for
    it. ``simulate`` (``"2x24GiB"``), ``node_arguments`` and ``node_user`` (an
    OS user of its own) are the managed node manager's.

    ``name`` and ``url`` are the pages': ``/services/NAME/``, served at ``url``; without a port in
    it one is found that no other user has. The Hub holds it from now on: visitors' cookies go to
    whoever listens there. ``url=None``: no pages.

    ``pool``: several hosts as one. The pages' service runs the pool, which keeps what it knows in
    this folder, or (``True``) in ``/var/lib/jupyter-gpushare-pool``; ``quotas`` then hold on all
    hosts together. Each host runs a node manager of its own and joins
    (``jupyter gpushare pool token``).

    Raises :class:`SetupError`.
    """
    kind = spawner_kind(value(c, "JupyterHub", "spawner_class", None))
    is_managed = _is_managed(node, kind)
    if pool and url is None:
        raise SetupError("The service of the pages runs the pool: leave url as it is.")
    if not is_managed and (
        (quotas and not pool) or simulate or node_arguments or node_user or ledger
    ):
        raise SetupError(
            "quotas, simulate, ledger, node_arguments and node_user are for a node manager that "
            'the Hub runs (node="managed"). Put them into the configuration of yours: '
            "jupyter_gpushare_node_config.py."
        )
    # Beside the Hub's own files, where it is not root; not in one folder: the ledger's is private.
    here = Path.cwd() if is_managed and os.geteuid() != 0 else None
    if socket is None:
        socket = str(here / "jupyter-gpushare" / "node.sock") if here else SYSTEM_SOCKET
    if ledger is None:
        ledger = str(here / "jupyter-gpushare.sqlite") if here else SYSTEM_LEDGER
    node_name = f"{name}-node"
    scopes = [*NODE_SCOPES, *(["read:servers"] if per_server else [])]
    warnings: list[str] = []
    if url is not None:
        url, warning = _keep_port(c, name, url)
        warnings += [warning] if warning else []
    if is_managed and _stays(lambda: answers(socket)):
        warnings.append(
            f"A node manager answers at {socket} already, so this Hub's does not start. If it is "
            "another Hub's: a GPU has one owner. Give each Hub its own GPUs, socket and ledger: "
            'setup(c, node_arguments=["--NodeManagerApp.gpus=0,1"], socket=…, ledger=…).'
        )
    environment = {
        names.SOCKET: socket,
        names.IDENTITY: "hub",
        names.FALLBACK: "cpu" if failover_open else "error",
    }
    # Without pages it is still what tokens are for.
    pages: dict[str, Any] = {"name": name, "display": url is not None}
    if url is not None:
        pages |= {
            "url": url,
            "command": [*_KEPT, "jupyter_gpushare.hub"],
            "oauth_no_confirm": True,
            "environment": {names.SOCKET: socket},
        }
    pool_socket = ""
    if pool:
        folder = os.path.abspath(pool) if isinstance(pool, str) else SYSTEM_POOL
        if here and pool is True:
            folder = str(here / "jupyter-gpushare-pool")
        as_system = folder == SYSTEM_POOL and os.geteuid() == 0
        pool_socket = POOL_SOCKET if as_system else f"{folder}/pool.sock"
        pages["command"].append(f"--Pool.socket={pool_socket}")
        base = str(value(c, "JupyterHub", "base_url", "/")).strip("/")
        environment[names.POOL_URL] = (
            "/".join(filter(None, [str(pages["url"]).rstrip("/"), base, "services", name, ""]))
            + "/"
        )
        pages["command"] += ["--GpuShareHub.pool=True", f"--Pool.folder={folder}"]
        if quotas:
            pages["environment"][names.QUOTAS] = quotas_as_text(quotas)
    service: dict[str, Any] = {"name": node_name, "display": False}
    access = f"access:services!service={name}"
    if is_managed:
        service["command"] = [
            *_KEPT,
            *("jupyter_gpushare.cli", "node", "--hub", "--shared", "--exit-with-parent"),
            f"--socket={socket}",
            f"--ledger={ledger}",
            f"--Hub.service={name}",
            *([f"--simulate={simulate}"] if simulate else []),
            *(["--Hub.per_server=True"] if per_server else []),
            *node_arguments,
        ]
        if quotas and not pool:
            # Everybody may read a command; an environment only its own user.
            service["environment"] = {names.QUOTAS: quotas_as_text(quotas)}
        if node_user is not None:
            service["user"] = node_user
    elif token_file is not None:
        try:
            service["api_token"] = _shared_token(Path(token_file))
        except OSError as error:
            if not failover_open:
                raise SetupError(f"{token_file}: {error.strerror}. {_TOKEN_FIX}") from error
            warnings.append(
                f"{token_file} cannot be read or made ({error.strerror}), so the node manager "
                f"will not be let in and nobody gets a GPU. {_TOKEN_FIX}"
            )
    elif not any(
        one.get("name") == node_name and one.get("api_token") for one in _list(c, "services")
    ):
        raise SetupError(
            f"The node manager needs a token of its own: give setup(c) a token_file, or the "
            f"service {node_name!r} an api_token in c.JupyterHub.services."
        )
    roles = [{"name": node_name, "services": [node_name], "scopes": scopes}]
    if pool:
        roles.append({"name": f"{name}-pool", "services": [name], "scopes": [*POOL_SCOPES]})
    mounts = {SpawnerKind.DOCKER: "DockerSpawner.volumes", SpawnerKind.KUBE: "KubeSpawner"}
    plan = Plan(
        services=(pages, service),
        roles=tuple(roles),
        access=access,
        environment=environment,
        mount=(mounts[kind], os.path.dirname(socket)) if kind in mounts else None,
        pool_socket=pool_socket,
        warnings=tuple(warnings),
    )
    apply(c, plan, int(importlib.metadata.version("jupyterhub").partition(".")[0]))
    for sentence in warnings:
        print(f"jupyter_gpushare: {sentence}", file=sys.stderr)
    return plan


_TOKEN_FIX: Final = (
    "Make it as root: `install -m 600 /dev/null FILE && openssl rand -hex 32 > FILE`."
)


# -- from the wishes to the plan ----------------------------------------------------------------


def _is_managed(node: str | None, kind: SpawnerKind) -> bool:
    """Whether the Hub runs the node manager. Raises :class:`SetupError`."""
    if node not in (None, "managed", "external"):
        raise SetupError(f'node is "managed" or "external", not {node!r}.')
    if node == "managed" and kind is SpawnerKind.KUBE:
        raise SetupError(
            "With KubeSpawner the Hub's pod has no GPUs: run the node manager as a DaemonSet on "
            'the nodes that have them (docs/deploy) and leave node="external".'
        )
    return kind is not SpawnerKind.KUBE if node is None else node == "managed"


def quotas_as_text(quotas: Mapping[str, Any]) -> str:
    """``quotas`` as a node manager's environment says them. Raises :class:`SetupError`."""
    known = ("default", "groups", "users")
    if unknown := sorted(set(quotas) - set(known)):
        raise SetupError(f"quotas: unknown {unknown[0]!r}; known are {', '.join(known)}.")
    try:
        return json.dumps({part: dict(told) for part, told in quotas.items() if told})
    except (TypeError, ValueError) as error:
        raise SetupError(f"quotas: {error}.") from None


def _keep_port(c: Config, name: str, url: str) -> tuple[str, str | None]:
    """The pages' URL with a port that is the Hub's until it ends, and what is to be told of it.

    Held before the Hub sets its proxy's route. Another Hub of the same user may share the port, so
    whoever listens there now keeps it. Raises :class:`SetupError` where a port that the
    configuration names is another user's.
    """
    written = [one for one in _list(c, "services") if one.get("name") == name]
    url = next((one["url"] for one in written if one.get("url")), url)
    user = next((one["user"] for one in written if one.get("user")), None)
    where = urlsplit(url)
    if where.port is not None:
        choice = [where.port]
    elif os.geteuid() == 0 and not user and heldport.roots_only(ROOTS_PORT):
        choice = [ROOTS_PORT, PORT, 0]
    else:
        choice = [PORT, 0]
    warning = None
    for port in choice:
        tried = url if where.port else where._replace(netloc=f"{where.netloc}:{port}").geturl()
        if _only_looks.get():
            return tried, None
        try:
            if port and _is_another_hubs(tried, user):
                warning = f"Another program of this user listens at {tried}, as a Hub's pages do."
                if not where.port:
                    warning += " The pages are served at another port."
                    continue
                warning += " Leave the port out of url, and a free one is found."
            return _held_url(tried, user), warning
        except (OSError, KeyError) as error:
            if port == ROOTS_PORT != where.port:
                continue  # taken by another program of root's
            who = heldport.listener(tried) if port else None
            has = f": user {who} listens there" if who is not None else ""
            warning = f"The pages' address {tried} cannot be had ({error}{has})."
            warning += " They are served at a free port instead." if port != choice[-1] else ""
    raise SetupError(
        f"{warning} The proxy would give visitors' cookies to whoever listens there. End that "
        "program (`ss -ltnp` names it), or leave the port out of url, and a free one is found."
    )


def _stays(there: Callable[[], bool]) -> bool:
    """Whether it is still ``there`` when all that a Hub left has had time to end."""
    if _only_looks.get():
        return False
    until = time.monotonic() + _ENDS_WITHIN
    while there():
        if time.monotonic() > until:
            return True
        time.sleep(0.1)
    return False


def _is_another_hubs(url: str, user: str | None) -> bool:
    """Whether a program of the pages' own user, who may share the address, listens there."""
    uid = _uid(user)
    owner = os.geteuid() if uid is None else uid
    return (url, uid) not in _held and _stays(lambda: heldport.listener(url) == owner)


def _uid(user: str | None) -> int | None:
    return pwd.getpwnam(user).pw_uid if user else None


def _held_url(url: str, user: str | None) -> str:
    """Hold the address until this process ends; the URL with the port that it has."""
    uid = _uid(user)
    if (url, uid) in _held:
        return url
    held = heldport.hold(url, uid)
    where = urlsplit(url)
    if where.port == 0 and held:
        free = held[0].getsockname()[1]
        url = where._replace(netloc=f"{where.netloc.removesuffix(':0')}:{free}").geturl()
    for keeper in held:
        keeper.detach()  # it stays open
    _held.add((url, uid))
    return url


def _shared_token(path: Path) -> str:
    """The token in ``path``, which is made if it is not there. Raises :class:`OSError`."""
    if _only_looks.get() and not path.exists():
        return "(made when JupyterHub starts)"
    try:
        # Exclusively: two that start at the same time must not each make a token of their own.
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise SetupError(f"{path} can be read by others: run `chmod 600 {path}`.") from None
        token = path.read_text(encoding="ascii").strip()
        if len(token) < 32:
            raise SetupError(f"{path} holds no token. {_TOKEN_FIX}") from None
        return token
    token = secrets.token_hex(32)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(token + "\n")
    return token


# -- from the plan to the configuration ---------------------------------------------------------


def apply(c: Config, plan: Plan, major: int) -> None:
    """Merge ``plan`` into ``c``, for JupyterHub ``major``."""
    hub = c.JupyterHub
    services = [dict(service) for service in _list(c, "services")]
    for service in plan.services:
        _merge_named(services, service)
    hub.services = services
    roles = [dict(role) for role in _list(c, "load_roles")]
    for role in plan.roles:
        _merge_named(roles, role)
    _let_users_in(c, roles, plan.access, major)
    hub.load_roles = roles
    # Where the trait is set, the Hub does not look at the role any more: what that has comes along.
    own = next((role.get("scopes") for role in roles if role.get("name") == "server"), None)
    for section in spawner_sections(c, "server_token_scopes"):
        before = value(c, section, "server_token_scopes", []) or own or SERVER_SCOPES
        c[section].server_token_scopes = _and_scope(before, plan.access)
    for section in spawner_sections(c, "environment"):
        # The administrator's value of one of our variables stays.
        c[section].environment = {**plan.environment, **value(c, section, "environment", {})}
    if plan.mount is not None:
        _add_mount(c, *plan.mount)
    if plan.pool_socket and there(Part.PLACING):
        take(Part.PLACING).place_servers(c, plan.pool_socket)


def _let_users_in(c: Config, roles: list[dict[str, Any]], access: str, major: int) -> None:
    """Let every user use the pages, and with them every server's token that asks for it."""
    role = next((role for role in roles if role.get("name") == "user"), None)
    if role is not None and "scopes" in role:
        # An overridden role wins over extra_user_scopes.
        role["scopes"] = _union(role["scopes"], [access])
    elif major >= 6:
        extra = value(c, "JupyterHub", "extra_user_scopes", set())
        c.JupyterHub.extra_user_scopes = {*extra, access}
    else:
        _merge_named(roles, {"name": "user", "scopes": ["self", access]})


def _add_mount(c: Config, trait: str, path: str) -> None:
    """Show the directory, not the socket: a node manager that restarts makes a new socket."""
    if trait == "DockerSpawner.volumes":
        for section in spawner_sections(c, "volumes", "DockerSpawner"):
            before = value(c, section, "volumes", {})
            ours = {path: {"bind": path, "mode": "ro"}}
            c[section].volumes = {**ours, **before}
        return
    volume: dict[str, Any] = {
        "name": "jupyter-gpushare",
        "hostPath": {"path": path, "type": "DirectoryOrCreate"},
    }
    seen: dict[str, Any] = {"name": "jupyter-gpushare", "mountPath": path, "readOnly": True}
    for setting, ours in (("volumes", volume), ("volume_mounts", seen)):
        for section in spawner_sections(c, setting, "KubeSpawner"):
            before = value(c, section, setting, [])
            if isinstance(before, Mapping):
                # KubeSpawner also takes them by name, for charts that merge.
                c[section][setting] = {"jupyter-gpushare": ours, **before}
            elif all(entry.get("name") != "jupyter-gpushare" for entry in before):
                c[section][setting] = [*before, ours]


def _merge_named(entries: list[dict[str, Any]], ours: Mapping[str, Any]) -> None:
    """Add ``ours``, or fill in what the entry of the same name leaves open."""
    for entry in entries:
        if entry.get("name") == ours["name"]:
            for key, wanted in ours.items():
                if key in ("scopes", "services"):
                    entry[key] = _union(entry.get(key, ()), wanted)
                elif key == "environment":
                    entry[key] = {**wanted, **entry.get(key, {})}
                else:
                    entry.setdefault(key, wanted)
            return
    entries.append(dict(ours))


def _and_scope(before: Any, scope: str) -> Any:
    """``before``, a list of scopes or a function of the spawner that gives one, with ``scope``."""
    if not callable(before):
        return _union(before, [scope])
    # Ours already, from an earlier call: a second one changes nothing.
    if getattr(before, "gpushare_adds", None) == scope:
        return before

    async def scopes(spawner: Any) -> list[str]:
        given = before(spawner)
        if hasattr(given, "__await__"):
            given = await given
        return _union(given or SERVER_SCOPES, [scope])

    scopes.gpushare_adds = scope  # type: ignore[attr-defined]
    return scopes


def _union(before: Any, more: Sequence[str]) -> list[str]:
    return [*before, *(entry for entry in more if entry not in before)]


def _list(c: Config, setting: str) -> list[Any]:
    return list(value(c, "JupyterHub", setting, []))
