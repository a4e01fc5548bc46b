"""With JupyterHub's `internal_ssl` the node manager and the pages ask the Hub as they do without.

A real Hub and proxy, with the certificates that they make.
"""

from __future__ import annotations

from contextlib import closing

import pytest
from support.hub import RunningHub, needs_hub

pytestmark = [
    pytest.mark.story(
        *("jupyter_gpushare/hub/setup", "jupyter_gpushare/node/people/hub", "tests/hub/"),
        *("jupyter_gpushare/node/configuration", "jupyter_gpushare/protocol/keeper"),
    ),
    needs_hub,
]
MORE = """
c.JupyterHub.internal_ssl = True
c.JupyterHub.internal_certs_location = HOME + "/internal-ssl"
c.JupyterHub.hub_bind_url = c.JupyterHub.hub_bind_url.replace("http:", "https:")
c.ConfigurableHTTPProxy.api_url = c.ConfigurableHTTPProxy.api_url.replace("http:", "https:")
"""


def test_groups_quotas_and_people_come_over_internal_ssl() -> None:
    with RunningHub.make(pages=True, more=MORE) as hub:
        # Her group's quota: the node manager has read groups, and knows her by her token.
        with closing(hub.person("alice").browser()) as browser:
            page = browser.get("/services/gpushare/").text
        assert "8 GiB" in page, f"{page}\n{hub.tail()}"
