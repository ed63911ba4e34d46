"""`python -m marl` is the command `marl`."""

from marl.cli import main

main()
