"""`python -m marl` is the command `marl`."""

from marl.commands.cli import main

main()
