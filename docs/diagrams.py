"""Draw the pages' Mermaid diagrams as pictures for the site: docs/diagrams/*.svg.

``python docs/diagrams.py`` (`make pictures`) after a diagram was changed. GitHub draws the diagrams
itself. The site shows these files, so that it loads no program from anywhere. A picture's name ends
with a checksum of its diagram. Needs chromium, and Mermaid, which comes with JupyterLab's packages.
"""

from __future__ import annotations

import hashlib
import html
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

DOCS: Final = Path(__file__).resolve().parent
DRAWN: Final = DOCS / "diagrams"
MERMAID: Final = DOCS.parent / "labextension/node_modules/mermaid/dist/mermaid.min.js"
_FENCE: Final = re.compile(r"^```mermaid\n(.*?)^```", re.MULTILINE | re.DOTALL)
#: Text as text: what HTML puts into a picture is not shown everywhere.
_SETTINGS: Final = {
    "startOnLoad": False,
    "htmlLabels": False,
    "flowchart": {"htmlLabels": False},
    "theme": "neutral",
    "fontFamily": "Liberation Sans, Arial, Helvetica, sans-serif",
    "themeVariables": {"fontSize": "15px"},
}
_PAGE: Final = """<!doctype html><meta charset="utf-8"><script src="{mermaid}"></script>
<pre id="drawn"></pre>
<script>
(async () => {{
  const drawn = {{}};
  try {{
    mermaid.initialize({settings});
    for (const [name, text] of Object.entries({diagrams})) {{
      const holder = document.createElement('div');
      holder.innerHTML = (await mermaid.render(name, text)).svg;
      drawn[name] = new XMLSerializer().serializeToString(holder.firstElementChild);
    }}
  }} catch (error) {{
    drawn.error = String(error);
  }}
  document.getElementById('drawn').textContent = JSON.stringify(drawn);
}})();
</script>
"""


def said(diagram: str, word: str) -> str:
    """What a diagram says of itself for those who do not see it: ``accTitle`` or ``accDescr``."""
    found = re.search(rf"^\s*{word}: (.+)$", diagram, re.MULTILINE)
    return found[1].strip() if found else ""


def name_of(diagram: str) -> str:
    """The picture's name: some words and the checksum."""
    words = re.sub(r"\W+", "-", said(diagram, "accTitle").lower()).strip("-")
    return f"{words}-{hashlib.sha256(diagram.strip().encode()).hexdigest()[:8]}"


def diagrams() -> Iterator[str]:
    """The diagrams of all pages."""
    for page in sorted(DOCS.rglob("*.md")):
        yield from _FENCE.findall(page.read_text("utf-8"))


def draw(wanted: Mapping[str, str]) -> dict[str, str]:
    """SVG of each diagram. Raises :class:`SystemExit` when one cannot be drawn."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        text = _PAGE.format(
            mermaid=MERMAID.as_uri(), settings=json.dumps(_SETTINGS), diagrams=json.dumps(wanted)
        )
        page.write_text(text, "utf-8")
        flags = ("--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files")
        done = subprocess.run(
            [
                os.environ.get("CHROMIUM", "chromium"),
                *flags,
                f"--user-data-dir={folder}/profile",
                "--virtual-time-budget=60000",
                "--dump-dom",
                page.as_uri(),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
    found = re.search(r'<pre id="drawn">(.+?)</pre>', done.stdout, re.DOTALL)
    drawn: dict[str, str] = json.loads(html.unescape(found[1])) if found else {}
    if drawn.keys() != wanted.keys():
        raise SystemExit(f"Not drawn: {drawn.get('error') or done.stderr[-2000:]}")
    return drawn


def with_ground(svg: str) -> str:
    """On white, so that it can be read in a dark theme; in its own size."""
    box = re.search(r'viewBox="([-\d.]+) ([-\d.]+) ([-\d.]+) ([-\d.]+)"', svg)
    assert box is not None
    x, y, width, height = box.groups()
    svg = svg.replace(' width="100%"', f' width="{width}" height="{height}"', 1)
    ground = f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="#fff"/>'
    return re.sub(r"(<svg [^>]*>)", rf"\1{ground}", svg, count=1) + "\n"


def main() -> int:
    """Return the exit status."""
    if not MERMAID.exists():
        print(f"{MERMAID} is not there: `make ui` installs it.", file=sys.stderr)
        return 1
    drawn = draw({name_of(one): one for one in diagrams()})
    DRAWN.mkdir(exist_ok=True)
    for old in DRAWN.glob("*.svg"):
        old.unlink()
    for name, svg in drawn.items():
        (DRAWN / f"{name}.svg").write_text(with_ground(svg), "utf-8")
    print(*sorted(drawn), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
