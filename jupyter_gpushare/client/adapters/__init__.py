"""One small adapter for each GPU framework; see `registry`."""
