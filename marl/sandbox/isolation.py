"""Commands and setups that isolate a program, by bubblewrap or by bootstrap.py itself.

Both make namespaces and a root folder with read-only files of Python, a few devices and a scratch folder, but without
/proc, /etc, /home, shell, network or other processes. bootstrap.py then sets resource limits and drops privileges.
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

from marl.core.errors import RunError
from marl.sandbox.seccomp import MACHINES, filter_program
from marl.sandbox.settings import SCRATCH, Sandbox

BOOTSTRAP_FILE = Path(__file__).with_name("bootstrap.py")
PYTHON = os.path.realpath(sys.executable)
"""Path of the real interpreter. The link in a virtual environment would lead to packages that must stay invisible."""
PYTHON_LIB = os.path.join(os.path.realpath(sys.base_prefix), "lib")
SITE_PACKAGES = os.path.join(PYTHON_LIB, f"python{sys.version_info.major}.{sys.version_info.minor}", "site-packages")
"""Folder of installed packages, which is hidden from the code."""
SYSTEM_PATHS = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache")
DEVICES = ("/dev/null", "/dev/random", "/dev/urandom")
"""Visible devices. /dev/zero is not among them, because mappings of it are shared memory that no limit counts."""
OPEN_FILES = 64
"""Maximum number of open files, and of timers, of one sandboxed process."""
NOBODY = 65534
FIRST_USER, USERS = 0x70000000, 1 << 28
"""Range of user numbers that systemd's conventions leave unused. Root switches to a random one, so that sandboxes of
independent runs have separate limits of processes."""
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
NAMESPACES = 0x6E020000
"""Flags CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWPID and NEWNET."""
NEW_USER = 0x10000000
"""Flag CLONE_NEWUSER."""


class SandboxUnavailable(RunError):  # noqa: N818 (says what happened)
    """No isolation mechanism works on this machine, or the isolation of a program failed."""


class NamespaceSetup(TypedDict):
    """Namespaces and root folder to be made by bootstrap.py."""

    flags: int
    user: int | None
    """User number inside of a user namespace, or None for no user namespace."""
    pivot_root: int
    """Number of the system call `pivot_root`."""
    visible: list[str]
    hidden: list[str]


class SandboxSetup(TypedDict):
    """Settings of the steps of bootstrap.py, in the order of the steps."""

    namespaces: NamespaceSetup | None
    scratch: str
    scratch_mb: int
    """Size (MiB) of a scratch folder in memory, or 0 to use the existing folder."""
    limits: list[tuple[int, int, int]]
    """(resource number, soft limit, hard limit) of each limit."""
    user: int | None
    """User to which root switches, or None to keep the user."""
    filter: str
    """Seccomp filter as hexadecimal digits, or empty to keep all capabilities and system calls."""
    files: Mapping[str, str]
    command: list[str]
    environment: Mapping[str, str]


def start_command(mechanism: str, sandbox: Sandbox, setup_fd: int, ready_fd: int) -> list[str]:
    """Return the command line of bootstrap.py with its two file descriptors."""
    prefix, script = list[str](), str(BOOTSTRAP_FILE)
    if mechanism == "bubblewrap":
        prefix, script = _bubblewrap(sandbox), f"/{BOOTSTRAP_FILE.name}"
    return [*prefix, PYTHON, "-I", "-S", script, str(setup_fd), str(ready_fd)]


def make_setup(mechanism: str, sandbox: Sandbox, files: Mapping[str, str], scratch: str) -> SandboxSetup:
    """Return the setup for bootstrap.py.

    Raises:
        SandboxUnavailable: if there is no seccomp filter for this machine's processor.
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
    """Return (resource, soft limit, hard limit) of each limit, bounded by the hard limits of this process."""
    soft_limits = {
        resource.RLIMIT_CPU: sandbox.cpu_s,
        resource.RLIMIT_AS: sandbox.memory_mb << 20,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: sandbox.file_mb << 20,
        resource.RLIMIT_NOFILE: OPEN_FILES,
    }
    if isolated:
        # Plus one for the namespace's first process. Without isolation the limit would count all processes of the user.
        soft_limits[resource.RLIMIT_NPROC] = sandbox.processes + 1
        soft_limits[resource.RLIMIT_SIGPENDING] = OPEN_FILES
    limits = []
    for which, soft in soft_limits.items():
        # The soft limit of CPU time sends a signal that code can ignore, the hard limit kills.
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
    # Made explicitly, because bubblewrap would make these folders accessible to root only.
    parents = {str(folder) for path in (*visible, *DEVICES) for folder in Path(path).parents}
    for folder in sorted(parents - {"/"}):
        root += ["--dir", folder]
    for path in visible:
        root += ["--symlink", os.readlink(path), path] if os.path.islink(path) else ["--ro-bind", path, path]
    for path in DEVICES:
        root += ["--dev-bind", path, path]
    if os.path.isdir(SITE_PACKAGES):
        root += ["--tmpfs", SITE_PACKAGES, "--remount-ro", SITE_PACKAGES]
    root += [
        "--ro-bind",
        str(BOOTSTRAP_FILE),
        f"/{BOOTSTRAP_FILE.name}",
        "--dir",
        SCRATCH,
        "--remount-ro",
        "/",
        "--chdir",
        "/",
    ]
    return [bwrap, *options, "--die-with-parent", *rights, *root]


def _visible_paths(sandbox: Sandbox) -> list[str]:
    """Return the existing paths that sandboxed code can read."""
    paths = [*SYSTEM_PATHS, PYTHON_LIB, PYTHON, *map(str, sandbox.libraries)]
    return [path for path in dict.fromkeys(paths) if os.path.exists(path)]


@cache
def _is_root() -> bool:
    """Return True if this user is root of the machine, whose processes no limit counts, and not root of a container."""
    return os.geteuid() == 0 and Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]
