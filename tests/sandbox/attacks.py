"""Programs that try to get out of the sandbox, or to exceed its limits.

Each prints `ESCAPED` if it got something, `blocked` and why if not. `world` names their targets: a secret file, a
listening port, a process outside and so on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from marl.sandbox.process import EndReason

PRELUDE = """
import ctypes, json, os, resource, signal, socket, subprocess, sys, threading, time
world = json.load(open("world.json"))
libc = ctypes.CDLL(None, use_errno=True)

def probe(action, *arguments):
    try:
        got = action(*arguments)
    except BaseException as error:
        print("blocked:", repr(error), flush=True)
    else:
        print("ESCAPED:", got, flush=True)

def call(name, *arguments):
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    if (result := getattr(libc, name)(*words)) == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), name)
    return result

def read(path):
    with open(path, "rb") as file:
        return file.read(1000)

def write(path, text="escaped"):
    with open(path, "w") as file:
        file.write(text)
    return path
"""


@dataclass(frozen=True)
class Attack:
    """A program, the limits that it runs under and how it is to end."""

    code: str
    limits: Mapping[str, Any] = field(default_factory=dict)
    reasons: tuple[EndReason, ...] = ("finished",)


ATTACKS = {
    "reads the password file": Attack(
        "probe(read, '/etc/passwd'); probe(read, '/etc/shadow'); probe(read, '/etc/hosts')"
    ),
    "reads the environment": Attack(
        "probe(lambda: os.environ['MARL_TEST_SECRET'])\n"
        "for process in ('self', 1, os.getppid(), world['host']): probe(read, f'/proc/{process}/environ')"
    ),
    "reads a file by its path": Attack(
        "probe(read, world['secret']); probe(os.listdir, os.path.dirname(world['secret']))"
    ),
    "reads the project": Attack("probe(read, world['project'] + '/README.md'); probe(os.listdir, world['project'])"),
    "imports the project": Attack("sys.path.append(world['project'])\nprobe(__import__, 'marl')"),
    "imports what is installed beside the project": Attack("probe(__import__, 'torch'); probe(__import__, 'pydantic')"),
    "looks into home folders": Attack(
        "probe(os.listdir, '/home'); probe(read, '/root/.bashrc'); probe(read, world['bashrc'])"
    ),
    "writes to the project": Attack("probe(write, world['project'] + '/escaped'); probe(os.remove, world['secret'])"),
    "writes beside its scratch folder": Attack(
        "for folder in ('/', '/usr', '/usr/lib', '/etc', '/dev', '/dev/shm', '/var/tmp', '/run', '/root'):\n"
        "    probe(write, folder + '/escaped')"
    ),
    "changes the library that others load": Attack("probe(write, os.__file__); probe(os.chmod, os.__file__, 0o777)"),
    "changes the interpreter": Attack("probe(write, sys.executable); probe(os.remove, sys.executable)"),
    "follows a symbolic link out": Attack(
        "os.symlink(world['secret'], 'link'); probe(read, 'link'); probe(write, 'link')\n"
        "os.symlink('/', 'up'); probe(read, 'up' + world['secret']); probe(read, 'up/etc/passwd')"
    ),
    "makes a hard link to what is outside": Attack(
        "probe(os.link, world['secret'], 'link'); probe(os.link, sys.executable, 'python')"
    ),
    "climbs out with dots": Attack("probe(read, '../' * 40 + world['secret']); probe(write, '../../escaped')"),
    "leaves its root folder": Attack(
        "os.mkdir('deep'); keep = os.open('.', os.O_RDONLY)\n"
        "probe(os.chroot, 'deep'); probe(call, 'pivot_root', b'.', b'deep'); probe(read, '../' * 40 + 'etc/passwd')"
    ),
    "mounts a file system": Attack(
        "for kind in (b'proc', b'sysfs', b'tmpfs', b'overlay'): probe(call, 'mount', b'none', b'/tmp', kind, 0, b'')\n"
        "probe(call, 'mount', None, b'/', None, 32 | 4096, None); probe(call, 'umount2', b'/tmp', 2)"
    ),
    "makes the disk's device": Attack(
        "for minor in range(4):\n"
        "    probe(os.mknod, f'disk{minor}', 0o60666, os.makedev(254, minor)); probe(read, f'disk{minor}')\n"
        "probe(os.mknod, 'memory', 0o20666, os.makedev(1, 1)); probe(read, '/dev/mem'); probe(read, '/dev/vda')"
    ),
    "changes the kernel's settings": Attack(
        "for path in ('/proc/sys/kernel/core_pattern', '/proc/sysrq-trigger', '/sys/fs/cgroup/cgroup.procs'):\n"
        "    probe(write, path)\nprobe(socket.sethostname, 'escaped')"
    ),
    "types into the terminal": Attack(
        "import fcntl, termios\nprobe(read, '/dev/tty')\n"
        "for stream in range(3): probe(fcntl.ioctl, stream, termios.TIOCSTI, b'x')"
    ),
    "opens a connection": Attack(
        "probe(socket.create_connection, ('127.0.0.1', world['port']), 1)\n"
        "probe(socket.create_connection, ('1.1.1.1', 53), 1); probe(socket.getaddrinfo, 'example.org', 80)"
    ),
    "sends a datagram": Attack(
        "probe(lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b'escaped', ('127.0.0.1', world['port'])))"
    ),
    "talks over a Unix socket": Attack(
        "probe(lambda: socket.socket(socket.AF_UNIX).connect(world['socket']))\n"
        "probe(lambda: socket.socket(socket.AF_UNIX).connect('\\0' + world['abstract']))"
    ),
    "listens": Attack("probe(socket.create_server, ('127.0.0.1', 0))"),
    "opens a raw socket": Attack(
        "for family in (socket.AF_PACKET, socket.AF_NETLINK, socket.AF_INET6, 38, 40):\n"
        "    probe(socket.socket, family, socket.SOCK_RAW)"
    ),
    "uses what its parents left open": Attack("for number in range(3, 2048): probe(os.fstat, number)"),
    "writes to its input": Attack("probe(os.write, 0, b'escaped'); probe(os.ftruncate, 0, 1 << 30)"),
    "kills its parent": Attack(
        "for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP):\n"
        "    try: os.kill(os.getppid(), number)\n    except PermissionError: pass\n"
        "time.sleep(0.2); print('blocked: still here')"
    ),
    "kills a process outside by its number": Attack(
        "for process in (world['host'], world['victim']): probe(os.kill, process, signal.SIGKILL)"
    ),
    "kills whatever it can": Attack("print('blocked', flush=True); os.kill(-1, signal.SIGKILL)"),
    "traces its parent": Attack(
        "for process in (1, os.getppid(), world['victim']):\n"
        "    probe(call, 'ptrace', 16, process, 0, 0); probe(read, f'/proc/{process}/mem')"
    ),
    "traces its own child": Attack(
        "child = os.fork()\nif not child: time.sleep(5); os._exit(0)\n"
        "probe(call, 'ptrace', 16, child, 0, 0); os.kill(child, 9)"
    ),
    "reads another process's memory": Attack(
        "class Vector(ctypes.Structure): _fields_ = [('base', ctypes.c_void_p), ('length', ctypes.c_size_t)]\n"
        "room = ctypes.create_string_buffer(8); mine = Vector(ctypes.addressof(room), 8)\n"
        "for process in (1, os.getpid(), world['victim']):\n"
        "    for name in ('process_vm_readv', 'process_vm_writev'):\n"
        "        probe(call, name, process, ctypes.byref(mine), 1, ctypes.byref(mine), 1, 0)"
    ),
    "takes another process's files": Attack(
        "for process in (1, os.getppid()): probe(call, 'syscall', 438, os.pidfd_open(process), 0, 0)"
    ),
    "becomes root": Attack(
        "probe(os.setuid, 0); probe(os.setresuid, 0, 0, 0); probe(os.setgid, 0); probe(os.setgroups, [0])\n"
        "header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(*[0xFFFFFFFF] * 6)\n"
        "probe(call, 'capset', header, data)"
    ),
    "makes namespaces of its own": Attack(
        "for flag in (0x10000000, 0x20000, 0x40000000, 0x20000000, 0x10020000): probe(call, 'unshare', flag)\n"
        "import platform; clone = {'x86_64': 56, 'aarch64': 220}[platform.machine()]\n"
        "probe(call, 'syscall', clone, 0x10000000 | 17, 0, 0, 0, 0); probe(call, 'syscall', 435, 0, 88)\n"
        "probe(call, 'setns', 0, 0)"
    ),
    "runs a shell or a program that makes it root": Attack(
        "for path in ('/bin/sh', '/usr/bin/su', '/usr/bin/mount', '/usr/bin/bwrap'):\n"
        "    probe(subprocess.run, [path, '-c', 'id'])"
    ),
    "makes a program that runs as its owner": Attack(
        "import shutil; shutil.copy(sys.executable, 'python'); os.chmod('python', 0o6755)\n"
        "asked = subprocess.run(['./python', '-S', '-c', 'import os; os.setuid(0)'], capture_output=True)\n"
        "print('ESCAPED' if asked.returncode == 0 else 'blocked')"
    ),
    "raises its limits": Attack(
        "for name in ('AS', 'CPU', 'FSIZE', 'NOFILE', 'NPROC', 'CORE'):\n"
        "    which = getattr(resource, f'RLIMIT_{name}')\n"
        "    probe(resource.setrlimit, which, (resource.getrlimit(which)[1] + 1,) * 2)"
    ),
    "asks the kernel for its stranger services": Attack(
        "import platform\n"
        "old = {'x86_64': (321, 323, 298, 250, 248, 319, 246), 'aarch64': (280, 282, 241, 219, 217, 279, 104)}\n"
        "for number in (*old[platform.machine()], 425, 428, 430, 442, 447, 460):\n"
        "    probe(call, 'syscall', number, 0, 0, 0, 0, 0)"
    ),
    "keeps things in shared memory": Attack(
        "probe(call, 'shmget', 0, 1 << 20, 0o1666); probe(call, 'msgget', 7, 0o1666)\n"
        "probe(call, 'semget', 7, 1, 0o1666); probe(os.memfd_create, 'escaped'); probe(write, '/dev/shm/escaped')"
    ),
    "fills memory that is shared and that nobody maps any more": Attack(
        "import mmap\n"
        "def fill(*where):\n"
        "    memory = mmap.mmap(*where)\n"
        "    for place in range(0, len(memory), 4096): memory[place] = 1\n"
        "    memory.madvise(mmap.MADV_DONTNEED)\n"
        "    return len(memory)\n"
        "os.fork(); probe(fill, -1, 200 << 20); probe(lambda: fill(os.open('/dev/zero', os.O_RDWR), 200 << 20))\n"
        "probe(lambda: mmap.mmap(-1, 1 << 21, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000))"
    ),
    "makes its pipes larger": Attack("import fcntl; probe(fcntl.fcntl, os.pipe()[1], 1031, 1 << 20)"),
    "makes its sockets' buffers larger": Attack(
        "probe(lambda: socket.socketpair()[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20))"
    ),
    "keeps open files on their way through a socket": Attack(
        "probe(lambda: socket.send_fds(socket.socketpair()[0], [b'x'], [0]))"
    ),
    "asks for pairs of strange sockets": Attack("for family in (30, 38, 41): probe(socket.socketpair, family)"),
    "fills the buffers of sockets": Attack(
        "def fill():\n"
        "    for one in pairs[-1]:\n"
        "        one.setblocking(False)\n"
        "        try:\n            while True: one.send(bytes(65536))\n        except BlockingIOError: pass\n"
        "for _ in range(3): os.fork()\n"
        "print('blocked', flush=True); pairs = []\n"
        "for _ in range(28): pairs.append(socket.socketpair()); fill()\n"
        "time.sleep(9)",
        {"memory_mb": 64, "processes": 32},  # an ordinary user's processes outside the sandbox count, too
        ("memory",),
    ),
    "takes what the kernel has only so many of": Attack(
        "probe(call, 'inotify_init'); probe(call, 'inotify_init1', 0)\n"
        "import platform; setup = {'x86_64': 206, 'aarch64': 0}[platform.machine()]\n"
        "probe(call, 'syscall', setup, 1000, ctypes.byref(ctypes.c_ulong()))\n"
        "probe(lambda: [call('timer_create', 1, None, ctypes.byref(ctypes.c_void_p())) for _ in range(5000)])"
    ),
    "opens files without end": Attack("probe(lambda: [os.pipe() for _ in range(5000)])"),
    "forks without end": Attack(
        "print('blocked', flush=True)\nwhile True:\n    try: os.fork()\n    except OSError: pass",
        {"wall_s": 0.7},
        ("timeout",),
    ),
    "starts threads without end": Attack(
        "probe(lambda: [threading.Thread(target=time.sleep, args=(9,), daemon=True).start() for _ in range(500)])\n"
        "sys.stdout.flush(); os._exit(0)"
    ),
    "leaves a process behind": Attack(
        "if not os.fork():\n    os.setsid()\n    if not os.fork():\n"
        "        signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(30); print('ESCAPED')\n    os._exit(0)\n"
        "print('blocked', flush=True)"
    ),
    "fills the memory": Attack(
        "probe(lambda: bytearray(1 << 30)); probe(lambda: [bytearray(1 << 20) for _ in range(999)])",
        {"memory_mb": 64},
    ),
    "fills the memory with several processes": Attack(
        "for _ in range(3): os.fork()\n"
        "print('blocked', flush=True); kept = bytearray(b'x') * (50 << 20); time.sleep(9)",
        {"memory_mb": 100, "processes": 32},
        ("memory",),
    ),
    "fills the scratch folder": Attack(
        "probe(write, 'big', 'x' * (9 << 20))\n"
        "def many():\n    for number in range(50): write(f'big{number}', 'x' * (1 << 20))\nprobe(many)",
        {"memory_mb": 128},
    ),
    "makes files without end": Attack("probe(lambda: [os.mkdir(str(number)) for number in range(100_000)])"),
    "prints without end": Attack("while True: print('blocked' * 1000)", {}, ("output",)),
    "prints errors without end": Attack(
        "print('blocked', flush=True)\nwhile True: os.write(2, b'x' * 65536)", {}, ("output",)
    ),
    "computes without end": Attack(
        "print('blocked', flush=True)\nwhile True: pass", {"cpu_s": 1, "wall_s": 9}, ("timeout", "killed")
    ),
    "computes without end and hears no signal": Attack(
        "for number in range(1, 65):\n"
        "    try: signal.signal(number, signal.SIG_IGN)\n    except (OSError, ValueError): pass\n"
        "print('blocked', flush=True)\nwhile True: pass",
        {"wall_s": 0.5},
        ("timeout",),
    ),
    "computes without end inside one call": Attack(
        "print('blocked', flush=True); import re; re.match('(a+)+$', 'a' * 40 + 'b')", {"wall_s": 0.5}, ("timeout",)
    ),
    "sleeps in a C call": Attack(
        "print('blocked', flush=True); signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65)); libc.sleep(99)",
        {"wall_s": 0.5},
        ("timeout",),
    ),
    "closes its output and sleeps": Attack(
        "print('blocked', flush=True); os.close(1); os.close(2); time.sleep(99)", {"wall_s": 0.5}, ("timeout",)
    ),
    "stops itself": Attack(
        "print('blocked', flush=True); os.kill(os.getpid(), signal.SIGSTOP)", {"wall_s": 0.5}, ("timeout",)
    ),
    "crashes the interpreter": Attack("print('blocked', flush=True); ctypes.string_at(0)", {}, ("killed",)),
}
