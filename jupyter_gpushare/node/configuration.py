"""The sections of the node manager's configuration: quotas, JupyterHub, policy, connections."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from traitlets import Dict, Unicode
from traitlets.config import Configurable

from ..daemon.hubapi import HubApi, hub_trust
from ..policy.words.config import PolicyConfig
from ..policy.words.settings import Unit, setting
from ..traits import Duration
from .host import systemd
from .people.hubidentity import HubTrust
from .settings.traits import traits_of
from .wire.transport import Limits

#: The name under which systemd hands over the node manager's token (``LoadCredential=``).
HUB_CREDENTIAL = "hub-token"


class Quotas(Configurable):
    """The most that an environment may hold."""

    default = Dict(
        help="""The quota of everybody who is named nowhere else, like
        {"gpus": 1, "memory": "16GiB", "weight": 1}. "gpus" may be "all"; "memory"
        may be 0.5, half of the (smallest) GPU; without it whole GPUs are given. Not set: all
        GPUs, whole."""
    ).tag(config=True)
    groups = Dict(
        help="""Quotas by group: the best of a user's groups, part by part, goes before
        the default. Groups are the OS groups, or those of the token file."""
    ).tag(config=True)
    users = Dict(help="Quotas by user; they go before those of groups.").tag(config=True)


class Hub(Configurable):
    """JupyterHub, where it says who people are (``--hub``)."""

    locals().update(traits_of(HubTrust))
    api_url = Unicode(
        "", help="The Hub's REST API. Not set: the environment variable JUPYTERHUB_API_URL."
    ).tag(config=True)
    api_token_file = Unicode(
        "",
        help="""File with the node manager's own token, as a service of the Hub with the scopes
        read:users:name, read:users:groups, read:roles:users, list:groups, read:groups. Not set:
        systemd's credential hub-token, else the environment variable JUPYTERHUB_API_TOKEN.""",
    ).tag(config=True)
    refresh = Duration(
        60.0, least=1.0, help="Seconds between two readings of the quotas of the Hub's groups."
    ).tag(config=True)

    def api(self) -> HubApi:
        """The client that asks the Hub. Raises :class:`~..daemon.hubapi.CertificatesUnreadable`."""
        url = self.api_url or os.environ.get("JUPYTERHUB_API_URL", "")
        return HubApi(url, trust=hub_trust(os.environ))

    def own_token(self) -> str:
        """The node manager's token. Raises :class:`ValueError` if there is none."""
        if self.api_token_file:
            token = systemd.read_secret(Path(self.api_token_file), os.environ)
        else:
            # systemd hands over an empty one where the administrator has made none.
            credential = systemd.credential(os.environ, HUB_CREDENTIAL)
            token = systemd.read_secret(credential, os.environ) if credential else ""
            token = token or os.environ.get("JUPYTERHUB_API_TOKEN", "")
        if not token or not (self.api_url or os.environ.get("JUPYTERHUB_API_URL")):
            raise ValueError(
                "With --hub the node manager needs the Hub's address and a token of its own: set "
                "c.Hub.api_url and c.Hub.api_token_file, or run it as a service of the Hub."
            )
        return token


@dataclass(frozen=True, slots=True)
class Rhythm:
    """How often the node manager looks; the policy does not know."""

    heartbeat_interval: float = setting(
        5.0,
        Unit.SECONDS,
        "Seconds between two signs of life.",
        least=0.05,
    )
    budget_interval: float = setting(
        30.0,
        Unit.SECONDS,
        "Seconds between two readings of what was spent of the budgets.",
        least=0.1,
    )


class Policy(Configurable):
    """How leases are granted, kept and taken back."""

    locals().update(traits_of(PolicyConfig, Rhythm))


class Connections(Configurable):
    """What one client may take of the node manager."""

    locals().update(traits_of(Limits))
