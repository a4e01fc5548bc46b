"""The docs say what the code does."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "binder").glob("*.md")]
)
#: The first line of a page that a program writes.
MADE = re.compile(r"<!-- Made by ")
UNITS = {
    **{"s": 1.0, "seconds": 1.0, "min": 60.0, "minutes": 60.0, "h": 3600.0, "hours": 3600.0},
    **{"days": 86400.0, "MiB": 2.0**20, "GiB": 2.0**30, "MB": 1e6, "%": 0.01},
}


def test_generated_pages_are_fresh():
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "generate.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{page.name}: {target}"
        if anchor:
            titles = re.findall(r"^#+ (.+)$", there.read_text("utf-8"), re.MULTILINE)
            anchors = [re.sub(r"[^\w\- ]", "", t).strip().lower().replace(" ", "-") for t in titles]
            assert anchor in anchors, f"{page.name}: {target}"


def test_tables_render():
    """A table has a head, and its rows have as many cells."""
    for page in PAGES:
        text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
        for block in re.findall(r"(?:^[ ]*\|.*\n)+", text, re.MULTILINE):
            head, *rows = block.splitlines()
            assert rows, f"{page.name}: {head}"
            assert re.fullmatch(r" *(\| *:?-+:? *)+\|", rows[0]), f"{page.name}: {head}"
            cells = [len(re.findall(r"(?<!\\)\|", row)) for row in (head, *rows)]
            assert len(set(cells)) == 1, f"{page.name}: {head}"


def test_nothing_is_said_twice():
    """A merge that went wrong, or a paragraph that was copied; programs write some pages."""
    seen = {}
    for page in PAGES:
        if MADE.search(text := page.read_text("utf-8")):
            continue
        text = re.sub(r"<!-- made: .*?<!-- end -->", "", text, flags=re.DOTALL)
        for part in re.split(r"\n\n|\n(?=[|*-] |\d+\. )", text):
            words = " ".join(part.split())
            if len(words) > 150:
                assert words not in seen, f"{page.name} and {seen[words]}: {words}"
                seen[words] = page.name


def test_what_was_measured_is_not_copied_by_hand():
    """Where a text leads to a page of figures, docs/generate.py writes its own figures."""
    figures = re.compile(r"<!-- [\w-]+\.md: [^>]+ -->[^<]*<!-- / -->")
    for page in PAGES:
        if MADE.search(text := page.read_text("utf-8")):
            continue
        for part in re.split(r"\n\n|\n(?=[|*-] |\d+\. )", text):
            if re.search(r"\]\([^)]*(benchmarks[\w-]*|replay)\.md\)", part):
                left = re.findall(r"[\d.]+ (?:ms|µs|MiB)\b", figures.sub("", part))
                assert left == [], f"{page.name}: {part}"


def test_the_default_beside_a_setting_is_its_own():
    """In `` `stop_after` (300 s) `` and ``after 30 minutes (`stalled_interrupt`)``."""
    rows = (ROOT / "docs/generated/configuration.md").read_text("utf-8")
    default = {
        name: float(value)
        for name, value in re.findall(r"^\| `(\w+)` \| `([\d.]+)` \|", rows, re.MULTILINE)
    }
    unit = "|".join(map(re.escape, UNITS))
    value = rf"([\d.,]+) ?({unit})?"
    seen = 0
    for page in PAGES:
        text = " ".join(page.read_text("utf-8").split())
        found = re.findall(rf"`(?:c\.\w+\.)?(\w+)` \((?:default: )?{value}[;)]", text)
        before = re.findall(rf"\b{value} \(`(?:c\.\w+\.)?(\w+)`\)", text)
        for name, number, of in [*found, *((name, n, of) for n, of, name in before)]:
            if name in default:
                seen += 1
                told = float(number.replace(",", "")) * UNITS.get(of, 1.0)
                either = (default[name], default[name] / 100)  # hundredths of a GPU
                assert any(told == pytest.approx(one) for one in either), f"{page.name}: {name}"
    assert seen > 40


def test_contributing_names_all_packages_and_what_to_read_first():
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    packages = {path.parent.name for path in (ROOT / "jupyter_gpushare").glob("*/__init__.py")}
    assert packages == set(re.findall(r"^\| `(\w+)/` \|", text, re.MULTILINE))
    files = re.findall(r"^\d+\. `([\w/]+\.py)`", text, re.MULTILINE)
    assert 0 < len(files) <= 10
    assert [file for file in files if not (ROOT / "jupyter_gpushare" / file).exists()] == []


@pytest.mark.parametrize(
    ("page", "heading", "quoted"),
    [
        ("how-to/promises.md", "How the promise is kept", r"(?s)```text\n(.*?)```"),
        ("how-to/promises.md", "When it cannot be kept", r"(?m)^\| (?!the reason)([^|-][^|]+) \|"),
        ("panel.md", "Why is my cell not progressing?", r"(?m)^\| (\*[^|]+) \|"),
    ],
)
def test_what_pages_quote_of_a_status_is_what_the_node_manager_says(page, heading, quoted):
    texts = set()
    for file in (ROOT / "tests/golden").rglob("*.json"):
        texts |= set(re.findall(r'"((?:[^"\\]|\\.)*)"', file.read_text("utf-8")))
    # Some sentences are of situations that are not among the golden ones.
    composer = (ROOT / "jupyter_gpushare/compose").glob("*.py")
    texts |= {file.read_text("utf-8") for file in composer}
    said = {_without_figures(text) for text in texts}
    text = (ROOT / "docs" / page).read_text("utf-8").partition(f"## {heading}\n")[2]
    parts = re.findall(quoted, text.partition("\n## ")[0])
    lines = [line.strip("*") for part in parts for line in re.split(r"\n| · ", part) if line]
    assert lines
    # A front end begins a sentence with a capital where the node manager says a few words.
    told = [(_without_figures(line), line) for line in lines]
    assert [
        line
        for form, line in told
        if not any(form in text or f"{form[0].lower()}{form[1:]}" in text for text in said)
    ] == []


def _without_figures(text: str) -> str:
    """A sentence with ``#`` for each figure, time and size."""
    figure = r"\d(?:[\d.,:]*\d)?(?: to \d+)?(?: (?:s|min|h|d|MiB|GiB)\b)?"
    return re.sub(rf"\{{[^{{}}]*\}}|{figure}", "#", text)


def test_each_section_that_runs_on_real_gpus_is_told():
    tree = ast.parse((ROOT / "tests/hardware/sections.py").read_text("utf-8"))
    sections = next(
        node.value
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "SECTIONS"
    )
    text = (ROOT / "docs/hardware/README.md").read_text("utf-8").partition("## What it measures")[2]
    assert isinstance(sections, ast.Dict)
    assert set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == {
        ast.literal_eval(key) for key in sections.keys if key is not None
    }


def test_what_docstrings_refer_to_is_there():
    lost = []
    for path in (ROOT / "jupyter_gpushare").rglob("*.py"):
        for kind, dots, name in re.findall(
            r":(mod|func|class|data|meth|attr):`~?(\.+)([\w.]+)`", path.read_text("utf-8")
        ):
            place, parts = path.parents[len(dots) - 1], name.split(".")
            while parts and (place / parts[0]).is_dir():
                place /= parts.pop(0)
            file = place / "__init__.py"
            if parts and (place / f"{parts[0]}.py").exists():
                file = place / f"{parts.pop(0)}.py"
            there = not parts or (
                kind != "mod" and re.search(rf"\b{parts[-1]}\b", file.read_text())
            )
            lost += [] if there else [f"{path.relative_to(ROOT)}: {dots}{name}"]
    assert lost == []


@pytest.mark.parametrize("page", ["user", "admin"])
def test_users_and_administrators_are_led_to_all_their_tasks(page):
    """All how-tos that the index has beside this page."""
    tree = (ROOT / "docs/index.md").read_text("utf-8")
    ours = next(part for part in tree.split("```") if f"\n{page}\n" in part)
    text = (ROOT / f"docs/{page}.md").read_text("utf-8")
    tasks = re.findall(r"^(how-to/[\w-]+)$", ours, re.MULTILINE)
    assert len(tasks) > 10
    assert [task for task in tasks if f"({task}.md" not in text] == []


def test_the_tests_of_what_others_reported_are_there():
    named = re.findall(
        r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs/reported.md").read_text("utf-8")
    )
    assert len(named) > 20
    lost = [
        f"{file}::{test}"
        for file, test in named
        if f"def {test}(" not in (ROOT / file).read_text("utf-8")
    ]
    assert lost == []


def test_pages_that_programs_name_are_there():
    named = set()
    for folder in ("jupyter_gpushare", "labextension/src", "etc", "scripts"):
        for file in (ROOT / folder).rglob("*"):
            if file.suffix in {".py", ".ts", ".tsx", ".service", ".yml", ".html"}:
                named |= set(re.findall(r"\bdocs/[\w/-]+\.md", file.read_text("utf-8")))
    assert len(named) > 5
    assert [page for page in sorted(named) if not (ROOT / page).exists()] == []


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs" / "how-to").glob("*.md")), ids=lambda page: page.stem
)
def test_a_how_to_has_a_short_title_a_problem_and_steps(page):
    title, problem, *_ = page.read_text("utf-8").split("\n\n")
    assert re.fullmatch(r"# .{8,45}", title)
    assert problem[0].isupper()
    assert len(problem) < 200
    linked = (ROOT / "docs" / "how-to.md").read_text("utf-8")
    assert f"(how-to/{page.name}" in linked


def test_the_page_about_servers_says_how_each_was_tried():
    from jupyter_gpushare.serve.adapters import OWN

    page = (ROOT / "docs" / "how-to" / "serve.md").read_text("utf-8")
    assert [one.name for one in OWN if f"| {one.tried}" not in page] == []


def test_every_verb_in_the_docs_exists():
    from jupyter_gpushare.cli.app import GpuShareApp

    for page in PAGES:
        for verb in re.findall(r"jupyter gpushare ([a-z]+)", page.read_text("utf-8")):
            assert verb in GpuShareApp.subcommands, f"{page.name}: jupyter gpushare {verb}"


def test_every_option_magic_and_trait_in_the_docs_exists():
    from jupyter_gpushare.client.cell.magics import VERB_OPTIONS

    made = ROOT / "docs" / "generated"
    options = set(re.findall(r"`(--?[\w-]+)", (made / "cli.md").read_text("utf-8")))
    traits = set(re.findall(r"^\| `(\w+)`", (made / "configuration.md").read_text("utf-8"), re.M))
    classes = re.findall(r"^### (c\.\w+)$", (made / "configuration.md").read_text("utf-8"), re.M)
    trait = re.compile(rf"\b(?:{'|'.join(map(re.escape, classes))})\.(\w+)")
    for page in PAGES:
        if page.name == "CHANGELOG.md":  # it tells of former ones, too
            continue
        text = page.read_text("utf-8")
        lines = re.findall(r"^ *(?:\S*/)?jupyter gpushare (.*)$", text, re.MULTILINE)
        for line in [*lines, *re.findall(r"`jupyter gpushare ([^`\n]*)`", text)]:
            ours = line.partition(" -- ")[0]
            for option in re.findall(r"(?<!\S)(--[a-z][\w-]*)(?=\s|=|$)", ours):
                assert option in options, f"{page.name}: {line}"
        for verb in re.findall(r"(?<!%)%gpushare ([a-z]+)", text):
            assert verb in VERB_OPTIONS, f"{page.name}: %gpushare {verb}"
        for name in trait.findall(text):
            assert name in traits, f"{page.name}: {name}"


def test_the_protocols_page_names_every_method_and_notification():
    from jupyter_gpushare.protocol.messages import Method, Notice

    text = (ROOT / "docs" / "protocol.md").read_text("utf-8")
    for method in Method:
        assert f"`{method.value}`" in text
    for notice in Notice:
        assert f"`{notice.value} {{" in text or f"`{notice.value}`" in text


def test_what_the_table_of_troubles_quotes_is_what_programs_say():
    """Words in quotes come from our code; alerts and lines of the log are ones that there are."""
    text = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
    table = text[text.index("## The table") : text.index("## What to send")]
    sources = [path.read_text("utf-8") for path in (ROOT / "jupyter_gpushare").rglob("*.py")]
    # A sentence may be on two lines of the code.
    said = " ".join(re.sub(r'"\s*\n\s*f?"', "", source) for source in sources)
    quoted = {words.rstrip("… ") for words in re.findall(r'"([^"\n|`]+)"', table)}
    others = {"kernel died"}  # JupyterLab's
    assert len(quoted) > 10
    assert {words for words in quoted - others if words not in said} == set()
    lines = set(re.findall(r"`((?:lease|process|gpu|turn|request|call)\.[a-z_]+)`", table))
    assert {line for line in lines if f'"{line}"' not in said} == set()
    rules = (ROOT / "etc" / "prometheus" / "jupyter-gpushare.rules.yml").read_text("utf-8")
    alerts = set(re.findall(r"`(GpuShare\w+)`", table))
    assert {alert for alert in alerts if f"alert: {alert}\n" not in rules} == set()
