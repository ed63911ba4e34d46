"""Commands and settings that isolate a program, by bubblewrap or by inside.py itself.

Either makes namespaces and a root folder that holds the files which Python needs, read-only, four devices and a scratch
folder: no /proc, /etc, /home, shell, network or other processes. inside.py then sets limits and gives rights away.
"""

from __future__ import annotations

import os
import platform
import resource
import secrets
import shutil
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TypedDict

from marl.errors import RunError
from marl.sandbox.seccomp import MACHINES, filter_program
from marl.sandbox.settings import SCRATCH, Sandbox

INSIDE = Path(__file__).with_name("inside.py")
PYTHON = os.path.realpath(sys.executable)
"""The interpreter itself: the link in a virtual environment leads to packages that the code must not see."""
PYTHON_LIB = os.path.join(os.path.realpath(sys.base_prefix), "lib")
SITE_PACKAGES = os.path.join(PYTHON_LIB, f"python{sys.version_info.major}.{sys.version_info.minor}", "site-packages")
"""Hidden from the code: its standard library is enough."""
SYSTEM_PATHS = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache")
DEVICES = ("/dev/null", "/dev/random", "/dev/urandom")
"""Not /dev/zero: a mapping of it is memory that processes share and that nothing counts."""
OPEN_FILES = 64
"""Of one process; as many timers."""
NOBODY = 65534
FIRST_USER, USERS = 0x70000000, 1 << 28
"""Users that nobody uses by systemd's conventions. Root becomes one of them by chance, so that sandboxes of runs that
know nothing of each other still have limits of their own."""
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
NAMESPACES = 0x6E020000
"""CLONE_NEWNS, CGROUP, UTS, IPC, PID and NET."""
NEW_USER = 0x10000000


class SandboxUnavailable(RunError):  # noqa: N818 (says what happened)
    """No isolation works on this machine, or a program could not be isolated."""


class NamespaceSetup(TypedDict):
    """Namespaces and root folder that inside.py makes."""

    flags: int
    user: int | None
    """The user's number in a user namespace; None makes no such namespace."""
    pivot_root: int
    """Number of the system call."""
    visible: list[str]
    hidden: list[str]


class SandboxSetup(TypedDict):
    """Steps of inside.py, in this order."""

    namespaces: NamespaceSetup | None
    scratch: str
    scratch_mb: int
    """Of a scratch folder in memory; 0 uses the folder as it is."""
    limits: list[tuple[int, int, int]]
    """(number of the resource, soft limit, hard limit)."""
    user: int | None
    """User that root becomes."""
    filter: str
    """The seccomp filter in hexadecimal digits; empty leaves all rights as they are."""
    files: Mapping[str, str]
    command: list[str]
    environment: Mapping[str, str]


def start_command(mechanism: str, sandbox: Sandbox, setup_fd: int, ready_fd: int) -> list[str]:
    """Return the command that starts inside.py with its two file descriptors."""
    prefix, inside = (_bubblewrap(sandbox), f"/{INSIDE.name}") if mechanism == "bubblewrap" else ([], str(INSIDE))
    return [*prefix, PYTHON, "-I", "-S", inside, str(setup_fd), str(ready_fd)]


def make_setup(mechanism: str, sandbox: Sandbox, files: Mapping[str, str], scratch: str) -> SandboxSetup:
    """Return the steps of inside.py.

    Raises:
        SandboxUnavailable: if there is no filter for this machine.
    """
    machine, isolated = platform.machine(), mechanism != "none"
    if isolated and machine not in MACHINES:
        raise SandboxUnavailable(f"sandbox: no filter of system calls for {machine}; choices: {', '.join(MACHINES)}")
    return SandboxSetup(
        namespaces=_namespaces(sandbox, machine) if mechanism == "unshare" else None,
        scratch=scratch,
        scratch_mb=sandbox.file_mb if isolated else 0,
        limits=_limits(sandbox, isolated),
        user=FIRST_USER + secrets.randbelow(USERS) if isolated and _is_root() else None,
        filter=filter_program(machine).hex() if isolated else "",
        files=files,
        command=[PYTHON, "-s", "-B", "-X", "utf8", "main.py"],
        environment={
            "HOME": scratch,
            "PYTHONHASHSEED": "0",
            "PYTHONPATH": os.pathsep.join(map(str, sandbox.libraries)),
        },
    )


def _limits(sandbox: Sandbox, isolated: bool) -> list[tuple[int, int, int]]:
    """Return (resource, soft limit, hard limit), at most this process's own, which only root could exceed."""
    soft_limits = {
        resource.RLIMIT_CPU: sandbox.cpu_s,
        resource.RLIMIT_AS: sandbox.memory_mb << 20,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: sandbox.file_mb << 20,
        resource.RLIMIT_NOFILE: OPEN_FILES,
    }
    if isolated:
        # The first process of the namespace counts. Without a user of its own, so would everything else of the user.
        soft_limits[resource.RLIMIT_NPROC] = sandbox.processes + 1
        soft_limits[resource.RLIMIT_SIGPENDING] = OPEN_FILES
    limits = []
    for which, soft in soft_limits.items():
        # The soft limit of processor time is a signal that code may ignore, the hard one is not.
        hard = soft + 1 if which == resource.RLIMIT_CPU else soft
        if (highest := resource.getrlimit(which)[1]) != resource.RLIM_INFINITY:
            hard = min(hard, highest)
        limits.append((which, min(soft, hard), hard))
    return limits


def _namespaces(sandbox: Sandbox, machine: str) -> NamespaceSetup:
    return NamespaceSetup(
        flags=NAMESPACES if _is_root() else NAMESPACES | NEW_USER,
        user=None if _is_root() else NOBODY,
        pivot_root=PIVOT_ROOT[machine],
        visible=[*_visible_paths(sandbox), *DEVICES],
        hidden=[SITE_PACKAGES] if os.path.isdir(SITE_PACKAGES) else [],
    )


def _bubblewrap(sandbox: Sandbox) -> list[str]:
    bwrap = shutil.which("bwrap")
    if not bwrap:
        raise SandboxUnavailable("bwrap is not installed")
    options = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    rights = ["--cap-drop", "ALL", "--cap-add", "CAP_SYS_ADMIN"]
    if _is_root():
        rights += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        options += ["--unshare-user", "--uid", str(NOBODY), "--gid", str(NOBODY)]
    root: list[str] = []
    visible = _visible_paths(sandbox)
    # Without them, bubblewrap would let only root into the folders above.
    parents = {str(folder) for path in (*visible, *DEVICES) for folder in Path(path).parents}
    for folder in sorted(parents - {"/"}):
        root += ["--dir", folder]
    for path in visible:
        root += ["--symlink", os.readlink(path), path] if os.path.islink(path) else ["--ro-bind", path, path]
    for path in DEVICES:
        root += ["--dev-bind", path, path]
    if os.path.isdir(SITE_PACKAGES):
        root += ["--tmpfs", SITE_PACKAGES, "--remount-ro", SITE_PACKAGES]
    root += ["--ro-bind", str(INSIDE), f"/{INSIDE.name}", "--dir", SCRATCH, "--remount-ro", "/", "--chdir", "/"]
    return [bwrap, *options, "--die-with-parent", *rights, *root]


def _visible_paths(sandbox: Sandbox) -> list[str]:
    paths = [*SYSTEM_PATHS, PYTHON_LIB, PYTHON, *map(str, sandbox.libraries)]
    return [path for path in dict.fromkeys(paths) if os.path.exists(path)]


@cache
def _is_root() -> bool:
    """Return whether this user is the machine's root (who has no limit of processes), not that of a container."""
    return os.geteuid() == 0 and Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]
