"""The card has the true figures of the models, which are made from what they have not seen.

Also: its verbs, and a training of both families of models.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.cli.app import find
from jupyter_gpushare.predict import records
from jupyter_gpushare.predict.card import card_text
from jupyter_gpushare.predict.estimates import SHIPPED, Metric, Predictor
from jupyter_gpushare.training import verb as verb_of

PAGE = Path(__file__).resolve().parents[2] / "docs/predictor-card.md"


def verb(*words: str) -> int:
    kind, rest = find(words)
    code: int = kind().start(rest)
    return code


def test_the_page_has_the_figures_of_the_shipped_models() -> None:
    card = json.loads(SHIPPED.read_text())["card"]
    assert PAGE.read_text() == card_text(card)
    assert "are processors (CPUs), which stand for kinds of GPU" in PAGE.read_text()
    assert "“NVIDIA H200”: measured on the GPU itself" in PAGE.read_text()
    assert card["records"] == len(records.shipped())


def test_what_is_used_meets_the_aims_on_families_that_the_choice_has_not_seen() -> None:
    predictor = Predictor.load()
    told = {
        metric: predictor.card["metrics"][metric.value]["unseen families"]["chosen"]
        for metric in Metric
    }
    assert told[Metric.MEMORY]["median error"] <= 0.05
    assert told[Metric.MEMORY]["under p90"] <= 0.07
    assert told[Metric.TIME]["median error"] <= 0.1
    assert told[Metric.UTILISATION]["median error"] <= 10


@pytest.mark.parametrize("metric", list(Metric))
def test_the_time_alone_is_asked_with_a_utilisation(metric: Metric) -> None:
    pytest.importorskip("numpy")
    from jupyter_gpushare.training import fit

    data = fit.data_of(metric, records.shipped()[::100])
    before = data.vectors.copy()
    anew = data.with_shares(data.shares + 1)
    assert (anew.vectors[:, -1] != before[:, -1]).all() == (metric is Metric.TIME)
    assert (data.vectors == before).all()


@pytest.mark.story
def test_a_choice_is_by_families_that_it_has_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each family gets the choice of others only; parts are known always."""
    numpy = pytest.importorskip("numpy")
    from jupyter_gpushare.training import fit

    some = [r for r in records.shipped() if r.hardware.cores == 1][::4]
    data = fit.data_of(Metric.MEMORY, some)
    families = set(data.families) - fit.PARTS
    seen: list[set[str]] = []

    def told_by(data: fit.Data, train: fit.Rows, asked: fit.Rows) -> dict[str, fit.Array]:
        known, now = set(data.families[train]), set(data.families[asked])
        assert not known & now
        assert known >= fit.PARTS
        seen[-1] |= known | now
        return {way: data.truth[asked] * (2 - (way == "trees")) for way in fit.CHOICES}

    def chosen(call: Any, jobs: list[fit.Rows]) -> Any:
        for job in jobs:
            seen.append(set())
            yield call(job)

    monkeypatch.setattr(fit, "told_by", told_by)
    ways = fit.choices(data, chosen)
    is_part = numpy.isin(data.families, list(fit.PARTS))
    assert (ways[~is_part] == "trees").all()
    assert len(seen) == fit.OUTER
    assert all(len(families - one) >= 2 for one in seen)
    assert sorted(name for one in seen for name in families - one) == sorted(families)
    seen.append(set())
    found = fit.tried(data, data.families, 1000, ways, data.shares)
    assert (found["chosen"] == numpy.where(is_part, 0, data.truth)).all()


def test_the_card_of_the_package_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert verb("predictor", "card", "--shipped") == 0
    assert capsys.readouterr().out.startswith("# The predictor's card")


@pytest.mark.long
def test_retrained_models_are_beside_the_ledger_and_know_the_nodes_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = [r for r in records.shipped() if r.family in ("mlp", "gpt") and r.hardware.cores == 1]
    monkeypatch.setattr(verb_of, "shipped", lambda: few[::3])
    ledger = tmp_path / "ledger.sqlite"
    kind = replace(few[0].hardware, name="Own GPU", capability=9.0, cores=99)
    own = [replace(record, hardware=kind, family="own", name="") for record in few[::4]]
    lines = [*(record.line() for record in own), "not of this release"]
    (tmp_path / records.RECORDS_FILE).write_text("\n".join(lines))

    assert verb("predictor", "card", f"--ledger={ledger}") == 0
    assert "Own GPU" not in capsys.readouterr().out
    assert verb("predictor", "retrain", f"--ledger={ledger}", "--json") == 0
    assert json.loads(capsys.readouterr().out)["runs"] == len(own)
    retrained = Predictor.load(tmp_path / records.MODELS_FILE)
    (found,) = retrained.predict(own[0].features, (kind,))
    assert found.seconds == pytest.approx(own[0].seconds, rel=0.5)
    assert verb("predictor", "card", f"--ledger={ledger}") == 0
    assert "Own GPU" in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {records.MODELS_FILE, records.RECORDS_FILE}


@pytest.mark.story
def test_both_families_of_models_are_written_as_they_were_trained() -> None:
    """Evaluated in pure Python, they tell what scikit-learn and torch tell."""
    numpy = pytest.importorskip("numpy")
    from jupyter_gpushare.predict.models import read_model
    from jupyter_gpushare.training import fit

    random = numpy.random.default_rng(0)
    given = random.normal(size=(200, 12))
    wanted = given[:, 0] * 2 + numpy.abs(given[:, 3])
    trees = fit.boosted(given, wanted)
    ours = read_model(json.loads(json.dumps(fit.exported(trees))))
    told = [ours.value(row) for row in given.astype("float32").tolist()]
    assert told == pytest.approx(trees.predict(given), abs=1e-3)

    data = fit.data_of(Metric.MEMORY, records.shipped()[:80])
    network = read_model(json.loads(json.dumps(fit.fit_mlp(data, range(80)))))
    errors = data.errors(data.unscaled(numpy.array([network.value(v) for v in data.vectors])))
    assert numpy.median(errors) < 0.05  # it knows them by heart
