"""Generalised advantage estimation as pure functions: moments in their order -> advantages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import fmean
from typing import NamedTuple

from marl.types import Advantage, TurnId


class Discount(NamedTuple):
    """How much later moments count."""

    gamma: float = 1.0
    lam: float = 1.0


class Later(NamedTuple):
    """What comes after the last moment: the value of that state, and the advantage there."""

    value: float = 0.0
    advantage: float = 0.0


OVER = Later()


def gae(rewards: Sequence[float], values: Sequence[float], discount: Discount, later: Later = OVER) -> list[float]:
    """Advantages of moments in their order.

    lambda = 1 gives return - V, lambda = 0 gives r + gamma V' - V.
    """
    gamma, fade = discount.gamma, discount.gamma * discount.lam
    after = [*values, later.value][1:]
    deltas = [reward + gamma * next_ - value for reward, next_, value in zip(rewards, after, values, strict=True)]
    backwards = accumulate(reversed(deltas), lambda past, delta: delta + fade * past, initial=later.advantage)
    return list(backwards)[:0:-1]


def bi_level_gae(
    rewards: Sequence[float],
    values: Sequence[float],
    ends: Sequence[int],
    inner: Discount,
    outer: Discount,
    later: Later = OVER,
) -> list[float]:
    """VAGEN's advantages of tokens (arXiv 2510.16907): GAE over the turns' last tokens, then inside each turn.

    delta_k = r_{e_k} + gamma_turn V_{e_{k+1}} - V_{e_k}, A_{e_k} = delta_k + gamma_turn lambda_turn A_{e_{k+1}}; inside
    a turn A_t = r_t + gamma V_{t+1} - V_t + gamma lambda A_{t+1}.

    Args:
        rewards: of tokens; r_{e_k} is the turn's, and what is paid inside a turn does not reach the turns before.
        ends: index of each turn's last token. They are never guessed from rewards: a turn may be paid exactly 0.

    Raises:
        ValueError: if the last token ends no turn.
    """
    if not ends or ends[-1] != len(rewards) - 1:
        raise ValueError(f"the last of {len(rewards)} tokens must end a turn, got ends={list(ends)}")
    turns = gae([rewards[end] for end in ends], [values[end] for end in ends], outer, later)
    advantages: list[float] = []
    for end, advantage in zip(ends, turns, strict=True):
        inside = slice(len(advantages), end)
        advantages += gae(rewards[inside], values[inside], inner, Later(values[end], advantage))
        advantages.append(advantage)
    return advantages


@dataclass(frozen=True, slots=True)
class Chain:
    """Turns that share a time axis."""

    turns: Sequence[TurnId]
    values: Sequence[tuple[float, ...]]
    """Of each turn: of the states before its tokens, or before the first one alone."""
    paid: Sequence[float]
    """For each turn; it enters at its last token."""
    later: Later
    on_tokens: Mapping[TurnId, Sequence[float]] = field(default_factory=dict)
    """Turn -> what each of its tokens is paid beside."""

    def by_turn(self, discount: Discount) -> list[Advantage]:
        """A turn is one action, from the state before its first token."""
        before = [values[0] for values in self.values]
        paid = [paid + sum(self.on_tokens.get(turn, ())) for turn, paid in zip(self.turns, self.paid, strict=True)]
        advantages = gae(paid, before, discount, self.later)
        return [Advantage(a, (), (a + value,)) for a, value in zip(advantages, before, strict=True)]

    def by_token(self, discount: Discount) -> list[Advantage]:
        """A token is one action; all turns' tokens follow one another."""
        return self._split(gae(self._rewards(), self._flat(), discount, self.later))

    def bi_level(self, inner: Discount, outer: Discount) -> list[Advantage]:
        """As `bi_level_gae`."""
        ends = [start - 1 for start in accumulate(map(len, self.values))]
        return self._split(bi_level_gae(self._rewards(), self._flat(), ends, inner, outer, self.later))

    def _flat(self) -> list[float]:
        return [value for values in self.values for value in values]

    def _rewards(self) -> list[float]:
        rewards = list[float]()
        for turn, values, paid in zip(self.turns, self.values, self.paid, strict=True):
            rewards += self.on_tokens.get(turn) or [0.0] * len(values)
            rewards[-1] += paid
        return rewards

    def _split(self, advantages: Sequence[float]) -> list[Advantage]:
        judged, start = [], 0
        for values in self.values:
            tokens = tuple(advantages[start : start + len(values)])
            returns = tuple([a + value for a, value in zip(tokens, values, strict=True)])
            judged.append(Advantage(fmean(tokens), tokens, returns))
            start += len(values)
        return judged
