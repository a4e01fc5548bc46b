"""``jupyter gpushare``: one file a verb."""
