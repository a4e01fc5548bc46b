"""The rows of `make matrix` cover each version that we promise.

The rows themselves need the network and minutes: `make matrix` runs them.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import matrix
import wheels
from matrix import NEWEST, ROWS, Outcome, Report, Result, Row, Step

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
#: The oldest and the newest of each must be in a row. The panel's range is that of its own tests.
WANTED = {
    "jupyterlab": {"4.2.*", NEWEST},
    "notebook": {"7.2.*", NEWEST},
    "jupyterhub": {"5.3.*", NEWEST},
    "jupyter-server": {"2.16.*", NEWEST},
    "ipykernel": {"6.*", "7.*", NEWEST},
}


@pytest.mark.parametrize("package", WANTED)
def test_the_rows_have_the_oldest_and_the_newest_of(package: str) -> None:
    there = {row.packages[package] for row in ROWS if package in row.packages}
    assert there == WANTED[package]


def test_the_rows_have_each_python_that_we_name() -> None:
    named = wheels.supported(PROJECT)
    assert {row.python for row in ROWS} == named
    assert {"3.11", "3.12", "3.13"} <= named <= set(wheels.PYTHONS)


def test_the_rows_have_each_step_and_torch_in_a_kernel_of_each_python() -> None:
    assert {step for row in ROWS for step in row.steps} == set(Step)
    with_kernel = {row.python for row in ROWS if Step.KERNEL in row.steps}
    assert with_kernel == wheels.supported(PROJECT)


@pytest.mark.parametrize("package", ["jupyter-server", "ipykernel", "jupyterhub"])
def test_the_oldest_row_has_what_pyproject_allows(package: str) -> None:
    hub = PROJECT["project"]["optional-dependencies"]["hub"]
    all_needs = [*PROJECT["project"]["dependencies"], *hub]
    needs = {matrix.package_of(need): need for need in all_needs}
    (bound,) = re.findall(r">=([\d.]+)", needs[package])
    lowest = {row.packages[package] for row in ROWS if row.lowest and package in row.packages}
    assert all(bound.startswith(version.removesuffix(".*")) for version in lowest), (bound, lowest)


def test_the_list_is_json_that_a_workflow_can_read() -> None:
    listed = subprocess.run(
        [sys.executable, ROOT / "scripts" / "matrix.py", "--list", "--json"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert [row["name"] for row in json.loads(listed)] == [row.name for row in ROWS]
    assert json.loads(listed)[0]["python"] == ROWS[0].python


def test_an_unknown_row_is_said_with_those_that_there_are() -> None:
    assert [row.name for row in matrix.chosen_rows(["newest"])] == ["newest"]
    assert matrix.chosen_rows([]) == ROWS
    with pytest.raises(SystemExit, match=r"no row new in the matrix.* newest"):
        matrix.chosen_rows(["new"])


def test_what_wheels_need_is_without_extras_and_without_each_other() -> None:
    client = "Metadata-Version: 2.4\nName: jupyter-gpushare-client\n\nlong text\nName: other\n"
    whole = (
        "Metadata-Version: 2.4\nName: jupyter_gpushare\n"
        "Requires-Dist: jupyter_gpushare_client==0.1.0\n"
        "Requires-Dist: immutables>=0.21; python_version < '3.14'\n"
        "Requires-Dist: jupyter-server<3,>=2.16\n"
        "Requires-Dist: torch>=2.4; extra == 'demo'\n\nlong text\n"
    )
    wanted = ["immutables>=0.21; python_version < '3.14'", "jupyter-server<3,>=2.16"]
    assert matrix.needs_of([client, whole]) == wanted
    assert [matrix.package_of(need) for need in wanted] == ["immutables", "jupyter-server"]


def reports(*outcomes: Outcome) -> list[Report]:
    results = [Result(step, one, "Why.", 1.0) for step, one in zip(Step, outcomes, strict=False)]
    row = Row("some", "3.11", {"ipykernel": "6.*"}, tuple(result.step for result in results))
    return [Report(row, {"python": "3.11.7", "ipykernel": "6.31.0"}, tuple(results), "today")]


def test_the_table_tells_versions_outcomes_and_reasons() -> None:
    told = matrix.table(reports(Outcome.OK, Outcome.FAILED, Outcome.SKIPPED))
    assert "| some | 3.11.7 |  |  |  |  | 6.31.0 |  | ok | failed | skipped | 3 | today |" in told
    assert told.endswith("\n\n- some, doctor: failed. Why.\n- some, server: skipped. Why.")
    dependencies = matrix.dependencies_table(reports(Outcome.OK), ["ipykernel>=6.29"])
    assert dependencies.endswith("| `ipykernel>=6.29` | 6.31.0 |")


def test_a_report_that_is_kept_says_the_same() -> None:
    (report,) = reports(Outcome.OK, Outcome.FAILED)
    known = replace(report, row=ROWS[0])
    kept = json.loads(json.dumps(matrix.report_as_json(known)))
    assert matrix.report_from_json(kept) == known


def test_a_page_keeps_the_rows_of_other_trees() -> None:
    old, new = (
        Report(row, {"python": "3.11.7", "psutil": "5.9.4", "other": "1"}, (), measured)
        for row, measured in ((ROWS[0], "before"), (ROWS[1], "now"))
    )
    before = [*map(matrix.report_as_json, [old]), {"row": "no more"}]
    needs = ["psutil>=5.9.4"]
    kept = matrix.newest_of(before, [new], needs)
    assert [(one.row.name, one.measured) for one in kept] == [
        (ROWS[0].name, "before"),
        (ROWS[1].name, "now"),
    ]
    assert kept[1].versions == {"python": "3.11.7", "psutil": "5.9.4"}
    skipped = replace(old, measured="", versions={})
    assert matrix.newest_of(before, [skipped], needs)[0].measured == "before"


def test_each_lower_bound_is_what_the_oldest_row_had() -> None:
    """A bound that nothing was tested with is a wish: raise it, or let the row reach it."""
    reports = json.loads((ROOT / "docs" / "versions.json").read_text())
    (oldest,) = [report for report in reports if report["row"] == "oldest"]
    assert oldest["measured"]
    for need in PROJECT["project"]["dependencies"]:
        (bound,) = re.findall(r">=([\d.]+)", need) or [None]
        if bound is not None:
            had = oldest["versions"][matrix.package_of(need)]
            assert f"{had}.".startswith(f"{bound}."), (need, had)


@pytest.mark.parametrize(
    ("outcome", "required", "failed"),
    [
        (Outcome.OK, True, False),
        (Outcome.FAILED, False, True),
        (Outcome.SKIPPED, False, False),
        (Outcome.SKIPPED, True, True),
    ],
)
def test_what_counts_as_failed(outcome: Outcome, required: bool, failed: bool) -> None:
    assert matrix.failed(reports(Outcome.OK, outcome), required) is failed


def test_a_part_of_a_page_is_replaced() -> None:
    page = "Before.\n<!-- begin it -->\nold\n<!-- end it -->\nAfter.\n"
    once = matrix.with_part(page, "it", "new")
    assert once == "Before.\n<!-- begin it -->\n\nnew\n\n<!-- end it -->\nAfter.\n"
    assert matrix.with_part(once, "it", "new") == once
    with pytest.raises(ValueError, match="begin other"):
        matrix.with_part(page, "other", "new")


def test_a_python_that_is_not_there_skips_its_row_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = Row("future", "3.99", {}, (Step.INSTALL, Step.DOCTOR))
    runner = matrix.Runner(tmp_path, tmp_path, "torch", "today")
    report = runner.run(row)
    assert {result.outcome for result in report.results} == {Outcome.SKIPPED}
    assert "no Python 3.99 here" in report.results[0].text
    assert "future: SKIPPED" in capsys.readouterr().out
    kept = json.loads((tmp_path / "future" / "report.json").read_text())
    assert kept == matrix.report_as_json(report)
    # But a row that was run once, elsewhere, is not forgotten.
    (tmp_path / "future" / "report.json").write_text("{}")
    runner.run(row)
    assert (tmp_path / "future" / "report.json").read_text() == "{}"


def test_a_python_of_a_version_is_found_among_pyenvs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not its shim, which is on PATH for versions that are not switched on, too."""
    version = "{}.{}".format(*sys.version_info[:2])
    shim = tmp_path / "shims" / f"python{version}"
    there = tmp_path / "versions" / f"{version}.1" / "bin" / "python"
    real = f'#!/bin/sh\nexec {sys.executable} "$@"\n'
    for program, text in ((shim, "#!/bin/sh\nexit 127\n"), (there, real)):
        program.parent.mkdir(parents=True)
        program.write_text(text)
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(shim.parent))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert matrix.find_python(version) == str(there)
    assert matrix.find_python("3.99") is None


def test_a_package_without_a_wheel_is_told() -> None:
    lock = tomllib.loads(
        'lock-version = "1.0"\n'
        '[[packages]]\nname = "pure"\nversion = "1"\n'
        'wheels = [{url = "https://example.org/pure-1-py3-none-any.whl"}]\n'
        '[[packages]]\nname = "source"\nversion = "2"\n'
        'sdist = {url = "https://example.org/source-2.tar.gz"}\n'
    )
    found = wheels.Found("3.15", "aarch64", wheels.packages_of(lock))
    assert found.missing() == ["source 2"]
    assert wheels.table([found]).endswith("| 3.15 | aarch64 | 2 | source 2 |")
    assert not wheels.failed([found], {"3.13"})
    assert wheels.failed([found], {"3.13", "3.15"})
    unknown = wheels.Found("3.13", "x86_64", error="not known: no network")
    assert "not known: no network" in wheels.table([unknown])
    assert wheels.failed([unknown], {"3.13"})


def test_the_page_of_versions_has_each_row() -> None:
    """Written by `make matrix ARGS="--page docs/versions.md"` when the rows changed."""
    page = (ROOT / "docs" / "versions.md").read_text()
    told = re.findall(r"^\| ([\w.-]+) \| 3\.", page, re.MULTILINE)
    assert told == [row.name for row in ROWS]
