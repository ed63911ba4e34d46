"""First program inside a sandbox: isolates itself, gives its rights away, then becomes the untrusted code.

Started as `python -I -S inside.py FD READY`: FD holds a `SandboxSetup` (isolation.py) as JSON; READY is a pipe that
gets one byte once isolation is complete. It is one file that imports the standard library alone, because nothing else
is there. Failures before that byte are the sandbox's fault, all later ones the code's.
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
"""Files and folders in the scratch folder: each takes kernel memory, even if it is empty."""

libc = ctypes.CDLL(None, use_errno=True)


class MountAttributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd")]


class FilterProgram(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def check(result, call):
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), call)


def prctl(option, value, pointer=None):
    arguments = (ctypes.c_ulong(value), pointer, ctypes.c_ulong(0), ctypes.c_ulong(0))
    check(libc.prctl(option, *arguments), f"prctl {option}")


def mount(source, target, kind, flags, options=""):
    texts = [text.encode() if text else None for text in (source, target, kind)]
    check(libc.mount(*texts, ctypes.c_ulong(flags), options.encode()), f"mount {target}")


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


def enter_namespaces(namespaces):
    """Go on as the first process of new namespaces with a root folder of its own; the old process waits for it."""
    user, group = os.getuid(), os.getgid()
    check(libc.unshare(namespaces["flags"]), "unshare")
    if namespaces["user"] is not None:
        write("/proc/self/setgroups", "deny")
        write("/proc/self/uid_map", f"{namespaces['user']} {user} 1")
        write("/proc/self/gid_map", f"{namespaces['user']} {group} 1")
    if first := os.fork():
        exit_with(first)
    build_root(namespaces)


def build_root(namespaces):
    """Move to a root folder in memory that shows a few paths of the old one, none of which can be written."""
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
    os.mkdir("/tmp" + OLD_ROOT)
    check(libc.syscall(namespaces["pivot_root"], b"/tmp", b"/tmp" + OLD_ROOT.encode()), "pivot_root")
    os.chdir("/")
    for path in namespaces["visible"]:
        bind_read_only(path)
    for path in namespaces["hidden"]:
        mount("tmpfs", path, "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV)
    os.mkdir("/tmp")
    check(libc.umount2(OLD_ROOT.encode(), MNT_DETACH), "umount2")
    os.rmdir(OLD_ROOT)
    mount(None, "/", None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def bind_read_only(path):
    old = OLD_ROOT + path
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.islink(old):
        os.symlink(os.readlink(old), path)
        return
    if os.path.isdir(old):
        os.makedirs(path, exist_ok=True)
    elif not os.path.exists(path):
        write(path, "")
    mount(old, path, None, MS_BIND | MS_REC)
    attributes = MountAttributes(MS_RDONLY | MS_NOSUID)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    arguments = (path.encode(), AT_RECURSIVE, ctypes.byref(attributes), size)
    check(libc.syscall(SYS_MOUNT_SETATTR, AT_FDCWD, *arguments), f"mount_setattr {path}")


def drop_rights(setup):
    """Set the limits, then give up every right and most of the kernel's calls, for good."""
    for which, soft, hard in setup["limits"]:
        resource.setrlimit(which, (soft, hard))
    if setup["user"] is not None:
        os.setgroups([])
        os.setresgid(*[setup["user"]] * 3)
        os.setresuid(*[setup["user"]] * 3)
    if setup["filter"]:
        no_capabilities = (ctypes.c_uint32 * 6)()
        check(libc.capset((ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0), no_capabilities), "capset")
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        instructions = bytes.fromhex(setup["filter"])
        program = FilterProgram(len(instructions) // 8, instructions)
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program))


def die_with_parent():
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def exit_with(child):
    """Wait for `child`, reap all other children, and exit with its status."""
    while True:
        process, status = os.wait()
        if process == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(128 - code if code < 0 else code)


def main(setup_fd, ready):
    with open(setup_fd) as file:
        setup = json.load(file)
    die_with_parent()
    if setup["namespaces"]:
        enter_namespaces(setup["namespaces"])
    if setup["scratch_mb"]:
        options = f"size={setup['scratch_mb']}m,nr_inodes={INODES},mode=1777"
        mount("tmpfs", setup["scratch"], "tmpfs", MS_NOSUID | MS_NODEV, options)
    os.chdir(setup["scratch"])
    drop_rights(setup)
    die_with_parent()  # again: the kernel forgets it for a new process or user
    for name, text in setup["files"].items():
        with open(name, "w", encoding="utf-8", errors="replace", newline="") as file:
            file.write(text)
    if setup["namespaces"] and (code := os.fork()):
        exit_with(code)  # the first process of a namespace cannot be killed from inside, so it is not the code
    os.write(ready, b".")  # fails where the parent died too early for `die_with_parent` to notice
    os.close(ready)
    os.closerange(3, 1024)
    os.execve(setup["command"][0], setup["command"], setup["environment"])


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
