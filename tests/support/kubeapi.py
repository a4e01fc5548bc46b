"""As much of Kubernetes' API as the chart's hook and KubeSpawner ask, with its answers as they are.

Pods that are made run at once, and nothing runs in them. With ``rules``, which are those of a Role,
it refuses what they do not allow, and notes which of their verbs were used.
"""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import certipy

from . import chart

#: A request's verb, resource and name ("": of all of them).
Asked = tuple[str, str, str]


@contextmanager
def answering(
    handler: type[BaseHTTPRequestHandler], tls: ssl.SSLContext | None = None
) -> Iterator[str]:
    """The address at which it answers, on a free port of this host."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@dataclass
class KubeApi:
    """Objects by resource and name, and what was asked."""

    token: str = ""
    rules: Sequence[dict[str, Any]] | None = None
    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    used: set[tuple[int, str]] = field(default_factory=set)
    url: str = ""
    changed: threading.Condition = field(default_factory=threading.Condition)

    @contextmanager
    def served(self, tls: ssl.SSLContext | None = None) -> Iterator[KubeApi]:
        """Answer on a free port of this host."""
        with answering(type("Handler", (_Handler,), {"api": self}), tls) as self.url:
            yield self

    def may(self, verb: str, resource: str, name: str) -> bool:
        """Whether one of the rules allows it; as Kubernetes' own RBAC decides."""
        self.asked.append((verb, resource, name))
        if self.rules is None:
            return True
        for number, rule in enumerate(self.rules):
            named = rule.get("resourceNames")
            if (
                "" in rule["apiGroups"]
                and resource in rule["resources"]
                and verb in rule["verbs"]
                and (not named or name in named)
            ):
                self.used.add((number, verb))
                return True
        return False

    def secret(self, name: str) -> dict[str, bytes]:
        """What a Secret holds."""
        data = self.objects["secrets"][name]["data"]
        return {key: base64.b64decode(text) for key, text in data.items()}

    def make(self, resource: str, told: dict[str, Any]) -> dict[str, Any] | None:
        """Add an object; ``None`` where there is one of this name."""
        of = self.objects.setdefault(resource, {})
        name = told["metadata"]["name"]
        if name in of:
            return None
        told["metadata"] |= {"namespace": "jhub", "uid": name, "resourceVersion": str(len(of) + 1)}
        if resource == "pods":
            state = {
                "name": "notebook",
                "ready": True,
                "image": "",
                "imageID": "",
                "restartCount": 0,
            }
            ready = [{**state, "state": {"running": {"startedAt": "2026-11-29T12:00:00Z"}}}]
            told["status"] = {
                "phase": "Running",
                "podIP": "10.1.0.7",
                "containerStatuses": ready,
                "conditions": [{"type": "Ready", "status": "True"}],
            }
        with self.changed:
            of[name] = told
            self.changed.notify_all()
        return told


class _Handler(BaseHTTPRequestHandler):
    api: KubeApi

    def do_GET(self) -> None:
        where = urlsplit(self.path)
        resource, name = self._place(where.path)
        query = parse_qs(where.query)
        is_watch = query.get("watch") in (["true"], ["True"])
        verb = "watch" if is_watch else "get" if name else "list"
        if not self._lets_in(verb, resource, name):
            return
        of = self.api.objects.get(resource, {})
        if is_watch:
            self._watch(resource, int(query["resourceVersion"][0]))
        elif not name:
            version = {"resourceVersion": str(len(of))}
            self._answer(200, {"kind": "List", "metadata": version, "items": [*of.values()]})
        elif name in of:
            self._answer(200, of[name])
        else:
            self._answer(404, {"kind": "Status", "code": 404, "message": "not found"})

    def do_POST(self) -> None:
        resource, _name = self._place(urlsplit(self.path).path)
        told = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._lets_in("create", resource, ""):
            return
        made = self.api.make(resource, told)
        if made is None:
            self._answer(409, {"kind": "Status", "code": 409, "message": "already exists"})
        else:
            self._answer(201, made)

    def _place(self, path: str) -> tuple[str, str]:
        _api, _v1, _namespaces, _namespace, resource, *name = path.strip("/").split("/")
        return resource, "".join(name)

    def _lets_in(self, verb: str, resource: str, name: str) -> bool:
        shown = self.headers.get("Authorization", "")
        if self.api.token and shown != f"Bearer {self.api.token}":
            self._answer(401, {"kind": "Status", "code": 401, "message": "Unauthorized"})
            return False
        if not self.api.may(verb, resource, name):
            said = f'cannot {verb} resource "{resource}"'
            self._answer(403, {"kind": "Status", "code": 403, "message": said})
            return False
        return True

    def _watch(self, resource: str, after: int) -> None:
        """One event: the first object that comes after ``after``, within a second."""
        with self.api.changed:
            of = self.api.objects.setdefault(resource, {})
            self.api.changed.wait_for(lambda: len(of) > after, 1.0)
            new = list(of.values())[after:]
        lines = [json.dumps({"type": "ADDED", "object": one}) + "\n" for one in new]
        self._send(200, "".join(lines).encode())

    def _answer(self, code: int, told: dict[str, Any]) -> None:
        self._send(code, json.dumps(told).encode())

    def _send(self, code: int, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        # Who watched may be gone.
        with suppress(OSError):
            self.wfile.write(body)

    def log_message(self, *_args: Any) -> None:
        """Nothing: a test reads what was asked."""


@contextmanager
def kubernetes(folder: Path, rules: list[dict[str, Any]]) -> Iterator[KubeApi]:
    """Kubernetes' API over TLS, and the folder that a service account's pod has."""
    maker = certipy.Certipy(store_dir=str(folder))
    maker.create_ca("kubernetes")
    files = maker.create_signed_pair("api", "kubernetes", alt_names=["IP:127.0.0.1"])["files"]
    (folder / "ca.crt").write_text(Path(files["ca"]).read_text())
    (folder / "token").write_text("the-hooks-own")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files["cert"], files["key"])
    with KubeApi(token="the-hooks-own", rules=rules).served(context) as api:
        yield api


def hook_ran(
    api: KubeApi, folder: Path, of: Mapping[tuple[str, str], Any], told: Mapping[str, str] = {}
) -> str:
    """Run the Job's command as the chart says it, with ``told`` for some words of it.

    Returns what it printed.
    """
    (container,) = chart.pods(of)["gpushare-credentials"]["containers"]
    command = container["command"]
    environ = {one["name"]: one["value"] for one in container["env"]}
    host, _, port = api.url.removeprefix("https://").partition(":")
    environ |= {
        "KUBERNETES_SERVICE_HOST": host,
        "KUBERNETES_SERVICE_PORT": port,
        "PATH": str(Path(sys.executable).parent),
    }
    words = {"/var/run/secrets/kubernetes.io/serviceaccount": str(folder), **told}
    for word, ours in words.items():
        command = [one.replace(word, ours) for one in command]
        environ = {name: one.replace(word, ours) for name, one in environ.items()}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def nodes_of(pod: dict[str, Any]) -> tuple[list[Any], dict[str, int]]:
    """What a pod requires of its node, and what it prefers."""
    told = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    required = told.get("requiredDuringSchedulingIgnoredDuringExecution", {})
    terms = [
        [(part["key"], part["values"]) for part in term["matchExpressions"]]
        for term in required.get("nodeSelectorTerms", ())
    ]
    preferred = {
        one["preference"]["matchExpressions"][0]["values"][0]: one["weight"]
        for one in told.get("preferredDuringSchedulingIgnoredDuringExecution", ())
    }
    return terms, preferred
