"""The site of docs/ builds without a warning, and everything on it can be found."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(page.relative_to(DOCS).with_suffix("") for page in DOCS.rglob("*.md"))
SOURCES = "https://example.org/jupyter_gpushare"


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """As `make docs` builds it, for a repository at ``SOURCES``."""
    out = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "sphinx",
            "-W",
            "--keep-going",
            "-n",
            "-q",
            f"-d{out / 'doctrees'}",
            DOCS,
            out / "html",
        ],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "READTHEDOCS_GIT_CLONE_URL": f"{SOURCES}.git"},
    )
    assert done.returncode == 0, done.stderr
    return out / "html"


class Reader(HTMLParser):
    """What a page links to, and its pictures."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.pictures: list[dict[str, str | None]] = []
        self.feed(page.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = dict(attrs)
        if tag == "a" and told.get("href"):
            self.links.append(str(told["href"]))
        if tag == "img":
            self.pictures.append(told)


def test_every_page_is_in_the_sidebar(site):
    links = set(Reader(site / "index.html").links)
    assert {str(page) for page in PAGES if f"{page}.html" not in links} == {"index"}


def test_every_picture_says_what_it_shows(site):
    pictures = [
        (page.name, picture) for page in site.rglob("*.html") for picture in Reader(page).pictures
    ]
    assert len(pictures) > 15
    assert [one for one in pictures if len(one[1].get("alt") or "") < 4] == []
    for page in [ROOT / "README.md", *DOCS.rglob("*.md")]:
        text = page.read_text("utf-8")
        assert not re.search(r"!\[\s*\]\(", text), page
        for diagram in re.findall(r"^```mermaid\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            assert "accTitle: " in diagram, page
            assert "accDescr: " in diagram, page


def test_the_site_loads_nothing_from_elsewhere(site):
    loads = re.compile(
        r"""<(?:script|img|link|iframe)\b[^>]*\b(?:src|href)=["'](?:https?:)?//[^"']*["'][^>]*>"""
        r"""|\bimport\b[^;"']{0,80}["']https?:|url\(\s*["']?https?:"""
    )
    found = {
        hit
        for kind in ("html", "css", "js")
        for file in site.rglob(f"*.{kind}")
        for hit in loads.findall(file.read_text("utf-8"))
    }
    assert {hit for hit in found if 'rel="canonical"' not in hit} == set()
    assert "mermaid.initialize" not in (site / "how-it-works.html").read_text("utf-8")


def test_every_diagram_was_drawn(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    import diagrams

    wanted = {diagrams.name_of(one) for one in diagrams.diagrams()}
    assert wanted == {file.stem for file in diagrams.DRAWN.glob("*.svg")}, (
        "python docs/diagrams.py draws them"
    )
    for name in wanted:
        assert "foreignObject" not in (diagrams.DRAWN / f"{name}.svg").read_text("utf-8")


@pytest.mark.parametrize(
    ("word", "page"),
    [
        ("squatter", "glossary"),
        ("voucher", "security"),
        ("kueue", "is-it-for-me"),
        ("drain", "generated/cli"),
        ("quotawish", "generated/rest"),
        ("quotaexceed", "api"),  # as the search cuts QuotaExceeded
    ],
)
def test_the_search_finds(site, word, page):
    told = (site / "searchindex.js").read_text("utf-8")
    index = json.loads(told.removeprefix("Search.setIndex(").removesuffix(")"))
    found = [index[where].get(word, []) for where in ("terms", "titleterms")]
    numbers = {number for one in found for number in (one if isinstance(one, list) else [one])}
    assert page in [index["docnames"][number] for number in numbers]


def test_a_click_opens_a_picture(site):
    links = Reader(site / "panel.html").links
    assert "_images/panel-waiting.png" in links
    assert [link for link in links if link.endswith(".png") and not (site / link).exists()] == []


def test_links_to_sources_lead_to_the_repository(site):
    links = Reader(site / "comparison.html").links
    assert f"{SOURCES}/blob/HEAD/jupyter_gpushare/node/inventory/nvml.py" in links


def test_python_signatures_are_there(site):
    text = (site / "api.html").read_text("utf-8")
    from jupyter_gpushare import client

    assert [
        name for name in client.__all__ if f'id="jupyter_gpushare.client.{name}"' not in text
    ] == []
