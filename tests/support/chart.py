"""The chart as a real Helm renders it, with the values of `CASES`.

``PYTHONPATH=tests python -m support.chart`` writes the golden files anew: read the difference.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parents[2]
CHART: Final = ROOT / "etc" / "deploy" / "chart"
GOLDEN: Final = ROOT / "tests" / "deploy" / "golden"
TAINT: Final = {"gpus": {"hold": "taint"}}
#: Values, by the name of their golden file.
CASES: Final[Mapping[str, dict[str, Any]]] = {
    "claim": {},
    "taint": TAINT,
    "no-pool": {**TAINT, "pool": {"enabled": False}},
    "all": {
        "fullnameOverride": "shared-gpus",
        "image": {"repository": "registry.example.org/node", "tag": "edge", "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "registry"}],
        "hub": {
            "apiUrl": "http://hub.jhub.svc/jupyter/hub/api",
            "baseUrl": "/jupyter/",
            "service": "gpus",
            "secret": "hub-of-ours",
        },
        "quotas": {"default": {"gpus": 2}, "groups": {"staff": {"gpus": "all"}}},
        "gpus": {"deviceClass": "gpu.example.org", "runtimeClassName": ""},
        "node": {
            "config": {"NodeManagerApp": {"simulate": "2x24GiB"}, "Policy": {"idle_timeout": 600}},
            "nodeSelector": {"pool": "gpu"},
            "affinity": {"nodeAffinity": {}},
            "tolerations": [{"operator": "Exists"}],
            "maySignal": True,
            "socketFolder": "/run/gpus",
            "stateFolder": "/srv/gpus",
            "poolPort": 20205,
            "metricsPort": 9999,
            "maxUnavailable": "10%",
            "podAnnotations": {"example.org/node": "yes"},
            "podLabels": {"team": "gpus"},
        },
        "pool": {
            "config": {"Pool": {"validity": 300}},
            "nodeSelector": {"pool": "system"},
            "affinity": {"nodeAffinity": {}},
            "tolerations": [{"key": "system", "operator": "Exists"}],
            "volume": {"existingClaim": "gpus"},
            "podAnnotations": {"example.org/pool": "yes"},
            "podLabels": {"team": "gpus"},
        },
        "priorityClass": {"create": False, "name": "high"},
        "networkPolicy": {"metricsFrom": [{"namespaceSelector": {"matchLabels": {"kind": "m"}}}]},
        "monitoring": {
            "podMonitor": {"enabled": True, "labels": {"release": "p"}, "interval": "15s"},
            "rules": {"enabled": True, "labels": {"release": "p"}},
        },
    },
    "least": {
        **TAINT,
        "node": {"nodeSelector": {}, "tolerations": []},
        "priorityClass": {"create": False},
        "networkPolicy": {"enabled": False},
        "pool": {"volume": {"storageClassName": "slow", "size": "512Mi"}},
    },
}


def hub_values() -> dict[str, Any]:
    """What the chart of Zero to JupyterHub is given."""
    return dict(yaml.safe_load((CHART / "z2jh-values.yaml").read_text()))


def configure_hub(c: Any, values: dict[str, Any], urls: Mapping[str, str] = {}) -> None:
    """Set what that chart makes of these values. ``urls``: of services, instead of the values'.

    Its own code is not here: jupyterhub_config.py of its commit 48ea50e3 was read.
    """
    hub, user = values["hub"], values["singleuser"]
    c.JupyterHub.spawner_class = "kubespawner.KubeSpawner"
    c.JupyterHub.services = [
        {"name": name, **service, "api_token": f"made-by-the-chart-for-{name}"}
        | ({"url": urls[name]} if name in urls else {})
        for name, service in hub["services"].items()
    ]
    c.JupyterHub.load_roles = [{"name": name, **role} for name, role in hub["loadRoles"].items()]
    c.KubeSpawner.environment = user["extraEnv"]
    c.KubeSpawner.node_selector = user["nodeSelector"]
    c.KubeSpawner.tolerations = user["extraTolerations"]
    c.KubeSpawner.extra_pod_config = user["extraPodConfig"]
    c.KubeSpawner.volumes = {v["name"]: v for v in user["storage"]["extraVolumes"]}
    c.KubeSpawner.volume_mounts = {v["name"]: v for v in user["storage"]["extraVolumeMounts"]}
    for section, settings in hub["config"].items():
        c[section].update(settings)
    for name, code in hub["extraConfig"].items():
        exec(compile(code, name, "exec"), {"c": c})


#: Helm has a process of its own: in pytest's forked workers Go's threads are missing.
_HELM = """
import json, sys
import helm_python

told = []
for ask in json.load(sys.stdin):
    try:
        if "lint" in ask:
            told.append(helm_python.lint(sys.argv[1], ask["values"], **ask["lint"]))
        else:
            chart = helm_python.Chart.load(sys.argv[1])
            told.append(chart.render(ask["values"], **ask["render"]))
    except helm_python.HelmError as error:
        told.append({"refused": str(error)})
json.dump(told, sys.stdout)
"""


class HelmRefused(Exception):
    """Helm takes these values not; the text is its own."""


def why_no_helm() -> str:
    """Why Helm cannot run here, or an empty text."""
    there = importlib.util.find_spec("helm_python") is not None
    return "" if there else "helm-python-sdk has wheels for Linux on x86_64 only"


def _asked(*asks: dict[str, Any]) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-c", _HELM, str(CHART)],
        input=json.dumps(asks),
        capture_output=True,
        text=True,
        check=True,
    )
    return list(json.loads(done.stdout))


def linted() -> dict[str, Any]:
    """What ``helm lint`` says, by case."""
    options = {"strict": True, "namespace": "jhub", "kube_version": "v1.34.0"}
    asks = [{"lint": options, "values": values} for values in CASES.values()]
    return dict(zip(CASES, _asked(*asks), strict=True))


def _render(values: dict[str, Any], name: str = "gpushare") -> dict[str, Any]:
    return {"render": {"name": name, "namespace": "jhub"}, "values": values}


@functools.cache
def _cases() -> dict[str, dict[str, Any]]:
    asks = [_render(values) for values in CASES.values()]
    return {json.dumps(ask): told for ask, told in zip(asks, _asked(*asks), strict=True)}


@functools.cache
def _rendered(ask: str) -> dict[str, Any]:
    return _cases()[ask] if ask in _cases() else _asked(json.loads(ask))[0]


def rendered(values: dict[str, Any], *, name: str = "gpushare") -> dict[str, str]:
    """Helm's text by the name of the template. Raises :class:`HelmRefused`."""
    texts = _rendered(json.dumps(_render(values, name)))
    if "refused" in texts:
        raise HelmRefused(texts["refused"])
    return {Path(path).name: text for path, text in texts.items() if text.strip()}


def objects(values: dict[str, Any], *, name: str = "gpushare") -> dict[tuple[str, str], Any]:
    """Kubernetes' objects by their kind and name."""
    texts = rendered(values, name=name)
    texts.pop("NOTES.txt")
    of = [one for text in texts.values() for one in yaml.safe_load_all(text) if one]
    return {(one["kind"], one["metadata"]["name"]): one for one in of}


def golden(case: str) -> str:
    """The text of a golden file, as it would be written now; without versions."""
    texts = rendered(CASES[case])
    notes = texts.pop("NOTES.txt")
    parts = ["\n".join(["# NOTES.txt", *(f"# {line}".rstrip() for line in notes.splitlines()), ""])]
    for name, text in sorted(texts.items()):
        lines = [line.rstrip() for line in text.strip().removeprefix("---").splitlines()]
        parts.append("\n".join([f"# {name}", *lines, ""]))
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    text = "---\n".join(parts)
    for version in (about["version"], about["appVersion"]):
        text = text.replace(version, "VERSION")
    return text


def pods(of: Mapping[tuple[str, str], Any]) -> dict[str, Any]:
    """The specs of pods by the names of what makes them."""
    made = ("DaemonSet", "Deployment", "Job")
    return {
        name: one["spec"]["template"]["spec"] for (kind, name), one in of.items() if kind in made
    }


def main() -> None:
    GOLDEN.mkdir(exist_ok=True)
    for case in CASES:
        (GOLDEN / f"{case}.yaml").write_text(golden(case))


if __name__ == "__main__":
    main()
