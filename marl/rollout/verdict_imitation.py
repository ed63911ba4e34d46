"""Penalties for spoofs: turns that imitate the answer format of another role, such as a critic's verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from marl.core.types import Reward, Turn
from marl.protocols import JudgingRoleConfig, RoleConfig


def imitation_penalties(role: RoleConfig, turn: Turn, turns: Sequence[Turn]) -> Iterator[Reward]:
    """Yield a negative reward for each earlier turn that imitates the format of `turn`, a verdict by `role`.

    `turns` are the turns of the episode so far, `turn` included. A turn that was penalised at an earlier verdict is not
    penalised again.
    """
    penalty = role.spoof_penalty if turn.spoofs and isinstance(role, JudgingRoleConfig) else 0.0
    if not (penalty and turn.spoofs):
        return
    charged = {source for earlier in turns if earlier is not turn for source in earlier.spoofs or ()}
    for source in turn.spoofs:
        if source not in charged:
            cause = f"a verdict in the format of role {turn.role!r}"
            yield Reward(turns[source[1]].agent, -penalty, turn.id, "spoof", cause)
