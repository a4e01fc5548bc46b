"""Make docs/images/ from a real JupyterLab, in Debian's chromium: ``make pictures``.

The tour is opened here; the main states of the panel are pictures that the
tests in a browser have just made.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
CHROMIUM = os.environ.get("CHROMIUM", shutil.which("chromium") or "/usr/bin/chromium")
TAKEN = ROOT / "labextension" / "ui-tests" / "screenshots"
CHOSEN = (
    "elastic",
    "empty",
    "waiting",
    "over-quota",
    "stale",
    "sweep",
    "admin",
    "history-light",
    "panel-dark",
    "panel-high-contrast",
    "notebook7",
    "warning",
    "keep",
    "parked",
    "request",
    "lacking",
    "plots",
)
#: Cells of the tour to run, texts included.
UNTIL_COMPUTED = 7
ARGUMENTS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-background-networking"]


def shoot(page: Page, url: str) -> None:
    """Run the tour until something was computed, and take a picture of its beginning."""
    page.goto(url)
    page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=60_000)
    page.locator(".jp-Notebook .jp-Cell").first.click()
    for _ in range(UNTIL_COMPUTED):
        page.keyboard.press("Shift+Enter")
    page.locator(".jp-InputPrompt", has_text="[4]:").wait_for(timeout=90_000)
    # Not before: the layout that is restored would undo the click.
    page.get_by_role("tab", name="GPUs", exact=True).click()
    page.locator(".jp-gpushare-row").wait_for(timeout=90_000)
    popup = page.get_by_role("button", name="No", exact=True)
    if popup.is_visible():
        popup.click()
        popup.wait_for(state="hidden")
    page.evaluate("document.querySelector('.jp-WindowedPanel-outer').scrollTop = 0")
    page.get_by_role("heading", name="A GPU, just in time").wait_for()
    page.screenshot(path=IMAGES / "lab.png")


def main() -> None:
    """Start the lab, look, stop it; then take the tests' pictures."""
    IMAGES.mkdir(exist_ok=True)
    for name in CHOSEN:
        shutil.copy(TAKEN / f"{name}.png", IMAGES / f"panel-{name.removeprefix('panel-')}.png")
    shutil.rmtree(ROOT / ".lab", ignore_errors=True)
    lab = subprocess.Popen(
        [
            *(sys.executable, ROOT / "scripts" / "lab.py", "--no-browser"),
            *("--ServerApp.port=0", "--IdentityProvider.token=picture"),
            "--LabApp.news_url=",
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert lab.stderr is not None
    try:
        for line in lab.stderr:
            if match := re.search(r"http://127\.0\.0\.1:\d+/lab\S*", line):
                break
        else:
            raise SystemExit("JupyterLab did not start")
        url = match[0].replace("token=...", "token=picture")
        with sync_playwright() as play:
            browser = play.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
            shoot(browser.new_page(viewport={"width": 1360, "height": 900}), url)
            browser.close()
    finally:
        lab.terminate()
        lab.wait(30)


if __name__ == "__main__":
    main()
