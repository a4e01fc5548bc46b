"""Make the pool's certificate authority and the token by which nodes join, as two Secrets.

A hook of Helm runs it before an installation and before an upgrade. What is there already stays.
The authority's key is in a Secret of its own: only the pool's pod mounts that one, and a node can
read no Secret that none of its pods mounts.
"""

import base64
import json
import os
import secrets
import ssl
import tempfile
import time
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from jupyter_gpushare.pool.joining import Token
from jupyter_gpushare.pool.pki import Authority

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TEN_YEARS = 3650 * 86400.0


def ask(method, path, body=None):
    """What Kubernetes answers, or None where there is no such object."""
    address = "https://{KUBERNETES_SERVICE_HOST}:{KUBERNETES_SERVICE_PORT}".format(**os.environ)
    place = f"{address}/api/v1/namespaces/{os.environ['NAMESPACE']}/secrets{path}"
    told = None if body is None else json.dumps(body).encode()
    request = Request(place, told, {"Content-Type": "application/json"}, method=method)
    request.add_header("Authorization", f"Bearer {(ACCOUNT / 'token').read_text()}")
    known = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    try:
        with urlopen(request, context=known, timeout=30) as answer:
            return json.load(answer)
    except HTTPError as error:
        if error.code == 404:
            return None
        raise SystemExit(f"{method} {place}: {error.code} {error.read().decode()}") from error


def make(name, file, content):
    labels = json.loads(os.environ["LABELS"])
    data = {file: base64.b64encode(content).decode()}
    about = {"name": name, "labels": labels}
    ask("POST", "", {"apiVersion": "v1", "kind": "Secret", "metadata": about, "data": data})
    print(f"made the Secret {name}")


release, now = os.environ["RELEASE"], time.time()
found = ask("GET", f"/{release}-authority")
with tempfile.TemporaryDirectory() as folder:
    given, pool = Path(folder, "authority.pem"), Path(folder, "pool")
    if found is not None:
        given.write_bytes(base64.b64decode(found["data"]["authority.pem"]))
    authority = Authority.create(pool, "gpushare", now, None if found is None else given)
    if found is None:
        make(f"{release}-authority", "authority.pem", (pool / "authority.pem").read_bytes())
if ask("GET", f"/{release}-join") is None:
    secret = secrets.token_urlsafe(32)
    token = Token(os.environ["POOL"], 10206, authority.pinned, secret, now + TEN_YEARS)
    make(f"{release}-join", "join-token", str(token).encode())
