"""The order in which stages come, which depends on what is said in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from games.team.stages import Keep, Loop, Stage


def walk(steps: Sequence[Stage | Loop | Keep], holds: Callable[[str], bool]) -> Iterator[Stage | Keep]:
    """Stage after stage; conditions are asked when they are reached."""
    for step in steps:
        if isinstance(step, Loop):
            for _ in range(step.repeat):
                yield from walk(step.stages, holds)
                if step.until and holds(step.until):
                    break
        elif isinstance(step, Keep) or not step.when or holds(step.when):
            yield step
