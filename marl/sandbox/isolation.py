"""The ways to shut a program in: what is started, and the orders of the first thing that runs inside.

All end in marl/sandbox/inside.py, which sets limits and gives rights away. Before that, bubblewrap or inside.py itself
has made the namespaces and a root folder that holds the files which Python needs, read-only, four devices and a scratch
folder: no /proc, /etc, /home, shell, network or other processes.
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TypedDict

from marl.errors import RunError
from marl.sandbox.seccomp import MACHINES, program
from marl.sandbox.settings import Sandbox

INSIDE = Path(__file__).with_name("inside.py")
PROGRAMS = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache")
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
SCRATCH = "/tmp"
NOBODY = 65534
FIRST_USER = 1_000_000_000
"""Users without a name, files or processes: root becomes one of them, a different one in each sandbox."""
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
NAMESPACES = 0x6E020000
"""CLONE_NEWNS, CGROUP, UTS, IPC, PID and NET."""
NEW_USER = 0x10000000


class Refused(RunError):  # noqa: N818 (says what happened)
    """No walls work on this machine, or a program could not be shut in."""


class Room(TypedDict):
    """The namespaces and the root folder that inside.py makes."""

    namespaces: int
    mapped: int | None
    """The user's number in a user namespace; None makes no such namespace."""
    pivot_root: int
    """Number of the call."""
    shown: list[str]
    hidden: list[str]


class Orders(TypedDict):
    """What inside.py is to do, in this order."""

    room: Room | None
    scratch: str
    scratch_mb: int
    """Of a scratch folder in memory; 0 uses the folder as it is."""
    limits: list[tuple[int, int, int]]
    """(number of the resource, soft limit, hard limit)."""
    user: int | None
    """Whom to become, if root."""
    filter: str
    """The seccomp filter in hexadecimal digits; empty leaves all rights as they are."""
    files: Mapping[str, str]
    command: list[str]
    environment: Mapping[str, str]


def command(how: str, sandbox: Sandbox, orders: int, ready: int) -> list[str]:
    """What to start, given the two files that inside.py is handed."""
    inside = [_python(), "-I", "-S"]
    if how != "bubblewrap":
        return [*inside, str(INSIDE), str(orders), str(ready)]
    return [*_bubblewrap(sandbox), *inside, f"/{INSIDE.name}", str(orders), str(ready)]


def orders(how: str, sandbox: Sandbox, slot: int, files: Mapping[str, str], scratch: str) -> Orders:
    """What inside.py is to do. `slot` is a number that no other sandbox has now.

    Raises:
        Refused: if there is no filter for this machine.
    """
    machine, walls = platform.machine(), how != "none"
    if walls and machine not in MACHINES:
        raise Refused(f"sandbox: no filter of system calls for {machine}; choices: {', '.join(MACHINES)}")
    return Orders(
        room=_room(sandbox, machine) if how == "unshare" else None,
        scratch=scratch,
        scratch_mb=sandbox.file_mb if walls else 0,
        limits=_limits(sandbox, walls),
        user=FIRST_USER + slot if walls and _is_root() else None,
        filter=program(machine).hex() if walls else "",
        files=files,
        command=[_python(), "-s", "-B", "-X", "utf8", "main.py"],
        environment={
            "HOME": scratch,
            "PYTHONHASHSEED": "0",
            "PYTHONPATH": os.pathsep.join(map(str, sandbox.libraries)),
        },
    )


def _limits(sandbox: Sandbox, walls: bool) -> list[tuple[int, int, int]]:
    limits = {
        resource.RLIMIT_AS: sandbox.memory_mb << 20,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: sandbox.file_mb << 20,
        resource.RLIMIT_NOFILE: 64,
    }
    if walls:
        # The first process of the namespace counts. Without a user of its own, so would everything else of the user.
        limits[resource.RLIMIT_NPROC] = sandbox.processes + 1
    # The soft limit is a signal that code may ignore, the hard one is not.
    return [_limit(resource.RLIMIT_CPU, sandbox.cpu_s, 1), *(_limit(which, value) for which, value in limits.items())]


def _limit(which: int, value: int, grace: int = 0) -> tuple[int, int, int]:
    """Only root could take more than this process has itself."""
    most = resource.getrlimit(which)[1]
    hard = value + grace if most == resource.RLIM_INFINITY else min(value + grace, most)
    return which, min(value, hard), hard


def _room(sandbox: Sandbox, machine: str) -> Room:
    user = 0 if _is_root() else NEW_USER
    return Room(
        namespaces=NAMESPACES | user,
        mapped=NOBODY if user else None,
        pivot_root=PIVOT_ROOT[machine],
        shown=[*_programs(sandbox), *DEVICES],
        hidden=_hidden(),
    )


def _bubblewrap(sandbox: Sandbox) -> list[str]:
    spaces = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    rights = ["--cap-drop", "ALL", "--cap-add", "CAP_SYS_ADMIN"]
    if _is_root():
        rights += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        spaces += ["--unshare-user", "--uid", str(NOBODY), "--gid", str(NOBODY)]
    root: list[str] = []
    programs = _programs(sandbox)
    # Left to itself, bubblewrap lets only root into the folders above.
    above = {str(folder) for path in (*programs, *DEVICES) for folder in Path(path).parents}
    for folder in sorted(above - {"/"}):
        root += ["--dir", folder]
    for path in programs:
        root += ["--symlink", os.readlink(path), path] if os.path.islink(path) else ["--ro-bind", path, path]
    for path in DEVICES:
        root += ["--dev-bind", path, path]
    for path in _hidden():
        root += ["--tmpfs", path, "--remount-ro", path]
    root += ["--ro-bind", str(INSIDE), f"/{INSIDE.name}", "--dir", SCRATCH, "--remount-ro", "/", "--chdir", "/"]
    return [_bwrap(), *spaces, "--die-with-parent", *rights, *root]


def _programs(sandbox: Sandbox) -> list[str]:
    python = [os.path.join(os.path.realpath(sys.base_prefix), "lib"), _python()]
    wanted = [*PROGRAMS, *python, *map(str, sandbox.libraries)]
    return [path for path in dict.fromkeys(wanted) if os.path.exists(path)]


def _hidden() -> list[str]:
    """The packages of the Python that runs the code: its standard library is enough."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    path = os.path.join(os.path.realpath(sys.base_prefix), "lib", version, "site-packages")
    return [path] if os.path.isdir(path) else []


def _bwrap() -> str:
    if path := shutil.which("bwrap"):
        return path
    raise Refused("bwrap is not installed")


def _python() -> str:
    """The interpreter itself: the link in a virtual environment leads to packages that the code should not see."""
    return os.path.realpath(sys.executable)


@cache
def _is_root() -> bool:
    """Whether this is the machine's own root, who is under no limit of processes, and not that of a container."""
    return os.geteuid() == 0 and Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]
