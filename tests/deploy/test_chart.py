"""The chart: what Helm makes of it is what Kubernetes takes, with no right but those that are used.

The objects that nobody has meant to change are those of the golden files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from support import chart
from support.chart import CASES, CHART, GOLDEN, ROOT, TAINT, objects, pods

pytestmark = pytest.mark.skipif(bool(chart.why_no_helm()), reason=chart.why_no_helm())
schemas = pytest.importorskip("kubernetes_validate")

#: The first version in which nodes can be kept by a claim; before it, by a taint.
CLAIMS_FROM = 34
VERSIONS = [f"1.{minor}" for minor in range(31, int(schemas.latest_version().split(".")[1]) + 1)]
#: Kubernetes knows them only where the Prometheus operator is.
OPERATORS = ("PodMonitor", "PrometheusRule")


def holds_claims(case: str) -> bool:
    return bool(CASES[case].get("gpus", {}).get("hold", "claim") == "claim")


# -- what Kubernetes takes -------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_what_helm_makes_is_what_was_meant(case: str) -> None:
    """After a change that is meant: ``PYTHONPATH=tests python -m support.chart``."""
    assert chart.golden(case) == (GOLDEN / f"{case}.yaml").read_text()


def test_no_golden_file_is_left_over() -> None:
    assert {file.stem for file in GOLDEN.iterdir()} == set(CASES)


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_knows_every_object_and_every_field(version: str) -> None:
    knows_claims = int(version.split(".")[1]) >= CLAIMS_FROM
    different = {
        json.dumps(told)
        for case in CASES
        if knows_claims or not holds_claims(case)
        for (kind, _name), told in objects(CASES[case]).items()
        if kind not in OPERATORS
    }
    for told in different:
        schemas.validate(json.loads(told), version, strict=True)


def test_helm_finds_no_fault() -> None:
    for report in chart.linted().values():
        assert [one["error"] for one in report["messages"]] == ["icon is recommended"]
        assert report["errors"] == []


def test_all_that_one_object_says_of_another_is_so() -> None:
    for values in CASES.values():
        of = objects(values)
        names = {kind: {name for one, name in of if one == kind} for kind, _name in of}
        for pod in pods(of).values():
            mounted = {
                mount["name"]
                for container in [*pod["containers"], *pod.get("initContainers", ())]
                for mount in container.get("volumeMounts", ())
            }
            assert mounted == {volume["name"] for volume in pod.get("volumes", ())}
            for volume in pod.get("volumes", ()):
                assert volume.get("configMap", {}).get("name") in {None, *names["ConfigMap"]}
            claims = [one["resourceClaimTemplateName"] for one in pod.get("resourceClaims", ())]
            assert set(claims) <= names.get("ResourceClaimTemplate", set())
            # A class that the chart does not make is the administrator's.
            made = names.get("PriorityClass", set())
            assert not made or {pod.get("priorityClassName")} <= {*made, None}
        for (kind, _name), told in of.items():
            if kind in ("DaemonSet", "Deployment"):
                selector = told["spec"]["selector"]["matchLabels"]
                labels = told["spec"]["template"]["metadata"]["labels"]
                assert selector.items() <= labels.items()


def test_the_notes_say_what_is_left_to_be_done() -> None:
    told = chart.rendered(TAINT)["NOTES.txt"]
    assert "hub.jupyter.org/dedicated=user:NoSchedule" in told
    assert "replace http://gpushare-pool:10204" not in told
    other = chart.rendered(TAINT, name="gpus")["NOTES.txt"]
    assert "by http://gpus-jupyter-gpushare-pool:10204" in other


# -- values ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"gpus": {"hold": "none"}}, "/gpus/hold"),
        ({"pools": {}}, "pools"),
        ({"node": {"config": {"NodeManagerApp": ["gpus"]}}}, "/node/config/NodeManagerApp"),
        ({"node": {"config": {"Hub": {"api_token": "secret"}}}}, "propertyName 'api_token'"),
        ({"node": {"maxUnavailable": 0}}, "/node/maxUnavailable"),
        ({"node": {"stateFolder": "gpus"}}, "/node/stateFolder"),
        ({"pool": {"volume": {"size": "many"}}}, "/pool/volume/size"),
        ({"hub": {"apiUrl": "hub:8081"}}, "/hub/apiUrl"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(chart.HelmRefused, match=re.escape(said)):
        objects({**TAINT, **values})


def _paths(of: dict[str, Any], *, schema: bool, above: str = "") -> Iterator[str]:
    known = of.get("properties", {}) if schema else of
    for name, value in known.items():
        yield f"{above}/{name}"
        if isinstance(value, dict) and name not in ("requests", "limits", "default"):
            yield from _paths(value, schema=schema, above=f"{above}/{name}")


def test_the_schema_has_all_values_and_no_secret_among_them() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    told = set(_paths(schema, schema=True))
    assert set(_paths(values, schema=False)) - told == {
        "/node/nodeSelector/nvidia.com/gpu.present",
    }
    # One is the name of an object of the Hub's chart.
    assert {one for one in told if re.search("(?i)secret|token|password|key$", one)} == {
        "/hub/secret",
        "/imagePullSecrets",
    }


# -- rights ----------------------------------------------------------------------------------------


def test_no_container_may_more_than_it_needs() -> None:
    for case, values in CASES.items():
        for name, pod in pods(objects(values)).items():
            is_node, is_hook = name.endswith("-node"), name.endswith("-credentials")
            assert pod.get("hostPID", False) is is_node
            assert pod["automountServiceAccountToken"] is is_hook
            assert not pod.get("hostNetwork")
            assert any("hostPath" in one for one in pod.get("volumes", ())) is is_node
            for container in [*pod["containers"], *pod.get("initContainers", ())]:
                bounds = container["securityContext"]
                signals = case == "all" and container["name"] == "node"
                added = {"add": ["KILL"]} if signals else {}
                assert bounds["capabilities"] == {"drop": ["ALL"], **added}
                assert not bounds["allowPrivilegeEscalation"]
                assert bounds["readOnlyRootFilesystem"]
                user = bounds.get("runAsUser", pod.get("securityContext", {}).get("runAsUser"))
                assert (user == 0) is is_node
                assert container["resources"]["limits"]["memory"]


def test_only_the_pool_sees_the_authoritys_key() -> None:
    for pod in pods(objects({})).values():
        for volume in pod.get("volumes", ()):
            assert not volume.get("secret", {}).get("defaultMode", 0) & 0o007
    seen = {
        name: {one["secret"]["secretName"] for one in pod.get("volumes", ()) if "secret" in one}
        for name, pod in pods(objects({})).items()
    }
    assert seen == {
        "gpushare-node": {"gpushare-join"},
        "gpushare-pool": {"gpushare-join", "gpushare-authority"},
        "gpushare-holder": set(),
        "gpushare-credentials": set(),
    }


def test_rights_at_kubernetes_are_the_hooks_alone() -> None:
    """What it does with them: test_kubernetes.py."""
    for values in CASES.values():
        of = objects(values)
        for (kind, _name), told in of.items():
            assert not kind.startswith("ClusterRole")
            if kind in ("Role", "RoleBinding", "ServiceAccount"):
                about = told["metadata"]["annotations"]
                assert about["helm.sh/hook"] == "pre-install,pre-upgrade"
                assert "hook-succeeded" in about["helm.sh/hook-delete-policy"]
                hook = of["Job", told["metadata"]["name"]]
                assert (
                    about["helm.sh/hook-weight"]
                    < hook["metadata"]["annotations"]["helm.sh/hook-weight"]
                )
        accounts = {name: pod.get("serviceAccountName") for name, pod in pods(of).items()}
        assert all(
            account == (name if name.endswith("-credentials") else None)
            for name, account in accounts.items()
        )


def _policy(of: dict[tuple[str, str], Any], name: str) -> dict[str, set[Any]]:
    """The ports that a policy opens."""
    told = of["NetworkPolicy", name]["spec"]
    assert told["policyTypes"] == ["Ingress", "Egress"]
    return {
        way: {port["port"] for rule in told[way] for port in rule["ports"]}
        for way in ("ingress", "egress")
    }


def test_the_network_is_open_where_somebody_calls_and_nowhere_else() -> None:
    of = objects({})
    node, pool = _policy(of, "gpushare-node"), _policy(of, "gpushare-pool")
    listens = {
        name: {port["name"]: port["containerPort"] for port in pod["containers"][0]["ports"]}
        for name, pod in pods(of).items()
        if "ports" in pod["containers"][0]
    }
    assert node["ingress"] == set(listens["gpushare-node"]) == {"metrics", "pool"}
    assert pool["ingress"] == set(listens["gpushare-pool"]) == {"metrics", "pages", "join"}
    assert node["egress"] == {53, 8081, listens["gpushare-pool"]["join"]}
    assert pool["egress"] == {53, 8081, listens["gpushare-node"]["pool"]}
    alone = objects(CASES["no-pool"])
    assert _policy(alone, "gpushare-node") == {"ingress": {"metrics"}, "egress": {53, 8081}}


@pytest.mark.parametrize(("values", "port"), [({}, 10205), (CASES["all"], 20205)])
def test_a_node_listens_where_the_pool_calls_it(values: dict[str, Any], port: int) -> None:
    """At the node's own address, which stays when the pod is replaced."""
    of = objects(values)
    name = next(name for kind, name in of if kind == "ConfigMap" and name.endswith("-node"))
    pod = pods(of)[name]
    told = json.loads(of["ConfigMap", name]["data"]["jupyter_gpushare_node_config.json"])
    (listens,) = (one for one in pod["containers"][0]["ports"] if one["name"] == "pool")
    assert told["NodeManagerApp"]["pool_listen"] == f"0.0.0.0:{listens['containerPort']}"
    assert listens["hostPort"] == port
    (join,) = pod["initContainers"]
    assert f'--address="$HOST_IP" --port={port} ' in join["command"][-1]
    fields = {one["name"]: one["valueFrom"]["fieldRef"]["fieldPath"] for one in join["env"]}
    assert fields == {"NODE_NAME": "spec.nodeName", "HOST_IP": "status.hostIP"}


def test_a_holder_claims_all_gpus_of_its_node_where_node_managers_are() -> None:
    for case in ("claim", "all"):
        of = objects(CASES[case])
        (claims,) = (one for (kind, _name), one in of.items() if kind == "ResourceClaimTemplate")
        (request,) = claims["spec"]["spec"]["devices"]["requests"]
        assert request["exactly"]["allocationMode"] == "All"
        node, holder = (
            next(pod for name, pod in pods(of).items() if name.endswith(part))
            for part in ("-node", "-holder")
        )
        (container,) = holder["containers"]
        assert container["resources"]["claims"] == [{"name": "gpus"}]
        for part in ("nodeSelector", "affinity", "tolerations"):
            assert holder.get(part) == node.get(part)


# -- from one version to the next ------------------------------------------------------------------


def test_an_upgrade_replaces_one_node_manager_after_the_other_and_no_holder() -> None:
    of = objects({})
    node = of["DaemonSet", "gpushare-node"]["spec"]
    # Not the new one beside the old one: a ledger has one owner.
    assert node["updateStrategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    assert of["DaemonSet", "gpushare-holder"]["spec"]["updateStrategy"] == {"type": "OnDelete"}
    assert of["Deployment", "gpushare-pool"]["spec"]["strategy"] == {"type": "Recreate"}
    # A template of claims cannot be changed, so another class has another template.
    other = objects({"gpus": {"deviceClass": "other"}})
    kind = "ResourceClaimTemplate"
    assert {name for one, name in of if one == kind}.isdisjoint(
        {name for one, name in other if one == kind}
    )


def test_what_an_upgrade_could_not_change_is_as_in_the_first_chart() -> None:
    """Kubernetes refuses other selectors and claims; with another path or key leases are lost."""
    of = objects({})
    for part, kind in (("node", "DaemonSet"), ("holder", "DaemonSet"), ("pool", "Deployment")):
        assert of[kind, f"gpushare-{part}"]["spec"]["selector"]["matchLabels"] == {
            "app.kubernetes.io/name": "jupyter-gpushare",
            "app.kubernetes.io/instance": "gpushare",
            "app.kubernetes.io/component": part,
        }
    volumes = {volume["name"]: volume for volume in pods(of)["gpushare-node"]["volumes"]}
    assert {
        name: one["hostPath"]["path"] for name, one in volumes.items() if "hostPath" in one
    } == {
        "socket": "/run/jupyter-gpushare",
        "state": "/var/lib/jupyter-gpushare",
    }
    volumes = {volume["name"]: volume for volume in pods(of)["gpushare-pool"]["volumes"]}
    assert volumes["folder"]["persistentVolumeClaim"] == {"claimName": "gpushare-pool"}
    claim = of["PersistentVolumeClaim", "gpushare-pool"]
    assert claim["spec"] == {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
    }
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    pool = json.loads(of["ConfigMap", "gpushare-pool"]["data"]["jupyter_gpushare_hub_config.json"])
    assert pool["Pool"]["folder"] == "/var/lib/jupyter-gpushare-pool/pool"
    (container,) = pods(of)["gpushare-pool"]["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    for secret, key in (("authority", "authority.pem"), ("join", "join-token")):
        assert volumes[secret]["secret"]["secretName"] == f"gpushare-{secret}"
        assert f"{mounts[secret]}/{key}" in pool["Pool"].values()


@pytest.mark.parametrize("part", ["node", "pool"])
def test_another_setting_restarts_who_reads_it_and_nobody_else(part: str) -> None:
    def sums(values: dict[str, Any]) -> dict[str, str]:
        return {
            name: one["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
            for (kind, name), one in objects(values).items()
            if kind in ("DaemonSet", "Deployment") and not name.endswith("-holder")
        }

    settings = {"node": {"Policy": {"idle_timeout": 60}}, "pool": {"Pool": {"title": "gpus"}}}
    before, after = sums({}), sums({part: {"config": settings[part]}})
    assert {name for name in before if before[name] != after[name]} == {f"gpushare-{part}"}


def test_the_alerts_are_those_of_the_repository() -> None:
    told = objects(CASES["all"])["PrometheusRule", "shared-gpus"]["spec"]
    file = ROOT / "etc" / "prometheus" / "jupyter-gpushare.rules.yml"
    assert told == yaml.safe_load(file.read_text())
    # By the name of its job they know a node manager that is away.
    monitor = objects(CASES["all"])["PodMonitor", "shared-gpus"]["spec"]
    (end,) = monitor["podMetricsEndpoints"]
    assert {"targetLabel": "job", "replacement": "jupyter-gpushare"} in end["relabelings"]
