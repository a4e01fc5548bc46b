"""The site of these pages: `make docs` builds it; the pages are read on GitHub as well."""

from __future__ import annotations

import os
import re
import runpy
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from pygments.lexers.special import TextLexer

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(HERE))
import diagrams  # noqa: E402

sys.path.insert(0, str(ROOT))  # autodoc reads this tree, whatever is installed

project = "jupyter_gpushare"
author = "the jupyter_gpushare developers"
release = version = runpy.run_path(str(ROOT / "jupyter_gpushare/_version.py"))["__version__"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
smartquotes = False  # two dashes begin an option
nitpicky = True
# No inventory of other projects is fetched: the site is built without a network.
nitpick_ignore_regex = [
    ("py:class", r"(collections\.abc|jupyter_gpushare|pathlib)\..*|P|Prediction")
]  # P: parameters

myst_heading_anchors = 4  # links to headings are written as GitHub names them
myst_fence_as_directive = ["mermaid"]
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"

html_theme = "furo"
html_title = f"jupyter_gpushare {release}"
html_static_path = ["site"]
html_css_files = ["site.css"]
html_show_copyright = html_copy_source = False

#: Where the sources are, if the builder says so (Read the Docs does).
REPOSITORY = os.environ.get("READTHEDOCS_GIT_CLONE_URL", "").removesuffix(".git")


class Mermaid(Directive):
    """A diagram, as the picture that docs/diagrams.py made of it."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        text = "\n".join(self.content)
        picture = f"/{diagrams.DRAWN.name}/{diagrams.name_of(text)}.svg"
        if not (HERE / picture[1:]).exists():
            raise self.error("This diagram was not drawn yet: python docs/diagrams.py")
        alt = f"{diagrams.said(text, 'accTitle')}. {diagrams.said(text, 'accDescr')}"
        return [nodes.image(uri=picture, alt=alt, classes=["diagram"])]


def links_to_sources(_app: Any, docname: str, source: list[str]) -> None:
    """Links that leave docs/ lead to the repository; where that is not known, the words stay."""
    here = (HERE / docname).parent

    def there(link: re.Match[str]) -> str:
        words, target = link.groups()
        path = (here / target).resolve()
        if path.is_relative_to(HERE):
            return link[0]
        url = f"{REPOSITORY}/blob/HEAD/{path.relative_to(ROOT)}"
        return f"[{words}]({url})" if REPOSITORY else words

    source[0] = re.sub(r"\[([^\]]+)\]\((\.\./[^)\s#]+)\)", there, source[0])


def pictures_open(
    _app: Any, _page: str, _template: str, context: dict[str, Any], _doctree: Any
) -> None:
    """A click on a picture shows it in its own size; those in tables are small."""
    if "body" in context:
        img = r'(<img [^>]*src="([^"]+)"[^>]*>)'
        context["body"] = re.sub(img, r'<a href="\2">\1</a>', context["body"])


def setup(app: Any) -> None:
    app.connect("html-page-context", pictures_open)
    app.add_lexer("csv", TextLexer)
    app.add_directive("mermaid", Mermaid)
    app.connect("source-read", links_to_sources)
