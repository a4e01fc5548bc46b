"""Share the GPUs of a host between many notebooks, just in time.

Nearly empty on purpose: this module runs first in every Python process that
has the start-up hook, so whatever it imported everybody would pay for.
"""

from ._version import __version__

__all__ = ["__version__"]
