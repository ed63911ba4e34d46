"""Command lines and setups that isolate a program, by bubblewrap or by bootstrap.py itself.

Both mechanisms create namespaces and a root folder with read-only files of Python, a few devices and a scratch folder,
but without /proc, /etc, /home, shell, network or other processes. bootstrap.py then sets limits and drops privileges.
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
from marl.sandbox.seccomp import MACHINES, seccomp_filter_bytes
from marl.sandbox.settings import SCRATCH, Sandbox

BOOTSTRAP_FILE = Path(__file__).with_name("bootstrap.py")
PYTHON = os.path.realpath(sys.executable)
"""Path of the real interpreter, not a virtual environment's link, by which the environment's packages were visible."""
PYTHON_LIB = os.path.join(os.path.realpath(sys.base_prefix), "lib")
SITE_PACKAGES = os.path.join(PYTHON_LIB, f"python{sys.version_info.major}.{sys.version_info.minor}", "site-packages")
"""Folder of installed packages, which is hidden from sandboxed code."""
SYSTEM_PATHS = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache")
"""Paths of this machine, in addition to Python's, that sandboxed code can read."""
DEVICES = ("/dev/null", "/dev/random", "/dev/urandom")
"""Devices visible in the sandbox. /dev/zero is excluded, because mappings of it are shared memory without a limit."""
OPEN_FILES = 64
"""Maximum number of open files, and of timers, of one sandboxed process."""
NOBODY = 65534
"""Id of the user `nobody`, as which sandboxed code runs in a user namespace."""
FIRST_USER, USERS = 0x70000000, 1 << 28
"""First number and length of a range of unused user ids (by systemd's conventions). Root runs each sandbox as a random
user of the range, so that each has its own limit of processes."""
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
"""Processor -> number of the system call `pivot_root`."""
NAMESPACES = 0x6E020000
"""Flags CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWPID and NEWNET of the system call `unshare`."""
NEW_USER = 0x10000000
"""Flag CLONE_NEWUSER of the system call `unshare`."""


class SandboxUnavailable(RunError):  # noqa: N818 (says what happened)
    """No isolation mechanism works on this machine, or the isolation of a program failed."""


class NamespaceSetup(TypedDict):
    """Namespaces and root folder that bootstrap.py creates."""

    flags: int
    """Flags of the system call `unshare`."""
    user: int | None
    """User id inside of a new user namespace, or None to create no user namespace."""
    pivot_root: int
    """Number of the system call `pivot_root`."""
    visible: list[str]
    """Paths that are mounted read-only in the new root folder."""
    hidden: list[str]
    """Folders within `visible` that an empty folder covers."""


class SandboxSetup(TypedDict):
    """Settings by which bootstrap.py isolates itself and runs the code, in the order of use."""

    namespaces: NamespaceSetup | None
    """Namespaces to create, or None if bubblewrap has created them or isolation is off."""
    scratch: str
    """Path of the scratch folder, which is the working folder of the code."""
    scratch_mb: int
    """Size (MiB) of a scratch folder in memory, or 0 to use the existing folder."""
    limits: list[tuple[int, int, int]]
    """(resource number, soft limit, hard limit) of each resource limit."""
    user: int | None
    """Id of the user to which root switches, or None to keep the user."""
    filter: str
    """Seccomp filter as hexadecimal digits, or empty to keep all capabilities and system calls."""
    files: Mapping[str, str]
    """File name -> text of each file in the scratch folder."""
    command: list[str]
    """Command line that runs the untrusted code."""
    environment: Mapping[str, str]
    """Environment variables of the untrusted code."""


def bootstrap_command(mechanism: str, sandbox: Sandbox, setup_fd: int, ready_fd: int) -> list[str]:
    """Return the command line that starts bootstrap.py, within bubblewrap if `mechanism` is "bubblewrap".

    bootstrap.py reads its setup from the file descriptor `setup_fd`, and reports its start to the pipe `ready_fd`.

    Raises:
        SandboxUnavailable: if `mechanism` is "bubblewrap", and bubblewrap is not installed.
    """
    arguments = [str(setup_fd), str(ready_fd)]
    if mechanism != "bubblewrap":
        return [PYTHON, "-I", "-S", str(BOOTSTRAP_FILE), *arguments]
    bwrap = shutil.which("bwrap")
    if not bwrap:
        raise SandboxUnavailable("bwrap is not installed")
    options = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    rights = ["--cap-drop", "ALL", "--cap-add", "CAP_SYS_ADMIN"]
    if _is_machine_root():
        rights += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        options += ["--unshare-user", "--uid", str(NOBODY), "--gid", str(NOBODY)]
    root: list[str] = []
    visible = _paths_visible_in_sandbox(sandbox)
    # Parent folders are created explicitly, because those that bubblewrap creates are accessible to root only.
    parents = {str(folder) for path in (*visible, *DEVICES) for folder in Path(path).parents}
    for folder in sorted(parents - {"/"}):
        root += ["--dir", folder]
    for path in visible:
        root += ["--symlink", os.readlink(path), path] if os.path.islink(path) else ["--ro-bind", path, path]
    for path in DEVICES:
        root += ["--dev-bind", path, path]
    if os.path.isdir(SITE_PACKAGES):
        root += ["--tmpfs", SITE_PACKAGES, "--remount-ro", SITE_PACKAGES]
    script = f"/{BOOTSTRAP_FILE.name}"
    root += ["--ro-bind", str(BOOTSTRAP_FILE), script, "--dir", SCRATCH, "--remount-ro", "/", "--chdir", "/"]
    return [bwrap, *options, "--die-with-parent", *rights, *root, PYTHON, "-I", "-S", script, *arguments]


def make_sandbox_setup(
    mechanism: str, sandbox: Sandbox, file_texts: Mapping[str, str], scratch_folder: str
) -> SandboxSetup:
    """Return the setup for bootstrap.py, which writes `file_texts` (name -> text) to the folder `scratch_folder`.

    Raises:
        SandboxUnavailable: if there is no seccomp filter for this machine's processor.
    """
    machine, isolated = platform.machine(), mechanism != "none"
    if isolated and machine not in MACHINES:
        raise SandboxUnavailable(f"sandbox: no filter of system calls for {machine}; choices: {', '.join(MACHINES)}")
    namespaces = None
    if mechanism == "unshare":
        namespaces = NamespaceSetup(
            flags=NAMESPACES if _is_machine_root() else NAMESPACES | NEW_USER,
            user=None if _is_machine_root() else NOBODY,
            pivot_root=PIVOT_ROOT[machine],
            visible=[*_paths_visible_in_sandbox(sandbox), *DEVICES],
            hidden=[SITE_PACKAGES] if os.path.isdir(SITE_PACKAGES) else [],
        )
    soft_limits = {
        resource.RLIMIT_CPU: sandbox.cpu_s,
        resource.RLIMIT_AS: sandbox.memory_mb << 20,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: sandbox.file_mb << 20,
        resource.RLIMIT_NOFILE: OPEN_FILES,
    }
    if isolated:
        # + 1 for the namespace's first process. Without a namespace, the limit would count all processes of the user.
        soft_limits[resource.RLIMIT_NPROC] = sandbox.processes + 1
        soft_limits[resource.RLIMIT_SIGPENDING] = OPEN_FILES
    limits = []
    for which, soft in soft_limits.items():
        # The soft limit of CPU time sends a signal that code can ignore, while the hard limit kills.
        hard = soft + 1 if which == resource.RLIMIT_CPU else soft
        # A process can only lower its own hard limits.
        if (highest := resource.getrlimit(which)[1]) != resource.RLIM_INFINITY:
            hard = min(hard, highest)
        limits.append((which, min(soft, hard), hard))
    return SandboxSetup(
        namespaces=namespaces,
        scratch=scratch_folder,
        scratch_mb=sandbox.file_mb if isolated else 0,
        limits=limits,
        user=FIRST_USER + secrets.randbelow(USERS) if isolated and _is_machine_root() else None,
        filter=seccomp_filter_bytes(machine).hex() if isolated else "",
        files=file_texts,
        command=[PYTHON, "-s", "-B", "-X", "utf8", "main.py"],
        environment={
            "HOME": scratch_folder,
            "PYTHONHASHSEED": "0",
            "PYTHONPATH": os.pathsep.join(map(str, sandbox.libraries)),
        },
    )


def _paths_visible_in_sandbox(sandbox: Sandbox) -> list[str]:
    """Return the existing paths that sandboxed code can read."""
    paths = [*SYSTEM_PATHS, PYTHON_LIB, PYTHON, *map(str, sandbox.libraries)]
    return [path for path in dict.fromkeys(paths) if os.path.exists(path)]


@cache
def _is_machine_root() -> bool:
    """Return True if this user is root of the machine and not only of a container: no process limit holds for root."""
    return os.geteuid() == 0 and Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]
