"""The wall helper: has the kernel deny GPUs to the processes of control groups. It runs as root.

The import hook is cooperative, so without walls any program can open any GPU. A *wall* is a small
program that the kernel runs whenever a process of a control group (cgroup v2) opens a device file.
Ours denies the files of GPUs that the group's environment has no lease on, and allows all else: of
several such programs on a group each must allow, so ours only narrows what others allow. From
version 615 on NVIDIA's driver also limits how much memory a group's processes have on a GPU; where
it does, the wall has these limits, too.

Root's rights are dangerous, so this file does as little as can be, and imports nothing of ours. It
does not know leases. The node manager, which has no rights, says: "these GPUs for that group, with
so many bytes". The helper believes neither the group nor the GPUs. A group must match one of the
administrator's patterns and be no link, and the GPUs' files are looked up by the helper itself, in
the driver's own tables. So whoever takes the node manager over can open and close GPUs, and nothing
else.

Three rules make it hold:

- **A group is closed from its birth.** Every group that matches is walled with no GPU open, also
  before anybody knows whose it is. New ones are heard of from the kernel (inotify), and all are
  looked at again every few seconds, because a container's runtime may replace what hangs there.
- **A change has no gap.** The rules are compiled into the program, and a new program takes the old
  one's place in one step of the kernel.
- **Nothing falls with us.** The kernel keeps a program while its group exists, whether or not the
  helper lives. What was opened is in a record on disk, and is put right from there. Only ``off``
  takes walls down.

Files that are open already stay usable, as the kernel checks ``open`` only. So a process that keeps
a GPU open after its lease is found by the node manager's measurements, not by a wall.

Asked over a Unix socket by lines of JSON: ``{"do": "hello"}``, ``{"do": "set", "walls": [...]}``,
``{"do": "off"}``, ``{"do": "on"}``. Each is answered by one line: what stands now, or an ``error``.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import errno
import fnmatch
import json
import os
import pwd
import selectors
import socket
import stat
import struct
import sys
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

#: Control groups that are walled unless others are named: the sessions and services of people, and
#: the services that start programs for them.
PATTERNS: Final = (
    "user.slice/user-*.slice",
    *(f"system.slice/{one}.service" for one in ("jupyter-*-singleuser", "atd", "cron", "crond")),
)
#: Users below 1000 are the host's own: root, and who draws the login screen.
NEVER: Final = tuple(f"user.slice/user-{digits}.slice" for digits in ("?", "??", "???"))
#: The longest line from a client, in bytes, and the most groups that are walled.
MOST_BYTES: Final = 2**20
MOST_GROUPS: Final = 10_000
#: Seconds until all groups are looked at again.
LOOK_EVERY: Final = 2.0
#: The major number of /dev/nvidiaN, of which these minor numbers are no GPUs.
NVIDIA: Final = 195
CONTROL: Final = (254, 255)

# From linux/bpf.h and linux/inotify.h.
_SYSCALL = {"x86_64": 321, "aarch64": 280}
_PROG_LOAD, _PROG_ATTACH, _PROG_DETACH, _PROG_GET_FD_BY_ID, _INFO_BY_FD, _PROG_QUERY = (
    5,
    8,
    9,
    13,
    15,
    16,
)
_CGROUP_DEVICE = 15  # BPF_PROG_TYPE_CGROUP_DEVICE
_AT_DEVICES = 6  # BPF_CGROUP_DEVICE
_ALLOW_MULTI, _REPLACE = 2, 4
_IN_CREATE, _IN_NONBLOCK = 0x100, 0o4000
_NAME = b"gpushare_wall"
_ANY = -1

#: A device file as the kernel knows it: major and minor number.
Device = tuple[int, int]
#: Whether a device may be opened; the first rule that fits counts. ``_ANY`` is each minor number.
Rule = tuple[int, int, bool]

_libc = ctypes.CDLL(None, use_errno=True)


class Refused(Exception):
    """What was asked is not done; the text says why."""


# -- the kernel ---------------------------------------------------------------


def _bpf(command: int, attributes: bytes) -> tuple[int, bytes]:
    """bpf(2): its result, and the attributes as the kernel left them. Raises :class:`OSError`."""
    # Longer than what we tell, and zero there: the kernel takes fields that it does not know as
    # unset.
    room = ctypes.create_string_buffer(attributes, max(len(attributes), 128))
    number = _SYSCALL.get(os.uname().machine)
    if number is None:
        raise OSError(errno.ENOSYS, f"no walls on {os.uname().machine}")
    result = _libc.syscall(number, command, room, len(room))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result, room.raw


def _op(code: int, register: int = 0, source: int = 0, offset: int = 0, value: int = 0) -> bytes:
    return struct.pack("<BBhi", code, source << 4 | register, offset, value)


def program(rules: Sequence[Rule]) -> bytes:
    """The rules as instructions of the kernel's machine: what no rule names is allowed.

    The kernel gives a pointer (r1) to what is opened: kind and access, major and minor number.
    """
    load, differs, equals, put, leave = 0x61, 0x55, 0x15, 0xB7, 0x95
    code = [
        _op(load, 2, 1, 0),
        _op(0x57, 2, value=0xFFFF),  # the lower half is the kind: 2 is a character device
        _op(load, 3, 1, 4),
        _op(load, 4, 1, 8),
        _op(equals, 2, offset=2, value=2),
        _op(put, 0, value=1),
        _op(leave),
    ]
    for major, minor, allowed in rules:
        ask = [] if minor == _ANY else [_op(differs, 4, offset=2, value=minor)]
        code += [_op(differs, 3, offset=2 + len(ask), value=major), *ask]
        code += [_op(put, 0, value=int(allowed)), _op(leave)]
    return b"".join([*code, _op(put, 0, value=1), _op(leave)])


def _load(code: bytes) -> int:
    """A descriptor of the program, once the kernel has found it harmless."""
    room, terms = ctypes.create_string_buffer(code), ctypes.create_string_buffer(b"GPL")
    at = ctypes.addressof
    what = (_CGROUP_DEVICE, len(code) // 8, at(room), at(terms), 0, 0, 0, 0, 0, _NAME)
    return _bpf(_PROG_LOAD, struct.pack("<IIQQIIQII16s", *what))[0]


def _ours(group: int) -> list[int]:
    """Descriptors of our programs on a group; there is one, unless somebody attached it again."""
    # The kernel has no more programs than this on a group.
    most = 64
    ids = (ctypes.c_uint32 * most)()
    form = "<IIIIQI"
    told = _bpf(
        _PROG_QUERY, struct.pack(form, group, _AT_DEVICES, 0, 0, ctypes.addressof(ids), most)
    )
    count = struct.unpack_from(form, told[1])[5]
    found = []
    for number in ids[:count]:
        descriptor = _bpf(_PROG_GET_FD_BY_ID, struct.pack("<III", number, 0, 0))[0]
        info = ctypes.create_string_buffer(256)
        _bpf(_INFO_BY_FD, struct.pack("<IIQ", descriptor, len(info), ctypes.addressof(info)))
        if info.raw[64:80].rstrip(b"\0") == _NAME:
            found.append(descriptor)
        else:
            os.close(descriptor)
    return found


def _attach(path: Path, rules: Sequence[Rule] | None) -> None:
    """Have these rules hold for a group, in place of those before. ``None``: no wall of ours."""
    with _opened(path) as group:
        before = _ours(group)
        try:
            if rules is not None:
                new = _load(program(rules))
                try:
                    flags = _ALLOW_MULTI | (_REPLACE if before else 0)
                    what = (group, new, _AT_DEVICES, flags, before[0] if before else 0)
                    _bpf(_PROG_ATTACH, struct.pack("<IIIII", *what))
                finally:
                    os.close(new)
            # Of several of ours only the first was replaced; the others would still deny by older
            # rules.
            for old in before if rules is None else before[1:]:
                _bpf(_PROG_DETACH, struct.pack("<IIII", group, old, _AT_DEVICES, 0))
        finally:
            for old in before:
                os.close(old)


def _is_walled(path: Path) -> bool:
    with _opened(path) as group:
        found = _ours(group)
        for descriptor in found:
            os.close(descriptor)
        return bool(found)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


# -- the host -----------------------------------------------------------------


@dataclass(frozen=True)
class Host:
    """The host below ``root``: /, but for tests, which also have ``dmem`` files elsewhere."""

    root: Path
    dmem: Path | None = None

    def groups(self) -> Path:
        """Where control groups of version 2 are. Raises :class:`Refused`."""
        for line in (self.root / "proc/self/mounts").read_text().splitlines():
            _what, place, kind, *_ = line.split(" ")
            if kind == "cgroup2":
                return Path(place)
        raise Refused("This host has no control groups of version 2, so no walls.")

    def regions(self) -> dict[str, str]:
        """What the kernel calls the memory of each GPU that it limits itself, by its UUID."""
        try:
            lines = (self.limits() / "dmem.capacity").read_text().splitlines()
        except FileNotFoundError:  # before Linux 6.14, or another driver
            return {}
        names = [line.rpartition(" ")[0] for line in lines]
        uuids = {place.lower(): told["GPU UUID"] for place, told in self._cards().items()}
        found = {uuids.get(name.split("/")[1].lower()): name for name in names if "/vidmem" in name}
        return {uuid: name for uuid, name in found.items() if uuid is not None}

    def limits(self) -> Path:
        """Where each group's files for memory of devices are."""
        return self.dmem or self.groups()

    def _cards(self) -> dict[str, dict[str, str]]:
        """What the driver tells of each GPU, by its place on the bus."""
        return {
            card.parent.name: dict(
                (key.strip(), value.strip())
                for key, _, value in (x.partition(":") for x in card.read_text().splitlines())
            )
            for card in sorted((self.root / "proc/driver/nvidia/gpus").glob("*/information"))
        }

    def gpus(self) -> dict[str, dict[str, Device]]:
        """The files of each GPU, by its UUID and their names below /dev, as the driver tells."""
        found: dict[str, dict[str, Device]] = {}
        for place, told in self._cards().items():
            minor = int(told["Device Minor"])
            drawn = self.root / "sys/bus/pci/devices" / place / "drm"
            names = [f"dri/{one.name}" for one in drawn.glob("*[0-9]")]
            files = {name: self._device(name) for name in names}
            files[f"nvidia{minor}"] = self._device(f"nvidia{minor}") or (NVIDIA, minor)
            found[told["GPU UUID"]] = {name: dev for name, dev in files.items() if dev is not None}
        return found

    def capabilities(self) -> dict[str, Device]:
        """The files by which the driver lets MIG's instances be used, and what else has such.

        They are named as in the driver's tables: ``gpu0/mig/gi1`` and ``gpu0/mig/gi1/ci0`` for an
        instance, which needs both, and ``mig/monitor``.
        """
        top, found = self.root / "proc/driver/nvidia/capabilities", {}
        majors = {
            line.split()[1]: int(line.split()[0])
            for line in (self.root / "proc/devices").read_text().splitlines()
            if line.endswith(" nvidia-caps")
        }
        for file in top.rglob("*") if majors else ():
            if file.is_file():
                told = dict(line.split(": ", 1) for line in file.read_text().splitlines())
                name = str(file.relative_to(top)).removesuffix("/access")
                # A file without a minor number, or one that is just being made, names no device.
                if (minor := told.get("DeviceFileMinor")) is not None:
                    found[name] = (majors["nvidia-caps"], int(minor))
        return found

    def _device(self, name: str) -> Device | None:
        try:
            found = os.lstat(self.root / "dev" / name)
        except FileNotFoundError:
            return None
        is_one = stat.S_ISCHR(found.st_mode)
        return (os.major(found.st_rdev), os.minor(found.st_rdev)) if is_one else None


def rules_of(
    gpus: dict[str, dict[str, Device]], capabilities: Mapping[str, Device], opened: Container[str]
) -> list[Rule]:
    """What a group may open: no file of a GPU but those of the ``opened``, and all that is no GPU.

    A GPU or an instance that came after this was made is denied by its major number.
    """
    rules = {dev: False for files in gpus.values() for dev in files.values()}
    rules |= {dev: True for uuid, files in gpus.items() if uuid in opened for dev in files.values()}
    rules |= {(NVIDIA, minor): True for minor in CONTROL}
    rules |= {dev: True for name, dev in capabilities.items() if not name.startswith("gpu")}
    majors = {NVIDIA, *(major for major, _minor in capabilities.values())}
    return [
        *((*dev, allowed) for dev, allowed in rules.items()),
        *((x, _ANY, False) for x in majors),
    ]


# -- the driver ---------------------------------------------------------------


class Memory:
    """The limits on what a group's processes have on a GPU: the kernel's or the driver's, if any.

    There are none of MIG's instances. Raises :class:`Refused`, or :class:`OSError` of the kernel.
    """

    def __init__(self, host: Host, uuids: Iterable[str], regions: Mapping[str, str]) -> None:
        self._top, self._files, self.regions = host.groups(), host.limits(), regions
        self._nvml: Any = None
        #: The GPUs that have limits, and why others have none.
        self.limited = set(regions)
        self.why: dict[str, str] = {}
        try:
            import pynvml  # type: ignore[import-untyped]
        except ImportError:
            return
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return
        self._nvml = pynvml
        for uuid in set(uuids).difference(regions):
            try:
                self.used(self._top, uuid)
                self.limited.add(uuid)
            except Refused as error:  # an older driver, or MIG
                self.why[uuid] = str(error)

    def instances(
        self, gpus: Mapping[str, dict[str, Device]], capabilities: Mapping[str, Device]
    ) -> dict[str, dict[str, Device]]:
        """The files of MIG's instances by their UUIDs: those of the GPU, and two of its own."""
        nvml, found = self._nvml, {}
        for uuid, files in gpus.items() if nvml else ():
            (card,) = (name.replace("nvidia", "gpu") for name in files if "nvidia" in name)
            with contextlib.suppress(nvml.NVMLError):
                gpu = nvml.nvmlDeviceGetHandleByUUID(uuid)
                for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
                    with contextlib.suppress(nvml.NVMLError):  # nothing is at this place
                        one = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, place)
                        outer = f"{card}/mig/gi{nvml.nvmlDeviceGetGpuInstanceId(one)}"
                        inner = f"{outer}/ci{nvml.nvmlDeviceGetComputeInstanceId(one)}"
                        own = {x: capabilities[x] for x in (outer, inner) if x in capabilities}
                        found[str(nvml.nvmlDeviceGetUUID(one))] = files | own
        return found

    def used(self, group: Path, uuid: str) -> int:
        """Bytes that a group's processes have on a GPU."""
        if region := self.regions.get(uuid):
            return self._figure(group, "current", region)
        told = self._nvml.c_nvmlGetMemoryLimits_v1_t(os.fsencode(group), 0, 0, 0)
        with self._device(uuid) as device:
            self._nvml.nvmlDeviceGetMemoryLimits_v1(device, told)
        return int(told.currentUsed)

    def limit(self, group: Path, uuid: str, soft: int, hard: int | None) -> bool:
        """Bytes that are protected from others, and the most there can be, where that is limited.

        It is never less than what is used: who has more keeps it, and gets no more. Whether it is
        as it was asked for.
        """
        most = 2**64 - 1 if hard is None else max(hard, self.used(group, uuid))
        name, soft = os.fsencode(group), min(soft, most)
        if region := self.regions.get(uuid):
            for file, size in (("min", soft), ("max", "max" if hard is None else most)):
                with open(self._file(group, file), "a") as out:
                    out.write(f"{region} {size}\n")
            # Not if more is used by now: the kernel takes no limit below that.
            return hard is None or self._figure(group, "max", region) == most == hard
        with self._device(uuid) as device:
            limits = self._nvml.c_nvmlSetMemoryLimits_v1_t(name, soft, most)
            self._nvml.nvmlDeviceSetMemoryLimits_v1(device, limits)
        return hard is None or most == hard

    def _file(self, group: Path, name: str) -> Path:
        """A group's file, which is there if those above share this controller out."""
        place = group.relative_to(self._top)
        if not (self._files / place / "dmem.max").exists():
            for parent in reversed(place.parents):
                with open(self._files / parent / "cgroup.subtree_control", "a") as out:
                    out.write("+dmem\n")
        return self._files / place / f"dmem.{name}"

    def _figure(self, group: Path, name: str, region: str) -> int:
        lines = self._file(group, name).read_text().splitlines()
        told = dict(line.rsplit(" ", 1) for line in lines).get(region, "0")
        return 2**64 - 1 if told == "max" else int(told)

    @contextlib.contextmanager
    def _device(self, uuid: str) -> Iterator[Any]:
        try:
            yield self._nvml.nvmlDeviceGetHandleByUUID(uuid)
        except self._nvml.NVMLError as error:
            raise Refused(f"The driver limits no memory on {uuid}: {error}.") from error


def take_down(host: Host, below: str = "") -> int:
    """Take down every wall of ours, in all groups or ``below`` one; how many there were.

    Raises :class:`Refused`, or :class:`OSError` of the kernel.
    """
    top, memory, count = host.groups(), Memory(host, host.gpus(), host.regions()), 0
    for folder, _folders, _files in os.walk(top / below):
        group = Path(folder)
        with contextlib.suppress(FileNotFoundError):  # it went just now
            if _is_walled(group):
                for uuid in memory.limited:
                    memory.limit(group, uuid, 0, None)
                _attach(group, None)
                count += 1
    return count


# -- the walls ----------------------------------------------------------------


@dataclass(frozen=True)
class Wall:
    """What stands, or is to stand, around a group: whose it is, and the GPUs that it may open.

    There are no ``environments`` while nobody said whose the group is. Of each GPU it is said how
    many bytes are protected there, and how many there can be: in all groups of the same
    environments together. 0: what is used in this one stays, and there can be no more.
    """

    environments: tuple[str, ...] = ()
    gpus: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def read(cls, names: Iterable[str], gpus: Mapping[str, Sequence[int]]) -> Wall:
        """One as JSON has it. Raises :class:`ValueError` or :class:`TypeError` for nonsense."""
        sizes = {str(uuid): (int(soft), int(hard)) for uuid, (soft, hard) in gpus.items()}
        if not all(0 <= soft <= hard < 2**63 for soft, hard in sizes.values()):
            raise ValueError(sizes)
        return cls(tuple(map(str, names)), sizes)


class Walls:
    """All walls of a host. ``record`` is the file of what was opened."""

    def __init__(self, host: Host, patterns: Sequence[str], record: Path) -> None:
        self._host = host
        self._top = host.groups()
        self._patterns = patterns
        self._record = record
        self._gpus: dict[str, dict[str, Device]] = {}
        self._capabilities: dict[str, Device] = {}
        self._memory = Memory(host, (), {})
        self._walls: dict[str, Wall] = {}
        # Groups whose limits follow what is used: in them beyond what they may, or in others of the
        # same environments.
        self._follow: set[str] = set()
        self._is_on = True
        with contextlib.suppress(FileNotFoundError):
            told = json.loads(record.read_text())
            self._is_on = told["on"]
            self._walls = {group: Wall.read(*wall) for group, wall in told["walls"].items()}

    def parents(self) -> list[Path]:
        """The folders in which groups that match, or folders of such ones, may be made."""
        above = {str(one) for pattern in self._patterns for one in Path(pattern).parents}
        return [self._top, *(one for name in above - {"."} for one in self._top.glob(name))]

    def look(self) -> None:
        """Wall what matches and has no wall; forget the groups that are gone."""
        gpus, capabilities = self._host.gpus(), self._host.capabilities()
        instances = self._memory.instances(gpus, capabilities)
        divided = {dev for files in instances.values() for dev in files.values()}
        whole = {uuid for uuid, files in gpus.items() if divided.isdisjoint(files.values())}
        gpus |= instances
        if changed := (gpus, capabilities) != (self._gpus, self._capabilities):
            self._gpus, self._capabilities = gpus, capabilities
            regions = {uuid: x for uuid, x in self._host.regions().items() if uuid in whole}
            for uuid in self._memory.regions.keys() - regions.keys():
                for group in self._walls:  # or its instances had this limit
                    with contextlib.suppress(OSError):
                        self._memory.limit(self._top / group, uuid, 0, None)
            self._memory = Memory(self._host, gpus, regions)
        found = self._matching() if self._is_on else []
        known = {group: wall for group, wall in self._walls.items() if group in found}
        for group in found:
            wall = known.setdefault(group, Wall())
            with contextlib.suppress(OSError, Refused):  # it went just now; or the asker is told
                if changed or group in self._follow or not _is_walled(self._top / group):
                    self._stand(group, wall)
        if known != self._walls:
            self._walls = known
            self._follow.intersection_update(known)
            self._keep()

    def set(self, walls: Mapping[str, Wall]) -> dict[str, Any]:
        """Have these walls stand: which do not and why, and the groups that are gone."""
        if not self._is_on:
            raise Refused("The walls are off: `jupyter gpushare walls on` puts them up again.")
        failed, gone = {}, []
        if any(set(wall.gpus).difference(self._gpus) for wall in walls.values()):
            self.look()  # there are new ones
        allowed = set(self._matching())
        for group, wall in walls.items():
            if group not in allowed and not (self._top / group).exists():
                gone.append(group)
                continue
            try:
                if group not in allowed:
                    raise Refused(f"{group} is no group that the helper may wall.")
                if unknown := set(wall.gpus).difference(self._gpus):
                    raise Refused(f"The driver does not list {', '.join(sorted(unknown))}.")
                self._stand(group, wall)
                self._walls[group] = wall
            except (Refused, OSError) as error:
                failed[group] = str(error)
        self._keep()
        return {"failed": failed, "gone": gone, "level": self.told()["level"]}

    def switch(self, on: bool) -> None:
        """Put the walls up, or take every one down and build none until they are on again."""
        self._is_on = on
        if not on:
            for group in self._matching():
                take_down(self._host, group)
            self._walls = {}
        self._keep()
        self.look()

    def told(self) -> dict[str, Any]:
        """All that stands."""
        memory = self._memory
        walls = {group: [wall.environments, wall.gpus] for group, wall in self._walls.items()}
        return {
            "on": self._is_on,
            "level": "memory" if memory.limited and not memory.why else "devices",
            "unlimited": memory.why,
            "walls": walls,
            "patterns": self._patterns,
        }

    def _stand(self, group: str, wall: Wall) -> None:
        path = self._top / group
        names = wall.environments
        beside = [
            self._top / one
            for one, other in self._walls.items()
            if names and other.environments == names and one != group and (self._top / one).exists()
        ]
        exact = [not beside]
        # First the limits, then the files are opened; what the group may not use any more is closed
        # before its limit falls. At no moment can it open a GPU without a limit.
        for uuid in self._memory.limited.intersection(wall.gpus):
            soft, hard = wall.gpus[uuid]
            hard -= sum(self._memory.used(one, uuid) for one in beside)
            exact.append(self._memory.limit(path, uuid, soft, max(1, hard)))
        _attach(path, rules_of(self._gpus, self._capabilities, wall.gpus))
        for uuid in self._memory.limited.difference(
            wall.gpus
        ):  # who keeps a file open gets no more
            exact.append(self._memory.limit(path, uuid, 0, 1))
        (self._follow.discard if all(exact) else self._follow.add)(group)

    def _matching(self) -> list[str]:
        found = {
            str(one.relative_to(self._top))
            for pattern in self._patterns
            for one in self._top.glob(pattern)
            if one.is_dir() and not one.is_symlink()
        }
        held = [one for one in found if not any(fnmatch.fnmatchcase(one, no) for no in NEVER)]
        return sorted(held)[:MOST_GROUPS]

    def _keep(self) -> None:
        told = self.told()
        new = self._record.with_suffix(".new")
        new.write_text(json.dumps({"on": told["on"], "walls": told["walls"]}))
        # Whole or not at all: the next helper believes it.
        new.replace(self._record)


def answer(walls: Walls, line: bytes) -> dict[str, Any]:
    """What one line of a client gets."""
    try:
        asked = json.loads(line)
        what = asked["do"]
        if what == "set":
            return walls.set({str(g): Wall.read(*wall) for g, wall in asked["walls"].items()})
        if what in ("on", "off"):
            walls.switch(what == "on")
        elif what != "hello":
            raise ValueError(what)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        return {"error": f"That is no request: {error!r}"}
    except (Refused, OSError) as error:
        return {"error": str(error)}
    return walls.told()


# -- the program --------------------------------------------------------------


def serve(walls: Walls, listener: socket.socket, users: frozenset[int]) -> None:
    """Answer these users, one line at a time, and keep the walls standing. Never returns."""
    selector = selectors.DefaultSelector()
    births = _libc.inotify_init1(_IN_NONBLOCK)
    selector.register(births, selectors.EVENT_READ)
    selector.register(listener, selectors.EVENT_READ)
    heard: dict[socket.socket, bytes] = {}
    due = time.monotonic()
    while True:
        if time.monotonic() >= due:
            for parent in walls.parents():  # to watch one again changes nothing
                _libc.inotify_add_watch(births, os.fsencode(parent), _IN_CREATE)
            walls.look()
            due = time.monotonic() + LOOK_EVERY
        for key, _ in selector.select(max(0.0, due - time.monotonic())):
            one = key.fileobj
            if one is listener:
                client, _ = listener.accept()
                if _user(client) in users:
                    # Nothing else is done while it is answered, so who does not read is let go.
                    client.settimeout(1.0)
                    selector.register(client, selectors.EVENT_READ)
                    heard[client] = b""
                else:
                    client.close()
            elif not isinstance(one, socket.socket):
                os.read(births, 65536)
                # A group was made: it is walled now, and not only at the next look.
                due = time.monotonic()
            elif not _heard(walls, one, heard):
                selector.unregister(one)
                del heard[one]
                one.close()


def _heard(walls: Walls, client: socket.socket, heard: dict[socket.socket, bytes]) -> bool:
    """Whether the client is there still, and says what it may."""
    try:
        said = client.recv(65536)
        *lines, heard[client] = (heard[client] + said).split(b"\n")
        for line in lines:
            client.sendall(json.dumps(answer(walls, line)).encode() + b"\n")
    except OSError:
        return False
    return bool(said) and len(heard[client]) <= MOST_BYTES


def _user(client: socket.socket) -> int:
    told = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int(struct.unpack("3i", told)[1])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m jupyter_gpushare.walls.helper")
    parser.add_argument("--user", default="root", help="who asks: the node manager's user")
    parser.add_argument("--group", action="append", help="a pattern of control groups to wall")
    parser.add_argument("--record", type=Path, default="/run/jupyter-gpushare-walls/record.json")
    parser.add_argument("--socket", help="where to listen, if systemd hands no socket over")
    parser.add_argument("--root", type=Path, default="/", help=argparse.SUPPRESS)
    parser.add_argument("--dmem", type=Path, help=argparse.SUPPRESS)
    told = parser.parse_args(argv)
    try:
        users = frozenset({0, pwd.getpwnam(told.user).pw_uid})
        walls = Walls(Host(told.root, told.dmem), told.group or PATTERNS, told.record)
        listener = _listener(told.socket, min(users), max(users))
    except (KeyError, Refused, OSError) as error:
        print(f"The wall helper cannot start: {error}", file=sys.stderr)
        return 1
    serve(walls, listener, users)
    return 0


def _listener(place: str | None, root: int, user: int) -> socket.socket:
    """The socket that systemd handed over, or a new one that only the two users can open."""
    if place is None:
        if os.environ.get("LISTEN_PID") != str(os.getpid()):
            raise Refused("systemd handed no socket over, and there is no --socket=PATH.")
        return socket.socket(fileno=3)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(place)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with _masked(0o177):
        listener.bind(place)
    os.chown(place, user, root)
    listener.listen()
    return listener


@contextlib.contextmanager
def _masked(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


if __name__ == "__main__":
    sys.exit(main())
