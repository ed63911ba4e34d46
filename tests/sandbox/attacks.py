"""Programs that try to get out of the sandbox, or to take more than they are given.

Each says `ESCAPED` if it got something, `blocked` and why if not. `world` names what they are after: a secret file, a
listening port, a process outside and so on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from marl.sandbox.watch import Why

PRELUDE = """
import ctypes, json, os, resource, signal, socket, subprocess, sys, threading, time
world = json.load(open("world.json"))
libc = ctypes.CDLL(None, use_errno=True)

def tried(attempt, *arguments):
    try:
        got = attempt(*arguments)
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
    why: tuple[Why, ...] = ("finished",)


ATTACKS = {
    "reads the password file": Attack(
        "tried(read, '/etc/passwd'); tried(read, '/etc/shadow'); tried(read, '/etc/hosts')"
    ),
    "reads the environment": Attack(
        "tried(lambda: os.environ['MARL_TEST_SECRET'])\n"
        "for process in ('self', 1, os.getppid(), world['host']): tried(read, f'/proc/{process}/environ')"
    ),
    "reads a file by its path": Attack(
        "tried(read, world['secret']); tried(os.listdir, os.path.dirname(world['secret']))"
    ),
    "reads the project": Attack("tried(read, world['project'] + '/README.md'); tried(os.listdir, world['project'])"),
    "imports the project": Attack("sys.path.append(world['project'])\ntried(__import__, 'marl')"),
    "imports what is installed beside the project": Attack("tried(__import__, 'torch'); tried(__import__, 'pydantic')"),
    "looks into home folders": Attack(
        "tried(os.listdir, '/home'); tried(read, '/root/.bashrc'); tried(read, world['bashrc'])"
    ),
    "writes to the project": Attack("tried(write, world['project'] + '/escaped'); tried(os.remove, world['secret'])"),
    "writes beside its scratch folder": Attack(
        "for folder in ('/', '/usr', '/usr/lib', '/etc', '/dev', '/dev/shm', '/var/tmp', '/run', '/root'):\n"
        "    tried(write, folder + '/escaped')"
    ),
    "changes the library that others load": Attack("tried(write, os.__file__); tried(os.chmod, os.__file__, 0o777)"),
    "changes the interpreter": Attack("tried(write, sys.executable); tried(os.remove, sys.executable)"),
    "follows a symbolic link out": Attack(
        "os.symlink(world['secret'], 'link'); tried(read, 'link'); tried(write, 'link')\n"
        "os.symlink('/', 'up'); tried(read, 'up' + world['secret']); tried(read, 'up/etc/passwd')"
    ),
    "makes a hard link to what is outside": Attack(
        "tried(os.link, world['secret'], 'link'); tried(os.link, sys.executable, 'python')"
    ),
    "climbs out with dots": Attack("tried(read, '../' * 40 + world['secret']); tried(write, '../../escaped')"),
    "leaves its root folder": Attack(
        "os.mkdir('deep'); keep = os.open('.', os.O_RDONLY)\n"
        "tried(os.chroot, 'deep'); tried(call, 'pivot_root', b'.', b'deep'); tried(read, '../' * 40 + 'etc/passwd')"
    ),
    "mounts a file system": Attack(
        "for kind in (b'proc', b'sysfs', b'tmpfs', b'overlay'): tried(call, 'mount', b'none', b'/tmp', kind, 0, b'')\n"
        "tried(call, 'mount', None, b'/', None, 32 | 4096, None); tried(call, 'umount2', b'/tmp', 2)"
    ),
    "makes the disk's device": Attack(
        "for minor in range(4):\n"
        "    tried(os.mknod, f'disk{minor}', 0o60666, os.makedev(254, minor)); tried(read, f'disk{minor}')\n"
        "tried(os.mknod, 'memory', 0o20666, os.makedev(1, 1)); tried(read, '/dev/mem'); tried(read, '/dev/vda')"
    ),
    "changes the kernel's settings": Attack(
        "for path in ('/proc/sys/kernel/core_pattern', '/proc/sysrq-trigger', '/sys/fs/cgroup/cgroup.procs'):\n"
        "    tried(write, path)\ntried(socket.sethostname, 'escaped')"
    ),
    "types into the terminal": Attack(
        "import fcntl, termios\ntried(read, '/dev/tty')\n"
        "for stream in range(3): tried(fcntl.ioctl, stream, termios.TIOCSTI, b'x')"
    ),
    "opens a connection": Attack(
        "tried(socket.create_connection, ('127.0.0.1', world['port']), 1)\n"
        "tried(socket.create_connection, ('1.1.1.1', 53), 1); tried(socket.getaddrinfo, 'example.org', 80)"
    ),
    "sends a datagram": Attack(
        "tried(lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b'escaped', ('127.0.0.1', world['port'])))"
    ),
    "talks over a Unix socket": Attack(
        "tried(lambda: socket.socket(socket.AF_UNIX).connect(world['socket']))\n"
        "tried(lambda: socket.socket(socket.AF_UNIX).connect('\\0' + world['abstract']))"
    ),
    "listens": Attack("tried(socket.create_server, ('127.0.0.1', 0))"),
    "opens a raw socket": Attack(
        "for family in (socket.AF_PACKET, socket.AF_NETLINK, socket.AF_INET6, 38, 40):\n"
        "    tried(socket.socket, family, socket.SOCK_RAW)"
    ),
    "uses what its parents left open": Attack("for number in range(3, 2048): tried(os.fstat, number)"),
    "writes to its input": Attack("tried(os.write, 0, b'escaped'); tried(os.ftruncate, 0, 1 << 30)"),
    "kills its parent": Attack(
        "for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP):\n"
        "    try: os.kill(os.getppid(), number)\n    except PermissionError: pass\n"
        "time.sleep(0.2); print('blocked: still here')"
    ),
    "kills a process outside by its number": Attack(
        "for process in (world['host'], world['victim']): tried(os.kill, process, signal.SIGKILL)"
    ),
    "kills whatever it can": Attack("print('blocked', flush=True); os.kill(-1, signal.SIGKILL)"),
    "traces its parent": Attack(
        "for process in (1, os.getppid(), world['victim']):\n"
        "    tried(call, 'ptrace', 16, process, 0, 0); tried(read, f'/proc/{process}/mem')"
    ),
    "traces its own child": Attack(
        "child = os.fork()\nif not child: time.sleep(5); os._exit(0)\n"
        "tried(call, 'ptrace', 16, child, 0, 0); os.kill(child, 9)"
    ),
    "reads another process's memory": Attack(
        "class Vector(ctypes.Structure): _fields_ = [('base', ctypes.c_void_p), ('length', ctypes.c_size_t)]\n"
        "room = ctypes.create_string_buffer(8); mine = Vector(ctypes.addressof(room), 8)\n"
        "for process in (1, os.getpid(), world['victim']):\n"
        "    for name in ('process_vm_readv', 'process_vm_writev'):\n"
        "        tried(call, name, process, ctypes.byref(mine), 1, ctypes.byref(mine), 1, 0)"
    ),
    "takes another process's files": Attack(
        "for process in (1, os.getppid()): tried(call, 'syscall', 438, os.pidfd_open(process), 0, 0)"
    ),
    "becomes root": Attack(
        "tried(os.setuid, 0); tried(os.setresuid, 0, 0, 0); tried(os.setgid, 0); tried(os.setgroups, [0])\n"
        "header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(*[0xFFFFFFFF] * 6)\n"
        "tried(call, 'capset', header, data)"
    ),
    "makes namespaces of its own": Attack(
        "for flag in (0x10000000, 0x20000, 0x40000000, 0x20000000, 0x10020000): tried(call, 'unshare', flag)\n"
        "import platform; clone = {'x86_64': 56, 'aarch64': 220}[platform.machine()]\n"
        "tried(call, 'syscall', clone, 0x10000000 | 17, 0, 0, 0, 0); tried(call, 'syscall', 435, 0, 88)\n"
        "tried(call, 'setns', 0, 0)"
    ),
    "runs a shell or a program that makes it root": Attack(
        "for path in ('/bin/sh', '/usr/bin/su', '/usr/bin/mount', '/usr/bin/bwrap'):\n"
        "    tried(subprocess.run, [path, '-c', 'id'])"
    ),
    "makes a program that runs as its owner": Attack(
        "import shutil; shutil.copy(sys.executable, 'python'); os.chmod('python', 0o6755)\n"
        "asked = subprocess.run(['./python', '-S', '-c', 'import os; os.setuid(0)'], capture_output=True)\n"
        "print('ESCAPED' if asked.returncode == 0 else 'blocked')"
    ),
    "raises its limits": Attack(
        "for name in ('AS', 'CPU', 'FSIZE', 'NOFILE', 'NPROC', 'CORE'):\n"
        "    which = getattr(resource, f'RLIMIT_{name}')\n"
        "    tried(resource.setrlimit, which, (resource.getrlimit(which)[1] + 1,) * 2)"
    ),
    "asks the kernel for its stranger services": Attack(
        "import platform\n"
        "old = {'x86_64': (321, 323, 298, 250, 248, 319, 246), 'aarch64': (280, 282, 241, 219, 217, 279, 104)}\n"
        "for number in (*old[platform.machine()], 425, 428, 430, 442, 447, 460):\n"
        "    tried(call, 'syscall', number, 0, 0, 0, 0, 0)"
    ),
    "keeps things in shared memory": Attack(
        "tried(call, 'shmget', 0, 1 << 20, 0o1666); tried(call, 'msgget', 7, 0o1666)\n"
        "tried(call, 'semget', 7, 1, 0o1666); tried(os.memfd_create, 'escaped'); tried(write, '/dev/shm/escaped')"
    ),
    "opens files without end": Attack("tried(lambda: [os.pipe() for _ in range(5000)])"),
    "forks without end": Attack(
        "print('blocked', flush=True)\nwhile True:\n    try: os.fork()\n    except OSError: pass",
        {"wall_s": 0.7},
        ("timeout",),
    ),
    "starts threads without end": Attack(
        "tried(lambda: [threading.Thread(target=time.sleep, args=(9,), daemon=True).start() for _ in range(500)])\n"
        "sys.stdout.flush(); os._exit(0)"
    ),
    "leaves a process behind": Attack(
        "if not os.fork():\n    os.setsid()\n    if not os.fork():\n"
        "        signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(30); print('ESCAPED')\n    os._exit(0)\n"
        "print('blocked', flush=True)"
    ),
    "fills the memory": Attack(
        "tried(lambda: bytearray(1 << 30)); tried(lambda: [bytearray(1 << 20) for _ in range(999)])", {"memory_mb": 64}
    ),
    "fills the memory with several processes": Attack(
        "for _ in range(3): os.fork()\n"
        "print('blocked', flush=True); kept = bytearray(b'x') * (50 << 20); time.sleep(9)",
        {"memory_mb": 100},
        ("memory",),
    ),
    "fills the scratch folder": Attack(
        "tried(write, 'big', 'x' * (9 << 20))\n"
        "def many():\n    for number in range(50): write(f'big{number}', 'x' * (1 << 20))\ntried(many)",
        {"memory_mb": 128},
    ),
    "makes files without end": Attack("tried(lambda: [os.mkdir(str(number)) for number in range(100_000)])"),
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
