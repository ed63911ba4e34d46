"""What runs in the sandbox before the code that nobody has read: it shuts the doors, then becomes that code.

Started as `python -I -S inside.py FD READY`: FD holds its orders (`Orders` in isolation.py, as JSON), READY is
a pipe that hears one byte once every door is shut. One file that needs the standard library alone, because nothing else
is there. Only what fails before that byte is the sandbox's fault; all that follows is the code's.
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


class Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.c_char_p)]


def checked(result, what):
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), what)


def prctl(option, value, pointer=None):
    arguments = (ctypes.c_ulong(value), pointer, ctypes.c_ulong(0), ctypes.c_ulong(0))
    checked(libc.prctl(option, *arguments), f"prctl {option}")


def mount(source, target, kind, flags, options=""):
    words = [word.encode() if word else None for word in (source, target, kind)]
    checked(libc.mount(*words, ctypes.c_ulong(flags), options.encode()), f"mount {target}")


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


def enclose(room):
    """Go on as the first process of new namespaces, in a root folder of its own; the old process waits for it."""
    user, group = os.getuid(), os.getgid()
    checked(libc.unshare(room["namespaces"]), "unshare")
    if room["mapped"] is not None:
        write("/proc/self/setgroups", "deny")
        write("/proc/self/uid_map", f"{room['mapped']} {user} 1")
        write("/proc/self/gid_map", f"{room['mapped']} {group} 1")
    if first := os.fork():
        leave_with(first)
    furnish(room)


def furnish(room):
    """A root folder in memory that shows a few paths of the old one, none of which can be written."""
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
    os.mkdir("/tmp" + OLD_ROOT)
    checked(libc.syscall(room["pivot_root"], b"/tmp", b"/tmp" + OLD_ROOT.encode()), "pivot_root")
    os.chdir("/")
    for path in room["shown"]:
        show(path)
    for path in room["hidden"]:
        mount("tmpfs", path, "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV)
    os.mkdir("/tmp")
    checked(libc.umount2(OLD_ROOT.encode(), MNT_DETACH), "umount2")
    os.rmdir(OLD_ROOT)
    mount(None, "/", None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def show(path):
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
    checked(libc.syscall(SYS_MOUNT_SETATTR, AT_FDCWD, *arguments), f"mount_setattr {path}")


def shut(orders):
    """Take the limits, then give up every right and most of the kernel's calls, for good."""
    for which, soft, hard in orders["limits"]:
        resource.setrlimit(which, (soft, hard))
    if orders["user"] is not None:
        os.setgroups([])
        os.setresgid(*[orders["user"]] * 3)
        os.setresuid(*[orders["user"]] * 3)
    if orders["filter"]:
        nothing = (ctypes.c_uint32 * 6)()
        checked(libc.capset((ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0), nothing), "capset")
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        steps = bytes.fromhex(orders["filter"])
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(Filter(len(steps) // 8, steps)))


def die_with_the_parent():
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def leave_with(child):
    """Wait for `child`, bury whoever else was left behind, and end as it ended."""
    while True:
        process, status = os.wait()
        if process == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(128 - code if code < 0 else code)


def main(orders_fd, ready):
    with open(orders_fd) as file:
        orders = json.load(file)
    die_with_the_parent()
    if orders["room"]:
        enclose(orders["room"])
    if orders["scratch_mb"]:
        options = f"size={orders['scratch_mb']}m,nr_inodes={INODES},mode=1777"
        mount("tmpfs", orders["scratch"], "tmpfs", MS_NOSUID | MS_NODEV, options)
    os.chdir(orders["scratch"])
    shut(orders)
    die_with_the_parent()  # again: a new process, or a new user, has forgotten it
    for name, text in orders["files"].items():
        with open(name, "w", encoding="utf-8", errors="replace", newline="") as file:
            file.write(text)
    if orders["room"] and (code := os.fork()):
        leave_with(code)  # the first process of a namespace cannot be killed from inside, so it is not the code
    os.write(ready, b".")  # fails where the parent died too early for `die_with_the_parent` to notice
    os.close(ready)
    os.closerange(3, 1024)
    os.execve(orders["command"][0], orders["command"], orders["environment"])


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
