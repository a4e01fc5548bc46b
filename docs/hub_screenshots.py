"""Make docs/images/hub-*.png from a real JupyterHub, in Debian's chromium: ``make pictures``."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
CHROMIUM = os.environ.get("CHROMIUM", shutil.which("chromium") or "/usr/bin/chromium")
sys.path.insert(0, str(ROOT / "tests"))

from support.hub import CLASS, HOSTS, RunningHub  # noqa: E402 - it is the tests'
from support.node import GIB, NodeClient  # noqa: E402

from jupyter_gpushare.protocol.messages import Method  # noqa: E402


def shoot(
    browser: Browser, hub: RunningHub, who: str, path: str, target: str, height: int | None = None
) -> None:
    """Log in as ``who`` and take a picture of the whole page, or of its first ``height``."""
    page = browser.new_page(viewport={"width": 1200, "height": 700})
    page.goto(f"{hub.url}/hub/login?next=/services/gpushare/")
    page.fill("#username_input", who)
    page.fill("#password_input", "any")
    page.click("#login_submit")
    page.wait_for_selector("#gpushare")
    if path:
        page.goto(f"{hub.url}/services/gpushare/{path}")
    page.wait_for_load_state("networkidle")
    clip = None if height is None else {"x": 0, "y": 0, "width": 1200, "height": height}
    page.screenshot(path=IMAGES / target, full_page=True, clip=clip)
    page.close()


def ask(client: NodeClient, path: str, **wish: object) -> int | str:
    """Ask for a GPU as a notebook does."""
    name = path.rpartition("/")[2]
    task = {"name": name, "kind": "kernel", "kernel_id": name, "path": path}
    return client.send(Method.REQUEST, task=task, gpus=1, **wish)


def several_hosts(browser: Browser, patient: list[str]) -> None:
    """Five hosts: one full, one out of service, one that cannot be reached."""
    more = HOSTS.format(names=("middle", "old", "right", "upstairs"))
    with RunningHub.make(
        pages=True, external=True, more=more, simulate="2x24GiB", node_arguments=patient
    ) as hub:
        right = hub.start_other("right", "4x80GiB")
        middle, old = hub.start_other("middle", "1x80GiB"), hub.start_other("old", "2x16GiB")
        alice, bob, carol = (hub.person(name).token for name in ("alice", "bob", "carol"))
        with (
            NodeClient(right, alice) as hers,
            NodeClient(middle, bob) as his,
            NodeClient(middle, carol) as waits,
            NodeClient(old, carol) as admin,
        ):
            hers.wait(ask(hers, "course/week3.ipynb", memory=8 * GIB))
            waits.call(Method.QUOTA_SET, environment="bob", gpus=1, memory=None)
            his.wait(ask(his, "experiments.ipynb", memory=80 * GIB))
            ask(waits, "report.ipynb", memory=80 * GIB)
            for gpu in admin.call(Method.STATUS)["gpus"]:
                admin.call(Method.GPU_DRAIN, gpu=gpu["uuid"], reason="its fans are replaced")
            shoot(browser, hub, "alice", "", "hub-hosts.png", height=1290)


def main() -> None:
    """Three people with notebooks, one of whom waits, and a class; then take the pictures."""
    IMAGES.mkdir(exist_ok=True)
    # Nobody beats these tasks' hearts while a browser starts.
    patient = ["--Policy.heartbeat_timeout=900", "--Policy.idle_timeout=1800"]
    with RunningHub.make(pages=True, more=CLASS, node_arguments=patient) as hub:
        clients = {
            name: NodeClient(hub.socket, hub.person(name).token)
            for name in ("alice", "bob", "carol")
        }
        clients["carol"].call(Method.QUOTA_SET, group="class", idle_timeout=600.0)
        clients["carol"].call(Method.QUOTA_SET, environment="s03", gpu_hours=0.0)
        held = clients["alice"].wait(ask(clients["alice"], "course/week3.ipynb", memory=4 * GIB))
        clients["alice"].wait(ask(clients["alice"], "finetune.ipynb", memory=4 * GIB))
        clients["alice"].call(Method.ACTIVITY, lease=held["lease"], state="idle")
        clients["bob"].wait(ask(clients["bob"], "experiments.ipynb", memory=6 * GIB))
        ask(clients["carol"], "report.ipynb", memory=24 * GIB)
        with sync_playwright() as play:
            browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            shoot(browser, hub, "alice", "", "hub-user.png")
            shoot(browser, hub, "carol", "admin?rows=8", "hub-admin.png")
            query = f"node={socket.gethostname()}&environment=s01&environment=s02&environment=s04"
            shoot(browser, hub, "carol", f"admin/quota?{query}", "hub-quota.png")
            several_hosts(browser, patient)
            browser.close()
        for client in clients.values():
            client.close()


if __name__ == "__main__":
    main()
