"""What the repository says about itself in many files is true and the same in each.

Workflows, hooks, version and changelog are read by GitHub, pre-commit or PyPI only, so nobody would
notice here that they rot.
"""

from __future__ import annotations

import ast
import datetime
import json
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.costs import SLOW

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PACKAGE = json.loads((ROOT / "labextension" / "package.json").read_text("utf-8"))
RELEASE = runpy.run_path(str(ROOT / "scripts" / "release.py"), run_name="release")
CLIENT = tomllib.loads((ROOT / "client" / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
HOOKS = {
    hook["id"]: hook
    for repo in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))["repos"]
    for hook in repo["hooks"]
}


def read(workflow: Path) -> dict[str, Any]:
    """A workflow; YAML 1.1 reads its key `on` as True."""
    return yaml.safe_load(workflow.read_text("utf-8"))


def steps() -> list[tuple[str, dict[str, Any]]]:
    """All steps of all workflows, with the name of their file."""
    return [
        (path.name, step)
        for path in WORKFLOWS
        for job in read(path)["jobs"].values()
        for step in job.get("steps", ())
    ]


#: What a job may do besides reading: publish to PyPI or ghcr.io; add a line to docs/trend.jsonl.
NEEDS = {
    ("release.yml", "publish"): {"id-token": "write"},
    ("weekly.yml", "trend"): {"contents": "write"},
    ("images.yml", "image"): {
        "contents": "read",
        "packages": "write",
        "id-token": "write",
        "attestations": "write",
    },
}
CI = read(GITHUB / "workflows" / "ci.yml")["jobs"]


# -- what GitHub reads -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("github-workflows", WORKFLOWS),
        ("github-issue-forms", sorted((GITHUB / "ISSUE_TEMPLATE").glob("[!c]*.yml"))),
        ("github-issue-config", [GITHUB / "ISSUE_TEMPLATE" / "config.yml"]),
        ("dependabot", [GITHUB / "dependabot.yml"]),
        ("citation-file-format", [ROOT / "CITATION.cff"]),
        ("readthedocs", [ROOT / ".readthedocs.yaml"]),
    ],
)
def test_files_for_others_are_as_they_read_them(schema: str, files: list[Path]) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    done = subprocess.run(
        [*command, *files], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_workflows_name_make_targets_that_there_are() -> None:
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    called = {
        name
        for _, step in steps()
        for name in re.findall(r"\bmake ([a-z][\w-]*)", step.get("run", ""))
    }
    assert {"dist", "docs", "matrix", "test", "test-long"} <= called
    assert called - targets == set()


def test_slow_tests_are_named_as_they_are() -> None:
    for line in SLOW.read_text("utf-8").splitlines():
        file, *names = line.removesuffix("::runTest").split("::")
        text = (ROOT / file).read_text("utf-8")
        for name in names[-1:]:
            assert re.search(rf"^ *((async )?def {name}\(|{name} = )", text, re.M), line


def test_what_a_test_waits_for_may_take_a_minute() -> None:
    """Only a test that fails waits so long, and a busy machine may need it."""
    short = re.compile(
        r"(?:\.(?:join|result|wait)|asyncio\.timeout)\((?:[6-9]|[1-4]\d)(?:\.\d+)?\)"
    )
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in (ROOT / "tests").rglob("*.py")
        if "hardware" not in path.parts  # runs by hand, on a host that has GPUs
        for match in short.finditer(path.read_text("utf-8"))
    ]
    assert found == []


def test_workflows_name_files_that_there_are() -> None:
    named = {
        word
        for _, step in steps()
        for word in re.findall(r"[\w./-]+\.py\b|labextension/\S+", step.get("run", ""))
    }
    assert "tests/server/test_routes.py" in named
    assert {name for name in named if not (ROOT / name).exists()} == set()


def test_actions_are_named_by_commit_and_alike() -> None:
    """A tag can be moved to other code."""
    lines = [
        line.partition("uses: ")[2]
        for path in WORKFLOWS
        for line in path.read_text("utf-8").splitlines()
        if re.search(r"\buses: (?!\./)", line)
    ]
    assert len(lines) > 10
    pinned = re.compile(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
    assert [line for line in lines if not pinned.fullmatch(line)] == []
    assert len({line.partition("@")[0] for line in lines}) == len(set(lines))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_job_ends_and_may_no_more_than_it_needs(path: Path) -> None:
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert "uses" in job or job["timeout-minutes"] <= 90, name
        if "permissions" in job:
            assert job["permissions"] == NEEDS[path.name, name]
            # What is installed or built could use the job's token.
            said = " ".join(step.get("run", "") for step in job["steps"])
            assert not re.search(r"\b(?:make|pip|pipx|npm|jlpm)\b", said), name


def test_ci_has_each_python_that_the_package_names() -> None:
    project = PYPROJECT["project"]
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert CI["test"]["strategy"]["matrix"]["python"] == named
    assert project["requires-python"] == f">={named[0]}"
    assert re.findall(r"Python :: (3\.\d+)", "\n".join(CLIENT["classifiers"])) == named


def test_ci_builds_with_the_oldest_node_that_will_do() -> None:
    oldest = re.search(r"process\.versions\.node\) < (\d+)", (ROOT / "Makefile").read_text("utf-8"))
    assert oldest is not None
    used = {
        step["with"]["node-version"]
        for _, step in steps()
        if "node-version" in step.get("with", {})
    }
    assert used == {oldest[1]}


# -- hooks -----------------------------------------------------------------------------------------


def test_hooks_need_nothing_of_this_checkout() -> None:
    assert {hook["language"] for hook in HOOKS.values()} == {"python", "node"}
    assert not any(".venv" in hook["entry"] for hook in HOOKS.values())


def test_hooks_have_the_versions_of_make_lint() -> None:
    lock = (ROOT / "labextension" / "yarn.lock").read_text("utf-8")
    prettier = re.search(r'^"prettier@npm:.*\n  version: (\S+)$', lock, re.M)
    assert prettier is not None
    exact = {need for need in EXTRAS["dev"] if "==" in need} | {f"prettier@{prettier[1]}"}
    used = {need for hook in HOOKS.values() for need in hook["additional_dependencies"][:1]}
    assert used == exact | {need for need in exact if need.startswith("import-linter")}
    seen = {need for need in PYPROJECT["project"]["dependencies"] if "gpushare" not in need}
    seen.update(*(EXTRAS[extra] for extra in ("checkpoint", "hub", "replay", "serve")))
    assert set(HOOKS["mypy"]["additional_dependencies"][1:]) == seen


# -- version, changelog, metadata ------------------------------------------------------------------


def test_all_say_the_same_version_and_date() -> None:
    assert RELEASE["problems"]() == []


def test_a_release_is_prepared_by_one_command(tmp_path: Path) -> None:
    for name in ("CHANGELOG.md", "CITATION.cff", "pyproject.toml", "changes", "scripts"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    for place in (RELEASE["SOURCE"], RELEASE["NPM"], RELEASE["CHART"]):
        (tmp_path / place.file).parent.mkdir(parents=True)
        shutil.copy(ROOT / place.file, tmp_path / place.file)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / "changes" / "7.fixed.md").write_text("It works.\n")
    assert RELEASE["unready"]("v9.0.0rc1", tmp_path)

    RELEASE["prepare"]("9.0.0rc1", datetime.date(2099, 12, 31), tmp_path)

    assert RELEASE["unready"]("v9.0.0rc1", tmp_path) == []
    (why,) = RELEASE["unready"]("v9.0.0", tmp_path)
    assert why.startswith("The tag is v9.0.0, and the version is 9.0.0rc1:")
    package = json.loads((tmp_path / "labextension" / "package.json").read_text("utf-8"))
    assert package == PACKAGE | {"version": "9.0.0-rc.1"}
    chart = yaml.safe_load((tmp_path / RELEASE["CHART"].file).read_text("utf-8"))
    assert (chart["version"], chart["appVersion"]) == ("9.0.0-rc.1", "9.0.0rc1")
    text = (tmp_path / "CHANGELOG.md").read_text("utf-8")
    newest = text[text.index("## ") :].partition("\n## ")[0]
    assert newest.startswith("## 9.0.0rc1 (2099-12-31)\n\n")
    assert "## Unreleased" not in text
    assert "- It works." in newest.partition("### Fixed\n\n")[2].partition("\n###")[0]


def test_lines_for_the_changelog_are_of_kinds_that_there_are() -> None:
    kinds = "|".join(kind["directory"] for kind in PYPROJECT["tool"]["towncrier"]["type"])
    name = re.compile(rf"(\d+|\+[\w-]+)\.({kinds})\.md")
    names = [path.name for path in (ROOT / "changes").iterdir() if path.name != "README.md"]
    assert [found for found in names if not name.fullmatch(found)] == []


def test_python_npm_and_citation_lead_to_one_place() -> None:
    urls = PYPROJECT["project"]["urls"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    home = urls["Homepage"]
    assert PACKAGE["homepage"] == citation["repository-code"] == urls["Source"] == home
    assert PACKAGE["bugs"]["url"] == urls["Issues"] == f"{home}/issues"
    assert PACKAGE["repository"]["url"] == f"{home}.git"
    assert urls["Documentation"] == citation["url"]
    for key in ("urls", "authors", "license", "requires-python"):
        assert CLIENT[key] == PYPROJECT["project"][key], key
    (author,) = PYPROJECT["project"]["authors"]
    assert [author] == citation["authors"]
    assert PACKAGE["author"] == author["name"]
    assert PACKAGE["license"] == citation["license"] == PYPROJECT["project"]["license"]


# -- tests -----------------------------------------------------------------------------------------


def says_a_promise(source: str) -> bool:
    """Whether the first line of a test file is a sentence, for a reader who sees it first."""
    said = ast.get_docstring(ast.parse(source)) or ""
    first = said.partition("\n")[0]
    return first.endswith(".") and len(first.split()) >= 5


def test_each_test_file_begins_with_the_promise_that_it_holds() -> None:
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    assert [str(path) for path in files if not says_a_promise(path.read_text("utf-8"))] == []
    assert not says_a_promise("import os\n")
    assert not says_a_promise('"""Tests of the registry."""\n')
    assert not says_a_promise('"""A sentence that goes on\nin the next line."""\n')
