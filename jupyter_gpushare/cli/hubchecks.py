"""The checks of ``jupyter gpushare doctor --hub``: JupyterHub's configuration and its node manager.

The configuration is executed, as JupyterHub does, and changed nowhere; ``setup(c)`` makes no file
then. The checks look at its final values: ``setup(c)``, a chart, or an administrator may have
set them.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from traitlets.config import Config
from traitlets.config.loader import PyFileConfigLoader

from ..console.check import Check, ok, problem, warning
from ..console.node import Node, NodeRefused, NodeSilent
from ..hub.configuration import SpawnerKind, spawner_kind, spawner_sections, value
from ..hub.setup import NODE_SCOPES, only_looking
from ..protocol import heldport, names
from ..protocol.sockets import user_name

#: The default places of JupyterHub's configuration; the first that exists counts.
PLACES: Final = (
    "jupyterhub_config.py",
    "/etc/jupyterhub/jupyterhub_config.py",
    "/srv/jupyterhub/jupyterhub_config.py",
    "/opt/jupyterhub/etc/jupyterhub/jupyterhub_config.py",
)
OLDEST: Final = (5, 3)
_ONE_LINE: Final = "End jupyterhub_config.py with: from jupyter_gpushare.hub import setup; setup(c)"


def examine_hub(path: str | None) -> Iterator[Check]:
    """All checks of the Hub whose configuration is at ``path``."""
    yield jupyterhub()
    found = Path(path) if path else next((p for p in map(Path, PLACES) if p.is_file()), None)
    if found is None or not found.is_file():
        yield problem(
            "hub configuration",
            f"There is none at {found or ' or '.join(PLACES)}.",
            "jupyter gpushare doctor --hub-config=/path/to/jupyterhub_config.py",
        )
        return
    try:
        # The Hub runs it as root, with secrets in it: what it prints is its own.
        with only_looking():
            c = PyFileConfigLoader(found.name, str(found.absolute().parent)).load_config()
    except Exception as error:  # noqa: BLE001 - it is somebody's program, anything can happen
        yield problem(
            "hub configuration",
            f"{found} cannot be run: {type(error).__name__}: {error}",
            "Mend it; JupyterHub does not start with it either.",
        )
        return
    yield ok("hub configuration", str(found.absolute()))
    yield from configuration(c, {0, os.geteuid(), found.stat().st_uid}, found)
    yield from identity(_socket(c))


def jupyterhub() -> Check:
    """Whether JupyterHub is installed, and new enough."""
    try:
        version = importlib.metadata.version("jupyterhub")
    except importlib.metadata.PackageNotFoundError:
        return problem(
            "jupyterhub",
            "JupyterHub is not installed in this Python.",
            "Run this with the Python that JupyterHub runs in.",
        )
    parts = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if parts < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        return problem(
            "jupyterhub",
            f"JupyterHub {version} is older than {oldest}.",
            f"pip install 'jupyterhub>={oldest}'",
        )
    return ok("jupyterhub", f"JupyterHub {version}")


# -- what the configuration says -----------------------------------------------------------------


def configuration(
    c: Config, owners: Collection[int] = (0,), file: Path | None = None
) -> Iterator[Check]:
    """The settings for gpushare, line by line, as they are in ``file``.

    ``owners``: the users as which the Hub may run.
    """
    services = {str(entry.get("name")): entry for entry in value(c, "JupyterHub", "services", [])}
    node = next((name for name in services if name.endswith("-node") and _is_ours(name)), None)
    if node is None:
        yield problem("service", "No service is registered for the node manager.", _ONE_LINE)
        return
    pages = node.removesuffix("-node")
    yield _node_service(node, services[node])
    yield _pages_service(pages, services.get(pages))
    if "url" in services.get(pages, {}):
        yield _pages_port(services[pages], owners, file)
    yield _role(c, node)
    access = f"access:services!service={pages}"
    yield _user_access(c, access)
    for section in spawner_sections(c, "server_token_scopes"):
        yield _token_scopes(c, section, access)
    for section in spawner_sections(c, "environment"):
        yield _environment(c, section)
    yield from _mounts(c)
    yield from _group_quotas(c)


def _is_ours(name: str) -> bool:
    return "gpushare" in name


def _node_service(name: str, service: Mapping[str, Any]) -> Check:
    if "command" in service:
        return ok("service", f"{name}: the Hub runs {' '.join(map(str, service['command']))}")
    if service.get("api_token"):
        return ok("service", f"{name}: run by somebody else, with a token of its own")
    return problem(
        "service",
        f"{name} has neither a command nor an api_token: nobody runs it with a token.",
        _ONE_LINE,
    )


def _pages_service(name: str, service: Mapping[str, Any] | None) -> Check:
    if service is None or "url" not in service:
        return warning(
            "pages",
            f"There are no pages at /services/{name}/.",
            "Remove url=None from setup(c) if you want them.",
        )
    return ok("pages", f"/services/{name}/ are served at {service['url']}")


def _pages_port(
    service: Mapping[str, Any], owners: Collection[int], file: Path | None = None
) -> Check:
    """Who listens, or could listen, where the proxy sends visitors with their cookies."""
    url, name = str(service["url"]), "pages' port"
    where = urlsplit(url)
    who = heldport.listener(url)
    if who is not None and who not in owners:
        return problem(
            name,
            f"User {user_name(who)} listens at {url}, not the Hub: what is sent there, visitors' "
            "cookies too, is theirs.",
            f"End that program (`ss -ltnp sport = :{where.port}` names it) and restart JupyterHub.",
        )
    if who is not None and file is not None and (others := _others_file(where.port, file)):
        return problem(
            name,
            f"The Hub with {others} has its pages at {url}. This one's are at another port, or its "
            "visitors and their cookies go there; and of two Hubs only one can have a GPU.",
            'Give each Hub its own: setup(c, url="http://127.0.0.1:PORT", socket=…, ledger=…, '
            'node_arguments=["--NodeManagerApp.gpus=0,1"]).',
        )
    if heldport.roots_only(where.port or 0):
        return ok(name, f"{url}: only root can listen there")
    if who is None:
        return warning(
            name,
            f"Nobody listens at {url}, and until JupyterHub starts every user of its host can.",
            "Start JupyterHub: it holds the port from then on, and finds another if it is taken.",
        )
    return ok(name, f"{url} is held by the Hub's user {user_name(who)}")


def _others_file(port: int | None, ours: Path) -> Path | None:
    """The configuration of the Hub whose service listens at ``port``, if it is not ``ours``."""
    import psutil

    try:
        listening = {
            each.pid
            for each in psutil.net_connections("tcp")
            if each.status == psutil.CONN_LISTEN and each.laddr.port == port and each.pid
        }
        for process in (parent for pid in listening for parent in psutil.Process(pid).parents()):
            if (found := hubs_file(process.cmdline(), process.cwd())) is not None:
                return None if os.path.realpath(found) == os.path.realpath(ours) else found
    except psutil.Error:  # another user's, or gone by now
        return None
    return None


def hubs_file(command: Sequence[str], folder: str) -> Path | None:
    """The configuration that a process in ``folder`` runs, if its command is JupyterHub's."""
    programs = {os.path.basename(word) for word in command[:3]}
    if programs.isdisjoint({"jupyterhub", "jupyterhub.app"}):
        return None
    told = PLACES[0]
    for word, after in zip(command, [*command[1:], ""], strict=True):
        option, _, text = word.partition("=")
        if option in ("-f", "--config", "--JupyterHub.config_file"):
            told = text or after
    return Path(folder, told)


def _role(c: Config, node: str) -> Check:
    roles = value(c, "JupyterHub", "load_roles", [])
    granted = {
        str(scope)
        for role in roles
        if node in role.get("services", ())
        for scope in role.get("scopes", ())
    }
    missing = [scope for scope in NODE_SCOPES if not _has(scope, granted)]
    if missing:
        text = f"{node} lacks the scopes {', '.join(missing)}."
        return problem("role", text, f"Add them to its role, or: {_ONE_LINE}")
    return ok("role", f"{node} may: {', '.join(sorted(granted))}")


def _has(scope: str, granted: set[str]) -> bool:
    """Whether the scope is present, or a broader one of JupyterHub's tree."""
    broader = {
        "read:users:name": {"read:users", "admin:users", "list:users"},
        "read:users:groups": {"read:users", "admin:users"},
        "read:roles:users": {"read:roles"},
        "list:groups": {"admin:groups"},
        "read:groups": {"admin:groups", "groups"},
    }
    return not {scope, *broader.get(scope, ())}.isdisjoint(granted)


def _user_access(c: Config, access: str) -> Check:
    roles = value(c, "JupyterHub", "load_roles", [])
    user = next((role for role in roles if role.get("name") == "user" and "scopes" in role), None)
    given = user["scopes"] if user else value(c, "JupyterHub", "extra_user_scopes", ())
    if access in given or "access:services" in given:
        return ok("users", f"every user may {access}")
    return problem("users", f"Users may not {access}.", _ONE_LINE)


def _token_scopes(c: Config, section: str, access: str) -> Check:
    scopes = value(c, section, "server_token_scopes", None)
    name = f"c.{section}.server_token_scopes"
    if callable(scopes):
        if getattr(scopes, "gpushare_adds", None) == access:
            return ok("server tokens", f"{name}: a function, to which {access} is added")
        return warning(
            "server tokens",
            f"{name} is a function: whether it gives {access} shows when a server starts.",
        )
    if scopes and (access in scopes or "access:services" in scopes):
        return ok("server tokens", f"{name}: {', '.join(scopes)}")
    return problem(
        "server tokens",
        f"{name} does not give servers {access}: their kernels get no GPU.",
        _ONE_LINE,
    )


def _environment(c: Config, section: str) -> Check:
    environment = value(c, section, "environment", {})
    ours = {name: str(what) for name, what in environment.items() if name.startswith(names.SWITCH)}
    missing = [name for name in (names.SOCKET, names.IDENTITY) if name not in ours]
    if missing:
        return problem(
            "servers' environment",
            f"c.{section}.environment lacks {', '.join(missing)}.",
            "Call setup(c) last in jupyterhub_config.py: what is set after it goes before it.",
        )
    told = ", ".join(
        f"{name}={'…' if 'TOKEN' in name else what}" for name, what in sorted(ours.items())
    )
    return ok("servers' environment", told)


def _mounts(c: Config) -> Iterator[Check]:
    directory = os.path.dirname(_socket(c) or "")
    kind = spawner_kind(value(c, "JupyterHub", "spawner_class", None))
    if kind is SpawnerKind.DOCKER:
        seen = [
            section
            for section in spawner_sections(c, "volumes", "DockerSpawner")
            if directory in value(c, section, "volumes", {})
        ]
    elif kind is SpawnerKind.KUBE:
        seen = [
            section
            for section in spawner_sections(c, "volume_mounts", "KubeSpawner")
            if any(entry.get("mountPath") == directory for entry in _kube_mounts(c, section))
        ]
    else:
        yield ok("mounts", "servers run on the Hub's host and see the socket")
        return
    if seen:
        yield ok("mounts", f"every container sees {directory} (c.{seen[0]})")
    else:
        yield problem("mounts", f"Containers do not see {directory}.", _ONE_LINE)


def _kube_mounts(c: Config, section: str) -> Sequence[Mapping[str, Any]]:
    mounts = value(c, section, "volume_mounts", [])
    return list(mounts.values()) if isinstance(mounts, Mapping) else mounts


def _group_quotas(c: Config) -> Iterator[Check]:
    """Properties of groups: what the node manager would make of them."""
    from ..quotas.config import NodeSize, parse_quota

    groups = value(c, "JupyterHub", "load_groups", {})
    good = []
    for name, group in groups.items():
        properties = group.get("properties") if isinstance(group, Mapping) else None
        if not isinstance(properties, Mapping) or "gpushare" not in properties:
            continue
        try:
            parse_quota(f"group {name!r}", properties["gpushare"], NodeSize(1, 2**30))
        except ValueError as error:
            yield problem("group quota", str(error), "Mend it in c.JupyterHub.load_groups.")
        else:
            good.append(f"{name} {dict(properties['gpushare'])}")
    if good:
        yield ok("group quotas", "; ".join(good))


# -- who answers -----------------------------------------------------------------------------


def identity(socket: str | None) -> Iterator[Check]:
    """Whether the node manager that servers will find knows people by their tokens."""
    if socket is None:
        return
    try:
        with Node(socket, None) as node:
            who = node.hello.get("environment")
    except NodeRefused as refused:
        if "JupyterHub token" in str(refused):
            yield ok("identity", f"{socket} lets nobody in without a JupyterHub token")
        else:
            yield problem("identity", f"{socket} refuses: {refused}", "See the node manager's log.")
    except NodeSilent as silent:
        yield warning(
            "identity",
            f"No node manager answers now: {silent}",
            "Start JupyterHub, if it runs the node manager, or the service that does.",
        )
    else:
        yield warning(
            "identity",
            f"{socket} let this user in as {who} without a token: it knows people by their OS "
            "user, so everybody must have one of their own.",
            "Start it with --hub.",
        )


def _socket(c: Config) -> str | None:
    for section in spawner_sections(c, "environment"):
        found = value(c, section, "environment", {}).get(names.SOCKET)
        if isinstance(found, str):
            return found
    return None
