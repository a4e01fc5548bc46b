"""The golden documents are what the product makes of the situations that they are named after."""

from __future__ import annotations

import json

import pytest
from golden.situations import DOCUMENTS, SITUATIONS


def test_each_document_is_of_a_situation() -> None:
    assert {file.stem for file in DOCUMENTS.glob("*.json")} == set(SITUATIONS)


@pytest.mark.parametrize("name", SITUATIONS)
def test_the_documents_are_what_the_product_makes(name: str) -> None:
    """Where a change is meant: `PYTHONPATH=tests python -m golden.situations`, and look at it."""
    kept = json.loads((DOCUMENTS / f"{name}.json").read_text("utf-8"))
    for viewer, document in SITUATIONS[name]().documents().items():
        assert document == kept.pop(viewer)
    assert not kept
