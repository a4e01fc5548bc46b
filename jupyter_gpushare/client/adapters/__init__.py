"""One small adapter for each GPU framework; see `registry`.

An adapter sets its framework's memory limit and notices the start of CUDA where it can. It does not
talk to the node manager. Moving a framework's memory is in `parkers`.
"""
