"""The table of the pages, below the address where a server has them."""

from __future__ import annotations

from typing import Final

from . import admin, own, quotas
from .page import PageHandler

#: Each page's address, and what it does; a server joins it with its own handler of requests.
PAGES: Final[tuple[tuple[str, type[PageHandler]], ...]] = (
    (r"", own.UserHandler),
    (r"(release|keep)", own.LeaseFormHandler),
    (r"usage\.csv", own.UsageCsvHandler),
    (r"admin", admin.AdminHandler),
    (r"admin/revoke", admin.RevokeFormHandler),
    (r"admin/drain", admin.DrainFormHandler),
    (r"admin/usage\.csv", admin.AdminCsvHandler),
    (r"admin/quota", quotas.QuotaFormHandler),
)
