"""Lets the pool choose the host on which any spawner starts a server.

:func:`choose_host` is the one hook. :class:`Placed` is a ``pre_spawn_hook`` around it, and
:func:`on_kubernetes` and :func:`on_slurm` say the choice to the spawners that place servers
themselves. Another spawner needs one function of two lines::

    def mine(spawner, host):
        spawner.some_setting = host

    c.MySpawner.pre_spawn_hook = Placed(mine)
"""

from __future__ import annotations

import html
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from traitlets import TraitType
from traitlets.config import Config

from ..hub.configuration import spawner_sections, value
from ..protocol.poolcalls import POOL_SOCKET
from .wishes import Choice, PoolAway, PoolRefused, Wish, where

#: The label by which Kubernetes knows a node, where the pool's host has the node's name.
HOST_LABEL: Final = "kubernetes.io/hostname"


class NoHost(Exception):
    """No host can be chosen. JupyterHub shows ``jupyterhub_message`` to the person who waits."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.jupyterhub_message = message


async def choose_host(spawner: Any, socket: str = POOL_SOCKET) -> tuple[Choice, ...]:
    """The hosts on which this server may start, the best first; never none.

    A host that is full now comes after the others, and the person waits there. Raises
    :class:`NoHost` where the pool has no such GPU, and :class:`PoolAway` where it does not answer.
    """
    try:
        wish = Wish.read(spawner.user_options)
        ranked = await where(spawner.user.name, wish, socket)
    except ValueError as error:
        raise NoHost(f"No server was started: {error} Choose again.") from error
    except PoolRefused as refused:
        raise NoHost(f"No server was started: {refused}") from refused
    possible = tuple(choice for choice in ranked if choice.possible)
    if not possible:
        why = " ".join(str(choice) for choice in ranked[:5])
        raise NoHost(
            f"No host of the pool has what you wish for ({wish}), so no server was started. {why} "
            "Choose fewer GPUs, less memory or another kind, or ask an administrator."
        )
    return possible


Place = Callable[[Any, str], None]
Hook = Callable[[Any], Any]


class Placed:
    """A ``pre_spawn_hook``: the pool's first host is said to the spawner by ``place``.

    ``before`` is the hook that was there already. While the pool is away the spawner's own
    scheduler chooses. The spawner's ``pool_host`` is the pool's name for the host, for what the
    administrator makes of it: where two jobs have parts of one host, each has a name.
    """

    def __init__(
        self, place: Place, *, socket: str = POOL_SOCKET, before: Hook | None = None
    ) -> None:
        self._place = place
        self._socket = socket
        self._before = before

    async def __call__(self, spawner: Any) -> None:
        if self._before is not None:
            done = self._before(spawner)
            if inspect.isawaitable(done):
                await done
        try:
            first, *_ = await choose_host(spawner, self._socket)
            spawner.log.info("jupyter_gpushare: server of %s: %s", spawner.user.name, first)
        except PoolAway as away:
            spawner.log.warning("jupyter_gpushare: %s: the spawner chooses the host itself", away)
            # Takes back what an earlier start said, which may be full or away by now.
            first = Choice("")
        spawner.pool_host = first.host
        self._place(spawner, first.at)


def on_kubernetes(spawner: Any, host: str) -> None:
    """Tell KubeSpawner: its pod runs on this node. ``""`` takes back what was said before."""
    terms = _configured(spawner, "node_affinity_required")
    if host:
        here = {"key": HOST_LABEL, "operator": "In", "values": [host]}
        # Kubernetes takes a node that any one of the terms allows: ours has to be in each.
        terms = [
            {**term, "matchExpressions": [*term.get("matchExpressions", ()), here]}
            for term in terms or [{}]
        ]
    spawner.node_affinity_required = terms


def on_slurm(spawner: Any, host: str) -> None:
    """Tell batchspawner's SlurmSpawner: its job runs on this node.

    On the command line, which goes before the script: a form such as jupyterhub_moss' may write
    options of its person into that one, in place of all others.
    """
    submit = _configured(spawner, "batch_submit_cmd")
    spawner.batch_submit_cmd = f"{submit} --nodelist={host}" if host else submit


def place_servers(c: Config, socket: str) -> str:
    """Let the pool choose the hosts for the spawner that ``c`` names; what was set, in a sentence.

    Chains the hooks that are there, and replaces no form. A second call changes nothing.
    """
    spawner = value(c, "JupyterHub", "spawner_class", None)
    bases = [cls.__name__ for cls in spawner.__mro__] if isinstance(spawner, type) else []
    text = " ".join([str(spawner), *bases]).lower()
    if "poolspawner" in text:
        if not value(c, "PoolSpawner", "pool_socket", ""):
            c.PoolSpawner.pool_socket = socket
        said = "PoolSpawner starts servers on the host that the pool ranks first"
    elif place := next((place for word, place in _PLACES.items() if word in text), None):
        for section in spawner_sections(c, "pre_spawn_hook"):
            before = value(c, section, "pre_spawn_hook", None)
            if not isinstance(before, Placed):
                c[section].pre_spawn_hook = Placed(place, socket=socket, before=before)
        said = "a pre_spawn_hook asks the pool on which host a server starts"
    else:
        return (
            "servers start where their spawner starts them: use PoolSpawner, or "
            "jupyter_gpushare.hub.placing.Placed as its pre_spawn_hook"
        )
    forms = [
        value(c, section, "options_form", "") for section in spawner_sections(c, "options_form")
    ]
    # A class with a form of its own, such as jupyterhub_moss', has a method in the setting's place.
    own = isinstance(spawner, type) and not isinstance(
        getattr(spawner, "options_from_form", None), TraitType
    )
    if not any(forms) and not own and not value(c, "KubeSpawner", "profile_list", None):
        c.Spawner.options_form = options_form()
        c.Spawner.options_from_form = options_from_form
    return said


#: How a spawner is told the host, by a part of its name.
_PLACES: Final[Mapping[str, Place]] = {"kubespawner": on_kubernetes, "slurm": on_slurm}


def _configured(spawner: Any, setting: str) -> Any:
    """The setting as the administrator gave it: a spawner starts its server more than once."""
    kept = spawner.__dict__.setdefault("_gpushare_configured", {})
    return kept.setdefault(setting, getattr(spawner, setting))


def options_form(kinds: Sequence[str] = ()) -> str:
    """A form for ``c.Spawner.options_form``: GPUs, memory, and one of ``kinds`` or any."""
    shown = [("", "any kind"), *((kind, kind) for kind in kinds)]
    options = "".join(
        f'<option value="{html.escape(value)}">{html.escape(text)}</option>'
        for value, text in shown
    )
    return (
        '<div class="form-group"><label for="gpushare-gpus">GPUs</label>'
        '<input id="gpushare-gpus" name="gpus" type="number" min="0" value="1" '
        'class="form-control"></div>'
        '<div class="form-group"><label for="gpushare-memory">Memory on each GPU</label>'
        '<input id="gpushare-memory" name="gpu_memory" placeholder="24GiB" '
        'class="form-control"></div>'
        '<div class="form-group"><label for="gpushare-kind">Kind of GPU</label>'
        f'<select id="gpushare-kind" name="gpu_kind" class="form-control">{options}</select></div>'
    )


def options_from_form(given: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """For ``c.Spawner.options_from_form``: the fields of :func:`options_form`, and no others.

    Raises ``ValueError``, which JupyterHub shows above the form.
    """
    options = {name: values[0] for name, values in given.items() if name in _FIELDS and values}
    Wish.read(options)
    return options


_FIELDS: Final = ("gpus", "gpu_memory", "gpu_kind")
