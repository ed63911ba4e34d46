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
"""Maximum number of files and folders in the scratch folder. Each takes kernel memory, even if it is empty."""

libc = ctypes.CDLL(None, use_errno=True)


class MountAttributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd")]


class FilterProgram(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def check(result, call):
    """Raise OSError for a failed C call, which is named `call`."""
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
    """Continue as the first process of new namespaces with a new root folder, while the old process waits for it."""
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
    """Change to a root folder in memory with read-only mounts of the visible paths."""
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
    """Mount a path of the old root read-only at the same path of the new root."""
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
    """Set resource limits, then drop user, capabilities and most system calls irrevocably."""
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
    """Let the kernel kill this process when its parent dies."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def exit_with(child):
    """Reap children until `child` has ended, and exit with the status of `child`."""
    while True:
        process, status = os.wait()
        if process == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(128 - code if code < 0 else code)


def main(setup_fd, ready):
    """Isolate this process as described in the file `setup_fd`, then execute the untrusted code."""
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
    # Again, because the kernel resets the setting for a new process or user.
    die_with_parent()
    for name, text in setup["files"].items():
        with open(name, "w", encoding="utf-8", errors="replace", newline="") as file:
            file.write(text)
    # The untrusted code runs as the second process: the first one of a namespace cannot be killed from inside.
    if setup["namespaces"] and (code := os.fork()):
        exit_with(code)
    # Fails if the parent died before `die_with_parent` took effect.
    os.write(ready, b".")
    os.close(ready)
    os.closerange(3, 1024)
    os.execve(setup["command"][0], setup["command"], setup["environment"])


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
