"""Sandbox for model-written code: Linux namespaces, a seccomp filter and resource limits.

`run(Sandbox(), program)` starts the program without network, capabilities, other people's files and the kernel's more
dangerous calls, and kills it when it exceeds a limit. It protects neither from errors of the kernel itself nor from
timing attacks.
"""

from marl.sandbox.isolation import SandboxUnavailable
from marl.sandbox.running import ProgramResult, run, unusable
from marl.sandbox.settings import Sandbox

__all__ = ["ProgramResult", "Sandbox", "SandboxUnavailable", "run", "unusable"]
