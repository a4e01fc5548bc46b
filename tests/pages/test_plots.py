"""The Hub page's plots draw what was measured, and nothing where it is unknown."""

from __future__ import annotations

from typing import Any

from jupyter_gpushare.hub.site import hub_templates
from jupyter_gpushare.pages import plots
from jupyter_gpushare.pages.listing import HostListing

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
        ("Power", "400 W", "286 W"),
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
