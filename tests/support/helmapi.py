"""As much of Kubernetes' API as a real Helm needs to install, upgrade and uninstall the chart.

It keeps what Helm applies, and refuses to change what Kubernetes would not change. A Job has done
its work at once: what it would make is given.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from . import chart
from .kubeapi import answering

#: The resources of each group, by their kind.
GROUPS = {
    "v1": {
        "configmaps": "ConfigMap",
        "persistentvolumeclaims": "PersistentVolumeClaim",
        "secrets": "Secret",
        "serviceaccounts": "ServiceAccount",
        "services": "Service",
    },
    "apps/v1": {"daemonsets": "DaemonSet", "deployments": "Deployment"},
    "batch/v1": {"jobs": "Job"},
    "networking.k8s.io/v1": {"networkpolicies": "NetworkPolicy"},
    "rbac.authorization.k8s.io/v1": {"roles": "Role", "rolebindings": "RoleBinding"},
    "resource.k8s.io/v1": {"resourceclaimtemplates": "ResourceClaimTemplate"},
    "scheduling.k8s.io/v1": {"priorityclasses": "PriorityClass"},
}
#: What of an object cannot be changed: the way to it.
FINAL = {
    "DaemonSet": ("spec", "selector"),
    "Deployment": ("spec", "selector"),
    "Job": ("spec", "template"),
    "PersistentVolumeClaim": ("spec",),
    "ResourceClaimTemplate": ("spec",),
    "RoleBinding": ("roleRef",),
    "PriorityClass": ("value",),
}
_HELM = """
import json, sys
import helm_python

url, steps = sys.argv[1], json.load(sys.stdin)
config = helm_python.Config(kube_apiserver=url, storage_driver="memory", namespace="jhub",
                            kubeconfig_content="apiVersion: v1\\nkind: Config\\n")
for step, values, chart in steps:
    if step == "uninstall":
        config.uninstall("gpushare", timeout=60)
        continue
    try:
        loaded = helm_python.Chart.load(chart)
        getattr(config, step)(loaded, "gpushare", values, timeout=60)
    except helm_python.HelmError as error:
        sys.exit(str(error))
"""


@dataclass
class HelmApi:
    """Objects by kind and name; and what was done with them, in order."""

    version: str = "v1.36.0"
    objects: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    done: list[tuple[str, str, str]] = field(default_factory=list)
    #: What a Job of this name makes.
    makes: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    url: str = ""
    changed: threading.Condition = field(default_factory=threading.Condition)

    @contextmanager
    def served(self) -> Iterator[HelmApi]:
        """Answer on a free port of this host."""
        with answering(type("Handler", (_Handler,), {"api": self})) as self.url:
            yield self

    def helm(self, *steps: tuple[str, dict[str, Any]], begins: Path = chart.CHART) -> str:
        """Have Helm do this, in a process of its own. Returns what it refused, or nothing.

        ``begins``: the chart that is installed.
        """
        line = [sys.executable, "-c", _HELM, self.url]
        charts = {"install": str(begins)}
        told = json.dumps(
            [(step, values, charts.get(step, str(chart.CHART))) for step, values in steps]
        )
        done = subprocess.run(line, input=told, capture_output=True, text=True, check=False)
        return done.stderr if done.returncode else ""

    def apply(self, kind: str, told: dict[str, Any]) -> str:
        """Keep an object. Returns why not, or nothing."""
        name = told["metadata"]["name"]
        before = self.objects.get((kind, name))
        final = FINAL.get(kind)
        if before is not None and final and _at(before, final) != _at(told, final):
            return f"{kind} {name}: {'.'.join(final)}: field is immutable"
        told["metadata"] |= {"uid": name, "resourceVersion": "1", "namespace": "jhub"}
        if kind == "Job":
            told["status"] = {
                "succeeded": 1,
                "conditions": [{"type": "Complete", "status": "True"}],
            }
        with self.changed:
            self.objects[kind, name] = told
            for one in self.makes.get(name, ()) if kind == "Job" else ():
                self.objects.setdefault((one["kind"], one["metadata"]["name"]), one)
            self.changed.notify_all()
        self.done.append(("apply", kind, name))
        return ""

    def remove(self, kind: str, name: str) -> None:
        with self.changed:
            if self.objects.pop((kind, name), None) is not None:
                self.done.append(("delete", kind, name))
            self.changed.notify_all()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    api: HelmApi

    def do_GET(self) -> None:
        where = urlsplit(self.path)
        parts = where.path.strip("/").split("/")
        if where.path == "/version":
            self._json({"major": "1", "minor": "36", "gitVersion": self.api.version})
        elif parts[0] == "openapi":
            self._send(b"{}" if parts[1] == "v3" else b"", "application/octet-stream")
        elif parts == ["api"]:
            self._json({"kind": "APIVersions", "versions": ["v1"]})
        elif parts == ["apis"]:
            self._json(
                {"kind": "APIGroupList", "groups": [_group(one) for one in GROUPS if "/" in one]}
            )
        elif len(parts) == (2 if parts[0] == "api" else 3):
            of = GROUPS.get("/".join(parts[1:]), {})
            listed = [_resource(name, kind) for name, kind in of.items()]
            self._json({"kind": "APIResourceList", "resources": listed})
        else:
            kind, name, version = self._place(parts)
            if "watch" in parse_qs(where.query):
                self._watch(kind, version)
            elif (kind, name) in self.api.objects:
                self._json(self.api.objects[kind, name])
            else:
                self._refuse(404, "NotFound", "not found")

    def do_PATCH(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        kind, _name, _version = self._place(urlsplit(self.path).path.strip("/").split("/"))
        told = json.loads(body)
        if why := self.api.apply(kind, told):
            self._refuse(422, "Invalid", why)
        else:
            self._json(told)

    def do_DELETE(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        kind, name, _version = self._place(urlsplit(self.path).path.strip("/").split("/"))
        self.api.remove(kind, name)
        self._json({"kind": "Status", "apiVersion": "v1", "status": "Success"})

    def _place(self, parts: list[str]) -> tuple[str, str, str]:
        """The kind, the name and the version of what a path leads to."""
        core = parts[0] == "api"
        version, rest = "/".join(parts[1 : 2 if core else 3]), parts[2 if core else 3 :]
        resource, *name = rest[2:] if rest[0] == "namespaces" else rest
        return GROUPS.get(version, {}).get(resource, resource), "".join(name), version

    def _watch(self, kind: str, version: str) -> None:
        """All objects of a kind, that these were all, and each that goes, for a while."""
        told = {name: one for (of, name), one in self.api.objects.items() if of == kind}
        mark = {"resourceVersion": "1", "annotations": {"k8s.io/initial-events-end": "true"}}
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        with suppress(OSError):
            for one in told.values():
                self._event("ADDED", one)
            self._event("BOOKMARK", {"kind": kind, "apiVersion": version, "metadata": mark})
            for _second in range(10):
                with self.api.changed:
                    self.api.changed.wait(1.0)
                    gone = [name for name in told if (kind, name) not in self.api.objects]
                for name in gone:
                    self._event("DELETED", told.pop(name))

    def _event(self, word: str, one: dict[str, Any]) -> None:
        self.wfile.write(json.dumps({"type": word, "object": one}).encode() + b"\n")
        self.wfile.flush()

    def _refuse(self, code: int, reason: str, why: str) -> None:
        about = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
        self._json({**about, "reason": reason, "code": code, "message": why}, code)

    def _json(self, told: dict[str, Any], code: int = 200) -> None:
        self._send(json.dumps(told).encode(), "application/json", code)

    def _send(self, body: bytes, kind: str, code: int = 200) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(body)

    def log_message(self, *_args: Any) -> None:
        """Nothing: a test reads what was done."""


def _at(of: dict[str, Any], way: tuple[str, ...]) -> Any:
    for part in way:
        of = of[part]
    return of


def _group(version: str) -> dict[str, Any]:
    told = {"groupVersion": version, "version": version.partition("/")[2]}
    name = version.partition("/")[0]
    return {"name": name, "versions": [told], "preferredVersion": told}


def _resource(name: str, kind: str) -> dict[str, Any]:
    verbs = ["get", "list", "create", "patch", "delete", "watch"]
    namespaced = kind != "PriorityClass"
    return {"name": name, "kind": kind, "namespaced": namespaced, "verbs": verbs}
