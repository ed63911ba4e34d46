"""First program inside a sandbox: isolates itself, drops its privileges, then executes the untrusted code.

It is started as `python -I -S bootstrap.py FD READY`. FD is a file with a `SandboxSetup` (isolation.py) as JSON. READY
is a pipe to which the program writes one byte once isolation is complete: errors before this byte are the sandbox's,
later ones the code's. The file imports nothing but the standard library, because no other module is visible in the
sandbox.
"""

import ctypes
import json
import os
import resource
import signal
import sys

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
MNT_DETACH = 2
AT_FDCWD, AT_RECURSIVE, SYS_MOUNT_SETATTR = -100, 0x8000, 442
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 22, 38
SECCOMP_MODE_FILTER = 2
CAPABILITY_VERSION_3 = 0x20080522
OLD_ROOT = "/old"
INODES = 4096
"""Maximum number of files and folders in the scratch folder, because even empty files take kernel memory."""

libc = ctypes.CDLL(None, use_errno=True)


class MountAttributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd")]


class SeccompFilterProgram(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def raise_on_error(result, function_name):
    """Raise OSError if `result`, which the C function `function_name` returned, is negative."""
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), function_name)


def prctl(option, value, pointer=None):
    """Call prctl(2), which changes a property of this process. Raise OSError if the call fails."""
    arguments = (ctypes.c_ulong(value), pointer, ctypes.c_ulong(0), ctypes.c_ulong(0))
    raise_on_error(libc.prctl(option, *arguments), f"prctl {option}")


def mount(source, target, file_system, flags, options=""):
    """Call mount(2). Raise OSError if the call fails."""
    texts = [text.encode() if text else None for text in (source, target, file_system)]
    raise_on_error(libc.mount(*texts, ctypes.c_ulong(flags), options.encode()), f"mount {target}")


def write_file(path, text):
    with open(path, "w") as file:
        file.write(text)


def enter_namespaces(namespaces):
    """Create `namespaces` and continue in a child process, their first process, with a new read-only root folder.

    This process waits for the child and exits with its status.
    """
    user, group = os.getuid(), os.getgid()
    raise_on_error(libc.unshare(namespaces["flags"]), "unshare")
    if namespaces["user"] is not None:
        write_file("/proc/self/setgroups", "deny")
        write_file("/proc/self/uid_map", f"{namespaces['user']} {user} 1")
        write_file("/proc/self/gid_map", f"{namespaces['user']} {group} 1")
    if first := os.fork():
        exit_with_status_of(first)
    # A new root is built in /tmp and swapped with the old one, which is visible at `OLD_ROOT` until it is unmounted.
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
    os.mkdir("/tmp" + OLD_ROOT)
    raise_on_error(libc.syscall(namespaces["pivot_root"], b"/tmp", b"/tmp" + OLD_ROOT.encode()), "pivot_root")
    os.chdir("/")
    for path in namespaces["visible"]:
        # Each visible path of the old root is mounted read-only at the same path of the new root.
        old = OLD_ROOT + path
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if os.path.islink(old):
            os.symlink(os.readlink(old), path)
            continue
        if os.path.isdir(old):
            os.makedirs(path, exist_ok=True)
        elif not os.path.exists(path):
            write_file(path, "")
        mount(old, path, None, MS_BIND | MS_REC)
        attributes = MountAttributes(MS_RDONLY | MS_NOSUID)
        size = ctypes.c_size_t(ctypes.sizeof(attributes))
        arguments = (path.encode(), AT_RECURSIVE, ctypes.byref(attributes), size)
        raise_on_error(libc.syscall(SYS_MOUNT_SETATTR, AT_FDCWD, *arguments), f"mount_setattr {path}")
    for path in namespaces["hidden"]:
        mount("tmpfs", path, "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV)
    os.mkdir("/tmp")
    raise_on_error(libc.umount2(OLD_ROOT.encode(), MNT_DETACH), "umount2")
    os.rmdir(OLD_ROOT)
    mount(None, "/", None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def exit_with_status_of(child_pid):
    """Reap children until the process `child_pid` has ended, and exit with the exit status of that process."""
    while True:
        process, status = os.wait()
        if process == child_pid:
            code = os.waitstatus_to_exitcode(status)
            os._exit(128 - code if code < 0 else code)


def main(setup_fd, ready_fd):
    """Isolate this process, then execute the untrusted code.

    The file `setup_fd` holds a `SandboxSetup` as JSON. The pipe `ready_fd` gets a byte once isolation is complete.
    """
    with open(setup_fd) as file:
        setup = json.load(file)
    # The kernel kills this process when the parent dies.
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if setup["namespaces"]:
        enter_namespaces(setup["namespaces"])
    if setup["scratch_mb"]:
        options = f"size={setup['scratch_mb']}m,nr_inodes={INODES},mode=1777"
        mount("tmpfs", setup["scratch"], "tmpfs", MS_NOSUID | MS_NODEV, options)
    os.chdir(setup["scratch"])
    # Limits come first: user, capabilities and refused system calls are given up irrevocably afterwards.
    for which, soft, hard in setup["limits"]:
        resource.setrlimit(which, (soft, hard))
    if setup["user"] is not None:
        os.setgroups([])
        os.setresgid(*[setup["user"]] * 3)
        os.setresuid(*[setup["user"]] * 3)
    if setup["filter"]:
        no_capabilities = (ctypes.c_uint32 * 6)()
        raise_on_error(libc.capset((ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0), no_capabilities), "capset")
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        instructions = bytes.fromhex(setup["filter"])
        program = SeccompFilterProgram(len(instructions) // 8, instructions)
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program))
    # The kernel resets the parent-death signal for a new process or user, so the signal is set again.
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for name, text in setup["files"].items():
        with open(name, "w", encoding="utf-8", errors="replace", newline="") as file:
            file.write(text)
    # Untrusted code runs in a second process, because a namespace's first process cannot be killed from inside.
    if setup["namespaces"] and (code := os.fork()):
        exit_with_status_of(code)
    # Writing fails if the parent died before the parent-death signal was set.
    os.write(ready_fd, b".")
    os.close(ready_fd)
    os.closerange(3, 1024)
    os.execve(setup["command"][0], setup["command"], setup["environment"])


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
