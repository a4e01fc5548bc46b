"""Train the models that come with the package, and write docs/predictor-card.md.

The runs are those that scripts/predictor_runs.py has measured. ``--page``: the page only.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/predictor-card.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--page", action="store_true", help="do not train")
    options = parser.parse_args()

    from jupyter_gpushare.predict.card import card_text
    from jupyter_gpushare.predict.estimates import SHIPPED

    if not options.page:
        from jupyter_gpushare.predict.records import shipped
        from jupyter_gpushare.training.fit import train

        where = json.loads((ROOT / "docs/predictor-runs.json").read_text(encoding="utf-8"))
        spread = where["times of two passes differ by (median)"]
        told = (
            f"{where['cpu']}, {where['cores']} cores, {where['date']}, load average "
            f"{where['load average']:.1f}; two passes differ by {spread:.0%} (median)"
        ).replace("%", " %")
        told = "; ".join([told, *where.get("gpus", [])])
        with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
            document = train(shipped(), told, pool.map)
        SHIPPED.write_text(json.dumps(document, separators=(",", ":")), encoding="utf-8")
    card = json.loads(SHIPPED.read_text(encoding="utf-8"))["card"]
    PAGE.write_text(card_text(card), encoding="utf-8")


if __name__ == "__main__":
    main()
