"""The images' Dockerfiles keep what they promise, as far as can be seen without building.

`make test-podman` builds and uses them.
"""

from __future__ import annotations

import json
import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import yaml

from jupyter_gpushare import __version__
from jupyter_gpushare.node.app import NodeManagerApp

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "etc" / "deploy" / "docker"
NAMES = ("node", "singleuser")
Steps = list[tuple[str, str]]


def steps(name: str) -> Steps:
    """Instructions and their arguments, in order."""
    text = (FOLDER / f"{name}.Dockerfile").read_text()
    kept = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    lines = re.sub(r"\\\n\s*", "", kept).splitlines()
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def last(of: Steps, instruction: str) -> str:
    return [rest for word, rest in of if word == instruction][-1]


@pytest.fixture(params=NAMES)
def image(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_our_wheels_come_from_dist_alone(image: str) -> None:
    (install,) = (rest for _, rest in steps(image) if "pip install" in rest)
    assert "--mount=type=bind,source=dist,target=/wheels" in install
    pattern = re.search(r"/wheels/(jupyter_gpushare\*)-[^/]+\.whl", install)
    assert pattern is not None
    for wheel in ("jupyter_gpushare", "jupyter_gpushare_client"):
        assert fnmatchcase(wheel, pattern[1])
    # They are all that a build sees of this folder.
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert [line for line in ignored if line[0] != "#"] == ["*", "!dist", "dist/*", "!dist/*.whl"]


def test_nothing_is_fetched_but_by_package_managers(image: str) -> None:
    for word, rest in steps(image):
        assert not (word == "RUN" and re.search(r"\b(curl|wget|git|sudo|apt-get upgrade)\b", rest))
        assert not re.search(r"(?i)(token|password|secret)=", rest)
        if "apt-get install" in rest:
            assert "--no-install-recommends" in rest
            assert "rm -rf /var/lib/apt/lists/*" in rest
        if "pip install" in rest:
            assert "--no-cache-dir" in rest


def test_a_server_is_not_root() -> None:
    assert last(steps("singleuser"), "USER") == "1000"


def settings_of_the_node_image() -> dict[str, Any]:
    """What it writes where Jupyter looks first."""
    (write,) = (rest for _, rest in steps("node") if "jupyter_config.json" in rest)
    assert write.endswith("> /usr/local/etc/jupyter/jupyter_config.json")
    return dict(json.loads(write.split("'")[1]))


def test_the_node_manager_has_the_places_that_the_image_names_and_obeys_who_says_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = steps("node")
    command, verb = json.loads(last(of, "ENTRYPOINT"))
    assert [command, verb] == ["jupyter-gpushare", "node"]
    (tmp_path / "jupyter_config.json").write_text(json.dumps(settings_of_the_node_image()))
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", str(tmp_path))
    own = tmp_path / "own.json"
    own.write_text('{"NodeManagerApp": {"ledger": "/srv/ledger.sqlite"}}')

    def told(*options: str) -> NodeManagerApp:
        app = NodeManagerApp()
        app.parse_command_line(list(options))
        app.load_config_file()
        return app

    app = told()
    places = [Path(place) for place in json.loads(last(of, "VOLUME"))]
    assert [Path(app.socket).parent, Path(app.ledger).parent] == places
    assert app.shared
    assert last(of, "EXPOSE") == str(app.metrics_port)
    assert f"s.connect('{app.socket}')" in last(of, "HEALTHCHECK")
    app = told("--metrics-port=9470", f"--config={own}")
    assert (app.metrics_port, app.ledger, app.shared) == (9470, "/srv/ledger.sqlite", True)


def test_a_server_looks_where_the_node_manager_listens() -> None:
    place = settings_of_the_node_image()["NodeManagerApp"]["socket"]
    assert f"JUPYTER_GPUSHARE_SOCKET={place}" in [
        rest for word, rest in steps("singleuser") if word == "ENV"
    ]


def test_a_release_publishes_each_of_them() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "images.yml").read_text())
    job = workflow["jobs"]["image"]
    assert job["strategy"]["matrix"]["image"] == list(NAMES)
    (build,) = (s for s in job["steps"] if s.get("uses", "").startswith("docker/build-push-action"))
    assert build["with"]["platforms"] == "linux/amd64,linux/arm64"
    assert build["with"]["build-args"].startswith("VERSION=")
    file = build["with"]["file"].replace("${{ matrix.image }}", "node")
    assert (ROOT / file).is_file()


def test_the_examples_name_this_version() -> None:
    places = [*FOLDER.iterdir(), *(ROOT / "docs" / "deploy").glob("*.md")]
    places += (FOLDER.parent / "chart").glob("*.yaml")
    for place in places:
        text = place.read_text()
        assert set(re.findall(r"VERSION=(\d[\w.]*)", text)) <= {__version__}
        assert set(re.findall(r"jupyter-gpushare-\w+:(\d[\w.]*)", text)) <= {__version__}
