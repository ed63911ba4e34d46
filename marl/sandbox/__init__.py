"""Sandbox for model-written code: Linux namespaces, a seccomp filter and resource limits.

`run_program(Sandbox(), program)` runs a program without network, capabilities, other users' files and the kernel's more
dangerous system calls, and kills it when it exceeds a limit. The sandbox protects neither from faults of the kernel nor
from timing attacks.
"""

from marl.sandbox.isolation import SandboxUnavailable
from marl.sandbox.process import ProgramResult, reason_sandbox_is_unusable, run_program
from marl.sandbox.settings import Sandbox

__all__ = ["ProgramResult", "Sandbox", "SandboxUnavailable", "reason_sandbox_is_unusable", "run_program"]
