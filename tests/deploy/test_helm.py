"""A real Helm installs the chart before, upgrades it to this one, and uninstalls it.

Kubernetes is a stand-in that refuses to change what Kubernetes would not change.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from support import chart
from support.helmapi import HelmApi

pytestmark = pytest.mark.skipif(bool(chart.why_no_helm()), reason=chart.why_no_helm())
#: What is there for the hook alone.
HOOKS = ("ServiceAccount", "Role", "RoleBinding", "Job")
#: As ``helm package`` made it on 2026-11-29; after a release it is that release's.
BEFORE = Path(__file__).parent / "chart-before.tgz"
KEPT = {
    ("Secret", "gpushare-authority"),
    ("Secret", "gpushare-join"),
    ("PersistentVolumeClaim", "gpushare-pool"),
}


@pytest.fixture
def api() -> Iterator[HelmApi]:
    secrets = [
        {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "data": {"made": "once"}}
        for kind, name in KEPT
        if kind == "Secret"
    ]
    with HelmApi(makes={"gpushare-credentials": secrets}).served() as served:
        yield served


def _steps(api: HelmApi) -> list[list[tuple[str, str, str]]]:
    """What an installation and an upgrade did, which begin with the hook, and what went last."""
    begun = [number for number, one in enumerate(api.done) if one[:2] == ("apply", HOOKS[0])]
    last = max(number for number, one in enumerate(api.done) if one[0] == "apply") + 1
    cuts = [*begun, last, len(api.done)]
    return [api.done[a:b] for a, b in pairwise(cuts)]


def test_an_upgrade_changes_what_it_should_and_an_end_leaves_what_is_dear(api: HelmApi) -> None:
    before = {"image": {"tag": "0.0.9"}, "gpus": {"deviceClass": "gpu.example.org"}}
    assert api.helm(("install", before), ("upgrade", {}), ("uninstall", {}), begins=BEFORE) == ""
    install, upgrade, end = _steps(api)
    for begun in (install, upgrade):
        # The hook's rights, its Job, and only when all that is gone begins the rest.
        hook = [(what, kind) for what, kind, _name in begun[:8]]
        assert hook[:4] == [("apply", kind) for kind in HOOKS]
        assert sorted(hook[4:]) == sorted(("delete", kind) for kind in HOOKS)
        assert {what for what, _kind, _name in begun[8:]} == {"apply"}
        assert not any(kind in HOOKS for _what, kind, _name in begun[8:])
    # At the end of the upgrade the template of the other class goes; each other object at the end.
    made = {one[1:] for one in (*install[8:], *upgrade[8:])}
    assert sorted(one[1:] for one in end) == sorted(made - KEPT)
    assert set(api.objects) == KEPT
    assert all(api.objects[one]["data"] == {"made": "once"} for one in KEPT if one[0] == "Secret")


def test_claims_need_a_kubernetes_that_knows_them(api: HelmApi) -> None:
    api.version = "v1.33.4"
    told = api.helm(("install", {}))
    assert "gpus.hold is claim, which needs Kubernetes 1.34 or later, and this is v1.33.4" in told
    assert api.helm(("install", chart.TAINT)) == ""
