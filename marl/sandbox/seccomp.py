"""Seccomp filter: the system calls that the kernel refuses to sandboxed code.

Namespaces limit the code's view of the machine. The filter refuses calls that bypass namespaces, that reach rarely
tested parts of the kernel, that allocate memory without a limit, or by which code could starve itself of CPU time to
look like a victim of a busy machine. Refused calls fail with EPERM, so Python raises PermissionError. See seccomp(2)
and linux/bpf_common.h for the instructions.
"""

from __future__ import annotations

import struct
from errno import ENOSYS, EPERM
from typing import NamedTuple

MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""Name of a supported processor -> its constant AUDIT_ARCH in linux/audit.h."""
_X86_64 = """
    mmap 9 shmget 29 shmat 30 shmctl 31 socket 41 connect 42 accept 43 sendmsg 46 bind 49 listen 50 socketpair 53
    setsockopt 54 clone 56 semget 64 semop 65 semctl 66 msgget 68 msgsnd 69 msgrcv 70 msgctl 71 fcntl 72 ptrace 101
    syslog 103 mknod 133 uselib 134 personality 135 ustat 136 sysfs 139 setpriority 141 sched_setparam 142
    sched_setscheduler 144 vhangup 153 modify_ldt 154 pivot_root 155 _sysctl 156 adjtimex 159 chroot 161 acct 163
    settimeofday 164 mount 165 umount2 166 swapon 167 swapoff 168 reboot 169 sethostname 170 setdomainname 171 iopl 172
    ioperm 173 init_module 175 delete_module 176 quotactl 179 sched_setaffinity 203 io_setup 206 lookup_dcookie 212
    clock_settime 227 mbind 237 set_mempolicy 238 get_mempolicy 239 mq_open 240 kexec_load 246 add_key 248
    request_key 249 keyctl 250 inotify_init 253 migrate_pages 256 mknodat 259 unshare 272 vmsplice 278 move_pages 279
    accept4 288 inotify_init1 294 perf_event_open 298 fanotify_init 300 name_to_handle_at 303 open_by_handle_at 304
    clock_adjtime 305 sendmmsg 307 setns 308 process_vm_readv 310 process_vm_writev 311 kcmp 312 finit_module 313
    sched_setattr 314 memfd_create 319 kexec_file_load 320 bpf 321 userfaultfd 323
"""
_AARCH64 = """
    io_setup 0 fcntl 25 inotify_init1 26 mknodat 33 umount2 39 mount 40 pivot_root 41 chroot 51 vhangup 58 quotactl 60
    vmsplice 75 acct 89 personality 92 unshare 97 kexec_load 104 init_module 105 delete_module 106 clock_settime 112
    syslog 116 ptrace 117 sched_setparam 118 sched_setscheduler 119 sched_setaffinity 122 setpriority 140 reboot 142
    sethostname 161 setdomainname 162 settimeofday 170 adjtimex 171 mq_open 180 msgget 186 msgctl 187 msgrcv 188
    msgsnd 189 semget 190 semctl 191 semop 193 shmget 194 shmctl 195 shmat 196 socket 198 socketpair 199 bind 200
    listen 201 accept 202 connect 203 setsockopt 208 sendmsg 211 add_key 217 request_key 218 keyctl 219 clone 220
    mmap 222 swapon 224 swapoff 225 mbind 235 get_mempolicy 236 set_mempolicy 237 migrate_pages 238 move_pages 239
    perf_event_open 241 accept4 242 fanotify_init 262 name_to_handle_at 264 open_by_handle_at 265 clock_adjtime 266
    setns 268 sendmmsg 269 process_vm_readv 270 process_vm_writev 271 kcmp 272 finit_module 273 sched_setattr 274
    memfd_create 279 bpf 280 userfaultfd 282 kexec_file_load 294
"""
_BOTH = """
    io_uring_setup 425 io_uring_enter 426 io_uring_register 427 open_tree 428 move_mount 429 fsopen 430 fsconfig 431
    fsmount 432 fspick 433 pidfd_getfd 438 process_madvise 440 mount_setattr 442 quotactl_fd 443 memfd_secret 447
    process_mrelease 448
"""
_CLONE3, _NEWEST = 435, 449
"""Number of the system call `clone3`, and the highest number of a system call in the tables above."""


class SyscallArgumentRule(NamedTuple):
    """Rule that refuses a system call if the bits `mask` of one argument equal, or differ from, a value."""

    call: str
    """Name of the system call."""
    argument: int
    """Index of the argument."""
    mask: int
    value: int
    """Number with which the selected bits of the argument are compared."""
    equal: bool
    """True to refuse the call if the selected bits equal `value`, False to refuse it if they differ."""


_WORD = 0xFFFFFFFF
_ARGUMENT_RULES = (
    # Refuses `clone` with a flag for a new namespace: CLONE_NEWNS, CGROUP, UTS, IPC, USER, PID, NET or NEWTIME.
    SyscallArgumentRule("clone", 0, 0x7E020080, 0, equal=False),
    # MAP_SHARED with MAP_ANONYMOUS: no process is charged for such memory once its last mapping is gone.
    SyscallArgumentRule("mmap", 3, 0x21, 0x21, equal=True),
    # MAP_HUGETLB: huge pages are not part of any process's memory size.
    SyscallArgumentRule("mmap", 3, 0x40000, 0, equal=False),
    # F_SETPIPE_SZ: larger pipes would take more kernel memory than is charged for an open file.
    SyscallArgumentRule("fcntl", 1, _WORD, 1031, equal=True),
    # asyncio needs AF_UNIX socket pairs; other families are refused, as their kernel code is rarely tested.
    SyscallArgumentRule("socketpair", 0, _WORD, 1, equal=False),
)
_LOAD, _AND, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
"""Operation codes of a filter's BPF instructions."""
_KILL, _REFUSE, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
"""Return values of a filter. A refused call's error number is added to `_REFUSE`."""
_NUMBER, _ARCH, _FIRST_ARGUMENT, _ARGUMENT_BYTES = 0, 4, 16, 8
"""Offsets in `struct seccomp_data`, and the size of an argument, whose low half comes first on these machines."""


def refused_system_calls(cpu_architecture: str) -> dict[str, int]:
    """Return name -> number of each system call refused on `cpu_architecture`, for all or for some arguments."""
    words = ((_X86_64 if cpu_architecture == "x86_64" else _AARCH64) + _BOTH).split()
    return dict(zip(words[::2], map(int, words[1::2]), strict=True))


def seccomp_filter_bytes(cpu_architecture: str) -> bytes:
    """Return the filter for `cpu_architecture` (one of `MACHINES`) as an array of `struct sock_filter`."""
    numbers = refused_system_calls(cpu_architecture)
    refused_by_argument = {rule.call for rule in _ARGUMENT_RULES}
    # Each BPF instruction is (code, jump if true, jump if false, value).
    instructions = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, MACHINES[cpu_architecture]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        # System calls newer than this table are refused, and so are x32 calls, whose numbers are far higher.
        (_AT_LEAST, 0, 1, _NEWEST + 1),
        (_RETURN, 0, 0, _REFUSE | ENOSYS),
        # A filter cannot read the flags of clone3, which are in memory. After ENOSYS, libraries fall back to clone.
        (_EQUAL, 0, 1, _CLONE3),
        (_RETURN, 0, 0, _REFUSE | ENOSYS),
    ]
    for call in sorted(numbers.keys() - refused_by_argument, key=numbers.__getitem__):
        instructions += [(_EQUAL, 0, 1, numbers[call]), (_RETURN, 0, 0, _REFUSE | EPERM)]
    for rule in _ARGUMENT_RULES:
        instructions += [
            (_LOAD, 0, 0, _NUMBER),
            (_EQUAL, 0, 4, numbers[rule.call]),
            (_LOAD, 0, 0, _FIRST_ARGUMENT + _ARGUMENT_BYTES * rule.argument),
            (_AND, 0, 0, rule.mask),
            (_EQUAL, int(not rule.equal), int(rule.equal), rule.value),
            (_RETURN, 0, 0, _REFUSE | EPERM),
        ]
    instructions.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("HBBI", *instruction) for instruction in instructions)
