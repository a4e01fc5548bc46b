"""Our pages look as JupyterHub's do, and an administrator's own templates go before both."""

from __future__ import annotations

from pathlib import Path

from jupyter_gpushare.hub.app import cookie_secret
from jupyter_gpushare.hub.site import hub_templates
from jupyter_gpushare.pages.site import STATIC, static_address
from jupyter_gpushare.pages.views import days_view, server_days


def render(*more: str, **view: object) -> str:
    templates = hub_templates(more)
    templates.globals["own_static"] = lambda name: f"/own/{name}"
    return templates.get_template("gpushare/error.html").render(
        base_url="/hub/", prefix="/p/", static_url=lambda path, **_: f"/hub/static/{path}", **view
    )


def test_gpu_hours_of_several_servers_are_told_apart() -> None:
    day = {"held": 3600.0, "busy": 0.0, "leases": 1, "charged": 3600.0, "resident_gib_seconds": 0.0}
    own = {"days": [day]}
    told = [{**own, "servers": [{"environment": "alice/<gpu>", **own}]}, {**own, "servers": []}]
    template = hub_templates(()).get_template("gpushare/user_days.html")

    def page(daily: list[dict[str, object]]) -> str:
        days = days_view(daily, ["2026-11-21"], "UTC")
        servers = server_days(daily, ["2026-11-21"], "UTC")
        return template.render(days=days, servers=servers, prefix="/p/", count=1)

    both = page(told)
    assert both.index("Server without a name") < both.index("Server &lt;gpu&gt;")
    assert both.index("2 GPU-hours held") < both.index("1 GPU-hours held")
    assert both.count('id="days-table"') == both.count('id="days-table1"') == 1
    assert "Server" not in page([own])


def test_what_is_to_be_typed_is_code_and_everything_else_is_text() -> None:
    page = render(message="Run `jupyter <b>`; one ` is nothing.")
    assert "<p>Run <code>jupyter &lt;b&gt;</code>; one ` is nothing.</p>" in page


def test_a_page_is_the_hubs_without_what_runs_in_it() -> None:
    page = render(title="<b>", message="M", advice="A")
    assert 'src="/hub/logo"' in page
    assert "/hub/static/css/style.min.css" in page
    assert "&lt;b&gt;" in page
    for inline in ("require.config", "jhdata", "noscript", "<script>"):
        assert inline not in page


def test_an_administrators_page_goes_before_the_hubs(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(
        '{% extends "templates/page.html" %}{% block header %}Our university'
        "<script>alert(1)</script>{% endblock %}"
    )
    page = render(str(tmp_path), message="M")
    assert "Our university" in page
    assert 'src="/hub/logo"' in page
    assert "alert(1)" not in page


def test_a_file_that_changes_has_a_new_address() -> None:
    addresses = [static_address("/p/static/")(path.name) for path in STATIC.iterdir()]
    assert all(one.startswith("/p/static/") for one in addresses)
    assert len({one.partition("?v=")[2] for one in addresses}) == len(addresses) > 1


def test_cookies_are_signed_with_something_that_is_not_the_token() -> None:
    key = cookie_secret("token")
    assert len(key) == 32
    assert b"token" not in key
    assert key == cookie_secret("token") != cookie_secret("another")


def test_a_table_says_each_quota_and_who_set_it() -> None:
    quota = {"gpus": 2, "memory": 8 * 2**30, "weight": 1.5, "idle_timeout": 600.0}
    groups = [
        {**quota, "source": "config", "gpu_hours": 20.0, "when": "this month"},
        {"gpus": 1, "memory": None, "weight": 1.0, "source": "config", "group": "a", "members": 1},
    ]
    template = hub_templates(()).get_template("gpushare/admin_groups.html")
    page = template.render(node={"name": "n", "groups": groups})
    for text in ("Everybody else", "8 GiB", ">1.5<", "20 this month", "idle time-out: 10 min"):
        assert text in page
    for text in (">1 member<", "the whole GPU", "not limited", 'aria-label="Edit the quota of a"'):
        assert text in page
