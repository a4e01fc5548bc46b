"""The Hub page's plots draw what was measured, and pages look as JupyterHub's do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jupyter_gpushare.hub.app import cookie_secret
from jupyter_gpushare.hub.site import hub_templates
from jupyter_gpushare.pages import plots
from jupyter_gpushare.pages.listing import HostListing
from jupyter_gpushare.pages.site import STATIC, static_address
from jupyter_gpushare.pages.views import days_view, server_days

GIB = 2**30


def status(**more: Any) -> dict[str, Any]:
    gpu = {"uuid": "GPU-0", "index": 0, "memory": 24 * GIB, **more}
    return {"node": {"time": 2000.0}, "gpus": [gpu]}


def readings(**more: Any) -> dict[str, Any]:
    """Four steps of 10 s until 2000; of the third nothing is known."""
    row = {
        "uuid": "GPU-0",
        "used": [0, 6 * GIB, None, 12 * GIB],
        "utilisation": [0.0, 0.5, None, 1.0],
        "mine": [0, 6 * GIB, None, 6 * GIB],
        "others": [0, 0, None, 6 * GIB],
        "rest": [0, 0, None, 2 * GIB],
        "i_compute": [0.0, 1.0, None, 0.0],
        "others_compute": [0.0, 0.0, None, 0.25],
        "temperature": [None] * 4,
        "power": [None] * 4,
        "reserved": False,
        **more,
    }
    return {"step": 10.0, "times": [1960.0, 1970.0, 1980.0, 1990.0], "gpus": [row]}


def plot(seconds: float = 40.0, **more: Any) -> dict[str, Any]:
    (made,) = plots.plots(status(), readings(**more), seconds)
    return made


def test_areas_lie_upon_each_other_and_leave_out_what_is_unknown() -> None:
    mine, others, rest, free = plot()["areas"]
    assert mine["path"] == (
        "M0 100L250 100L250 75L500 75L500 100L250 100L250 100L0 100Z"
        "M750 75L1000 75L1000 100L750 100Z"
    )
    assert others["path"].endswith("M750 50L1000 50L1000 75L750 75Z")
    assert (mine["text"], others["text"]) == ("mine 6 GiB", "others' 6 GiB")
    assert (rest["text"], free["text"]) == ("without a lease 2 GiB", "free 10 GiB")


def test_who_computed_has_a_lane_each_and_utilisation_a_line() -> None:
    made = plot()
    mine, others = (lane["path"] for lane in made["lanes"])
    assert "L250 0L500 0L500 100L" in mine
    assert others.endswith("M750 75L1000 75L1000 100L750 100Z")
    (line,) = made["lines"]
    assert line["path"] == "M0 100L250 50L500 50M750 0L1000 0"
    assert (line["name"], line["text"]) == ("Utilisation", "100 %")
    assert made["summary"] == (
        "GPU 0 now: memory: mine 6 GiB, others' 6 GiB, without a lease 2 GiB, free 10 GiB; "
        "computing: mine no, others 25 %; utilisation 100 %."
    )


def test_sensors_have_lines_only_where_there_are_any() -> None:
    lines = plot(temperature=[40.0, None, None, 61.4], power=[90.0, 90.0, None, 285.5])["lines"]
    assert [(line["name"], line["top"], line["text"]) for line in lines[1:]] == [
        ("Temperature", "100 °C", "61 °C"),
        ("Power", "500 W", "286 W"),
    ]


def test_after_a_pause_nothing_is_known_and_what_is_too_old_is_not_drawn() -> None:
    late = {**readings(), "times": [1000.0, 1901.0, 1911.0, 1990.0]}
    row = {**late["gpus"][0], "utilisation": [1.0, 1.0, 1.0, 1.0]}
    (made,) = plots.plots(status(), {**late, "gpus": [row]}, 100.0)
    assert made["lines"][0]["path"] == "M0 0L0 0M10 0L110 0L410 0M900 0L1000 0"


def test_what_an_older_node_manager_does_not_tell_is_unknown() -> None:
    old = readings()
    row = {name: old["gpus"][0][name] for name in ("uuid", "used", "utilisation")}
    (made,) = plots.plots(status(), {**old, "gpus": [row]}, 40.0)
    assert made["areas"][0]["text"] == "mine unknown"
    assert made["areas"][0]["path"] == ""
    assert plots.plots(status(uuid="GPU-9"), old, 40.0) == []
    (new,) = plots.plots(status(), {"step": 2.0, "times": [], "gpus": [{**row, **_EMPTY}]}, 40.0)
    assert new["lines"][0]["text"] == "unknown"


_EMPTY: dict[str, list[float]] = {"used": [], "utilisation": []}


def test_the_page_says_in_words_what_it_draws() -> None:
    templates = hub_templates(())
    page = templates.get_template("gpushare/gpu_plots.html").render(
        prefix="/p/",
        span="1h",
        span_name="1 h",
        spans={key: name for key, (_seconds, name) in plots.SPANS.items()},
        plots=[plot(reserved=True)],
        many_nodes=True,
        shown="<node>",
        wanted_hosts=HostListing(chosen="a&b"),
    )
    assert 'aria-label="GPU 0 now: memory: mine 6 GiB, others&#39; 6 GiB' in page
    assert "&lt;node&gt;" in page
    assert page.count("&amp;host=a%26b") == len(plots.SPANS), "the host stays chosen"
    assert "Memory as reserved" in page
    assert page.count('aria-current="true"') == 1


# -- templates -------------------------------------------------------------------------------------


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
