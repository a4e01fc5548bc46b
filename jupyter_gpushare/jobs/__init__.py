"""Jobs that take what is idle: sweeps over many models.

``core`` decides, and is pure. ``hostside`` and ``worker`` run on the host whose GPU is used,
``engine`` and ``rayengine`` reach hosts, ``records`` keeps results, ``sweeps`` is what people call,
and ``show`` what they see. Nothing here decides about a GPU: each host's node manager does.

Elastic training, `jupyter_gpushare.elastic`, has from here how a job is stored (``store``), how it
gets workers on its host (``hostside``, ``engine``), and how it is shown while it runs (``show``).
"""
