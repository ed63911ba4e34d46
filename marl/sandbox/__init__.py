"""Runs code that nobody has read: what a model wrote is run behind closed doors, or not at all.

`run(Sandbox(), program)` starts the program in namespaces of its own, without network, capabilities, other people's
files and the kernel's more dangerous calls, watches it, and kills it when it takes more than it is given. It does not
protect from errors of the kernel itself, nor hide what can be learned from timing.
"""

from marl.sandbox.isolation import Refused
from marl.sandbox.running import Ran, run, unusable
from marl.sandbox.settings import Sandbox

__all__ = ["Ran", "Refused", "Sandbox", "run", "unusable"]
