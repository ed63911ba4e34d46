"""A command of a plug-in: says who wins a game of matching coins."""

from __future__ import annotations

from typing import Annotated

import typer


def toss(coins: Annotated[list[str], typer.Argument(help="heads or tails")]) -> None:
    """Say who wins when these coins are shown."""
    if unknown := [coin for coin in coins if coin not in ("heads", "tails")]:
        raise ValueError(f"no coin shows {unknown[0]!r}; choices: heads, tails")
    typer.echo("even" if len(set(coins)) == 1 else "odd")
