"""The whole status document of one viewer, which the node manager writes part by part."""

from __future__ import annotations

import json

from jupyter_gpushare.node.views.status import Sheet
from jupyter_gpushare.node.views.viewer import Viewer
from jupyter_gpushare.protocol import documents as doc


def status_document(sheet: Sheet, viewer: Viewer, page: int = 0) -> doc.Status:
    """Everything ``viewer`` may know, as JSON data. Sizes in bytes, times in Unix seconds."""
    return {
        **sheet.head(viewer, page)[0],
        "leases": [
            json.loads(sheet.lease_row(x, viewer.view(x))) for x in sheet.leases(viewer, page)[0]
        ],
        "queue": [sheet.queue_row(x, viewer) for x in sheet.queue(viewer, page)[0]],
    }
