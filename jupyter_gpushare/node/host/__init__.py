"""The Linux host under the node manager: processes, systemd, time that jumps, observers.

Each module stands at one border of the operating system and hands plain data in. GPUs are in
:mod:`..inventory`; OS users are in :mod:`..people`. Nothing here decides about leases.
"""
