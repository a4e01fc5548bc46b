"""The stronger source says what a task asks for, and what makes no sense is named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from jupyter_gpushare.client.cell.magics import GpuShare
from jupyter_gpushare.client.words.settings import (
    Acquire,
    Ask,
    Fallback,
    Settings,
    read_settings,
    read_token,
)
from jupyter_gpushare.protocol import names
from jupyter_gpushare.protocol.address import SYSTEM_SOCKET, Found

GIB = 2**30
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


def test_the_table_of_settings_has_the_defaults_of_the_code() -> None:
    defaults = Settings()
    for name, _variable, default, _bounds, _help in names.SETTINGS:
        assert getattr(getattr(defaults, name), "value", getattr(defaults, name)) == default
    assert GpuShare().settings() == read_settings({}) == defaults


def test_all_of_the_quota_may_be_asked_for_by_any_source() -> None:
    for wish in ("quota", " Quota "):
        assert read_settings({"JUPYTER_GPUSHARE_GPUS": wish}).ask == Ask("quota")
    assert read_settings({"JUPYTER_GPUSHARE_NOTEBOOK": '{"gpus": "quota"}'}).ask == Ask("quota")
    assert read_settings({"JUPYTER_GPUSHARE_GPUS": "0"}).ask == Ask(0), "none, on purpose"


def test_the_stronger_source_wins_word_by_word() -> None:
    traits = Settings(Ask(1, 4 * GIB, "batch"), Fallback.ERROR, wait_timeout=60.0)
    notebook = json.dumps({"gpus": 2, "memory": "8GiB"})
    environ = {"JUPYTER_GPUSHARE_NOTEBOOK": notebook, "JUPYTER_GPUSHARE_GPUS": "3"}
    settings = read_settings(environ, traits)
    assert settings.ask == Ask(3, 8 * GIB, "batch")
    assert settings.fallback is Fallback.ERROR
    assert settings.wait_timeout == 60.0
    assert settings.complaints == ()
    assert Ask(memory=GIB).over(settings.ask) == Ask(3, GIB, "batch")


def test_every_variable() -> None:
    settings = read_settings(
        {
            "JUPYTER_GPUSHARE_GPUS": " 2 ",
            "JUPYTER_GPUSHARE_MEMORY": "16GB",
            "JUPYTER_GPUSHARE_CLASS": "batch",
            "JUPYTER_GPUSHARE_FALLBACK": "Error",
            "JUPYTER_GPUSHARE_ACQUIRE": "first_use",
            "JUPYTER_GPUSHARE_WAIT_TIMEOUT": "10m",
            "JUPYTER_GPUSHARE_ANSWER_TIMEOUT": "0.5",
        }
    )
    asked = Ask(2, 16 * 10**9, "batch")
    assert settings == Settings(asked, Fallback.ERROR, Acquire.FIRST_USE, 600.0, 0.5)


@pytest.mark.parametrize(
    ("variable", "value", "used"),
    [
        ("GPUS", "two", "the default"),
        ("GPUS", "-1", "the default"),
        ("GPUS", "1.5", "the default"),
        ("GPUS", "²", "the default"),
        ("GPUS", "99999", "the default"),
        ("MEMORY", "8 apples", "the default"),
        ("MEMORY", "0", "the default"),
        ("MEMORY", "8", "the default"),
        ("CLASS", "urgent", "the default"),
        ("FALLBACK", "gpu", "cpu"),
        ("ACQUIRE", "later", "import"),
        ("WAIT_TIMEOUT", "soon", "0.0"),
        ("WAIT_TIMEOUT", "-5", "0.0"),
        ("WAIT_TIMEOUT", "nan", "0.0"),
        ("WAIT_TIMEOUT", "inf", "0.0"),
        ("ANSWER_TIMEOUT", "0", "5.0"),
        ("ANSWER_TIMEOUT", "1e9", "5.0"),
    ],
)
def test_a_bad_value_is_named_and_the_default_used(variable: str, value: str, used: str) -> None:
    settings = read_settings({f"JUPYTER_GPUSHARE_{variable}": value})
    assert settings._replace(complaints=()) == Settings()
    (complaint,) = settings.complaints
    assert f"JUPYTER_GPUSHARE_{variable}={value!r}" in complaint
    assert complaint.endswith(f"Using {used}.")


def test_a_bad_value_leaves_the_next_source_in_force() -> None:
    environ = {
        "JUPYTER_GPUSHARE_GPUS": "many",
        "JUPYTER_GPUSHARE_NOTEBOOK": '{"gpus": 2, "memory": "much"}',
    }
    settings = read_settings(environ, Settings(Ask(1, GIB)))
    assert settings.ask == Ask(2, GIB)
    assert len(settings.complaints) == 2
    assert any("GPUS='many'" in text and text.endswith("Using 2.") for text in settings.complaints)


@given(st.dictionaries(st.sampled_from(["gpus", "memory", "class", "x"]), ANYTHING))
def test_any_notebook_metadata(data: dict[str, Any]) -> None:
    settings = read_settings({"JUPYTER_GPUSHARE_NOTEBOOK": json.dumps(data)})
    ask = settings.ask
    assert ask.gpus is None or 0 <= ask.gpus <= 4096
    assert ask.memory is None or 0 < ask.memory < 2**63
    assert ask.priority_class in (None, "interactive", "batch")


@given(st.text())
def test_any_text_for_everything(text: str) -> None:
    names = ("GPUS", "MEMORY", "CLASS", "FALLBACK", "ACQUIRE", "WAIT_TIMEOUT", "ANSWER_TIMEOUT")
    environ = {f"JUPYTER_GPUSHARE_{name}": text for name in (*names, "NOTEBOOK")}
    settings = read_settings(environ)
    assert settings.wait_timeout >= 0
    assert 0.05 <= settings.answer_timeout <= 3600


def test_token_of_a_file(tmp_path: Any) -> None:
    file = tmp_path / "token"
    assert read_token({"JUPYTER_GPUSHARE_TOKEN_FILE": str(file)}) is None
    file.write_text("secret\n")
    assert read_token({"JUPYTER_GPUSHARE_TOKEN_FILE": str(file)}) == "secret"
    file.write_bytes(b"\xff\xfe")
    assert read_token({"JUPYTER_GPUSHARE_TOKEN_FILE": str(file)}) is None
    assert read_token({"JUPYTER_GPUSHARE_TOKEN": "short"}) == "short"
    assert read_token({}) is None


@pytest.mark.parametrize(
    ("found", "token"),
    [
        (Found("/srv/node.sock", configured=True), "hub's"),
        (Found(SYSTEM_SOCKET, configured=False), "hub's"),
        # A server tells its kernels where its own node manager is: that is no administrator's.
        (Found("/me/runtime/gpushare-node-0a1b2c3d.sock", configured=True), None),
        (Found("/me/runtime/gpushare-node-0a1b2c3d.sock", configured=False), None),
    ],
)
def test_the_hubs_token_is_for_an_administrators_node_manager(
    found: Found, token: str | None
) -> None:
    environ = {
        "JUPYTER_RUNTIME_DIR": "/me/runtime",
        "JUPYTERHUB_API_TOKEN": "hub's",
        "JUPYTER_GPUSHARE_IDENTITY": "hub",
    }
    assert read_token(environ, found) == token
    assert read_token({**environ, "JUPYTER_GPUSHARE_IDENTITY": ""}, found) is None
