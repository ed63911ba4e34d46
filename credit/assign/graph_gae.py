"""Generalised advantage estimation on the trajectory graph: a turn's successors in time are its readers.

A turn u is followed by its readers v, which may speak at the same time. With weights w(u, v) (below), the reward r(u)
and the value V(u) of the state before u,

    delta(u) = r(u) + gamma sum_v w(u, v) V(v) - V(u)            the temporal difference
    A(u) = delta(u) + gamma lambda sum_v w(u, v) A(v)            advantages flow back, not rewards

and the value target is A(u) + V(u). Values and advantages have the same weights, so sums telescope: with lambda = 1

    A(u) = G(u) - V(u),   G(u) = r(u) + gamma sum_v w(u, v) G(v)

for any values. So the rule estimates G, and V is fitted to G; lambda < 1 trusts the values of the readers, which depend
on the answer of u. (With the readers' mean for values and other weights for advantages, a wrong value does not cancel,
and lambda = 1 is biased by it.) Two pairs of rules for forks and joins have this property:

- `share: whole`: w(u, v) = 1 / number of readers of u. A turn bootstraps from the mean of its readers, and each parent
  of a join gets the full advantage of the join. With gamma = 1 and rewards at the end, G is the team's return for every
  turn: the policy gradient of the team's return, as with `chain_gae`, and unbiased.
- `share: equal`: w(u, v) = 1 / number of parents of v, so that the weights of a join sum to 1; several readers add up.
  G is the credit of `flow` with decay gamma: no reward is multiplied. `share: tokens`: weights of parents in proportion
  to the tokens of the join's prompt that were made from them; equal weights where no tokens are known.

On a line both equal `chain_gae`, and on the turns of one agent `gae`, to the last bit.

Readers are next readers: if u led to x and x to v, then v follows x, even if its prompt repeats u. So it does not
matter whether prompts repeat earlier text. Along `self` an agent's turns follow one another, whether a prompt contains
the previous turn or not, because the game knows it. Turns without values (verifiers, tools, frozen roles, other teams)
are part of the environment: edges pass through them, they cost no discount, and their rewards belong to the last turn
with a value that they read, or, if they read none, that was played before them.

`rewards: last`: the game is the reader of every turn without a reader, and pays the team then: the team's return enters
after each of these turns, in full or (`equal`, `tokens`) in equal parts. So an episode may have several ends, and turns
that no turn reads are credited with the outcome. `rewards: paid`: rewards enter when they were paid. Then a turn that
leads to no reward earns nothing, and with `whole`, rewards of several branches count by their mean. In a truncated
episode a turn without readers is followed by `Reading.next_value`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Literal

from marl.core.graph import Trajectory
from marl.core.types import Advantage, EdgeKind, Turn, TurnId
from marl.credit.assign.edges import EdgeAssign
from marl.credit.assign.gae import Bootstrap, Chain, ChainGae, EpisodeValues
from marl.credit.assign.hierarchical import normalized_weights
from marl.credit.assign.teams import Team

Weights = Mapping[TurnId, Mapping[TurnId, float]]
"""Turn -> each of its readers -> weight of that reader; turns without readers are absent."""


class Ancestry:
    """Parents of turns in a trajectory graph that is reduced to the credited turns; other turns pass edges through.

    Vector clocks tell whether one turn led to another (Fidge 1988, Mattern 1989). A line is a sequence of turns of one
    agent in which each turn follows the previous one; for every line, a turn's clock holds the last turn that led to
    it. So time is linear in edges, and memory in turns times lines: one line an agent if `self` is followed. Without
    `self`, an agent starts a new line at every turn that follows none of its own, so there may be as many lines as
    turns.
    """

    def __init__(self, trajectory: Trajectory, credited: Collection[TurnId], along: Collection[EdgeKind]) -> None:
        self._credited = frozenset(credited)
        self._parents: dict[TurnId, list[TurnId]] = {}
        self._lines: dict[TurnId, TurnId] = {}
        """Credited turn -> first turn of its line."""
        self._clocks: dict[TurnId, dict[TurnId, int]] = {}
        """Credited turn -> line -> index of the line's last turn that is this turn or led to it."""
        latest: dict[str, TurnId] = {}
        for turn in trajectory.turns:
            sources, earlier = trajectory.sources(turn.id, along), latest.get(turn.agent)
            if earlier and turn.id in self._credited and "self" in along:
                sources += [earlier]
            candidates = dict.fromkeys(chain.from_iterable(map(self.nearest, sources)))
            self._parents[turn.id], clock = self._last(candidates)
            if turn.id in self._credited:
                line = self._lines[earlier] if earlier and self._precedes(earlier, clock) else turn.id
                self._lines[turn.id] = line
                self._clocks[turn.id] = clock | {line: turn.id[1]}
                latest[turn.agent] = turn.id

    def _last(self, candidates: Collection[TurnId]) -> tuple[list[TurnId], dict[TurnId, int]]:
        """Return the candidates that led to no other candidate, and the merged clock of all candidates."""
        clock: dict[TurnId, int] = {}
        last: set[TurnId] = set()
        for turn in sorted(candidates, key=lambda turn: turn[1], reverse=True):
            if not self._precedes(turn, clock):
                last.add(turn)
                for line, index in self._clocks[turn].items():
                    clock[line] = max(index, clock.get(line, -1))
        return [turn for turn in candidates if turn in last], clock

    def _precedes(self, turn: TurnId, clock: Mapping[TurnId, int]) -> bool:
        """Return True if `turn` led to the turn with this clock."""
        return clock.get(self._lines[turn], -1) >= turn[1]

    def parents(self, turn: TurnId) -> Sequence[TurnId]:
        """Return the credited turns that `turn` read directly: none of them led to another one."""
        return self._parents[turn]

    def nearest(self, turn: TurnId) -> Sequence[TurnId]:
        """Return the turn itself if it is credited, else its credited parents."""
        return [turn] if turn in self._credited else self._parents[turn]


class GraphGae(EdgeAssign, ChainGae):
    """GAE along the edges from read turns to their readers, which may speak at the same time.

    The formulas, and the rules for forks, joins and ends, are in `credit/assign/graph_gae.py`.
    """

    kind: str = "graph_gae"
    level: Literal["token", "turn"] = "token"
    """Moments of the time axis. `token`: every token; `turn`: every turn."""
    rewards: Literal["last", "paid"] = "last"
    """Time of the team's rewards: `last`: all at the end, after every turn without a reader; `paid`: when each was
    paid. """
    share: Literal["whole", "equal", "tokens"] = "whole"
    """Share of the advantage of a join (a turn that read several) for each of its parents. `whole`: the full advantage,
    and a turn with several readers gets their mean. `equal`: equal shares, and the shares from several readers add up,
    as in `flow`. `tokens`: the same with shares in proportion to the prompt's tokens that were made from each
    parent."""

    def advantages(self, team: Team, turns: Sequence[Turn], episode: EpisodeValues) -> list[Advantage]:
        ancestry = Ancestry(episode.trajectory, [turn.id for turn in turns], self.along)
        weights = self._weights(turns, ancestry)
        if self.rewards == "paid":
            rewards = _rewards_when_paid(episode.trajectory, team, ancestry)
        else:
            ends = [turn.id for turn in turns if turn.id not in weights]
            reward = team.total_reward(episode.trajectory)
            rewards = dict.fromkeys(ends, reward if self.share == "whole" else reward / len(ends))
        advantages: dict[TurnId, Advantage] = {}
        for turn in reversed([turn.id for turn in turns]):
            if turn in weights:
                later = _readers_mean(weights[turn], episode.values, advantages)
            else:
                later = episode.bootstrap_after(turn)
            values, reward = episode.values[turn], rewards.get(turn, 0.0)
            [advantages[turn]] = self.estimate(Chain([turn], [values], [reward], later, episode.evidence.token_rewards))
        return [advantages[turn.id] for turn in turns]

    def _weights(self, turns: Sequence[Turn], ancestry: Ancestry) -> Weights:
        """Return the weights w(u, v) of all pairs of a turn u and its reader v."""
        weights: dict[TurnId, dict[TurnId, float]] = defaultdict(dict)
        for reader in turns:
            for parent, share in self._shares(reader, ancestry).items():
                weights[parent][reader.id] = share
        if self.share == "whole":
            return {turn: dict.fromkeys(readers, 1 / len(readers)) for turn, readers in weights.items()}
        return dict(weights)

    def _shares(self, reader: Turn, ancestry: Ancestry) -> Mapping[TurnId, float]:
        """Return the share of `reader` for each of its parents; the shares sum to 1."""
        tokens: dict[TurnId, float] = dict.fromkeys(ancestry.parents(reader.id), 0.0)
        if self.share == "tokens":
            for mark, (first, end) in zip(reader.request.marks, reader.completion.mark_tokens, strict=False):
                sources = tokens.keys() & ancestry.nearest(mark.source) if mark.kind in self.along else ()
                for source in sources:
                    tokens[source] += (end - first) / len(sources)
        return dict(zip(tokens, normalized_weights(list(tokens.values())), strict=True)) if tokens else {}


def _rewards_when_paid(trajectory: Trajectory, team: Team, ancestry: Ancestry) -> dict[TurnId, float]:
    """Return credited turn -> the team's rewards that belong to it; rewards before the first credited turn are lost."""
    by_turn = team.rewards_by_turn(trajectory)
    rewards: dict[TurnId, float] = defaultdict(float)
    latest: TurnId | None = None
    for turn in trajectory.turns:
        nearest = ancestry.nearest(turn.id)
        latest = turn.id if turn.id in nearest else latest
        receiver = max(nearest, key=lambda credited: credited[1]) if nearest else latest
        if receiver is not None:
            rewards[receiver] += by_turn.get(turn.id, 0.0)
    return rewards


def _readers_mean(
    weights: Mapping[TurnId, float], values: Mapping[TurnId, Sequence[float]], advantages: Mapping[TurnId, Advantage]
) -> Bootstrap:
    """Return the weighted sums of value and advantage at the readers' first moments."""
    firsts = {
        turn: advantages[turn].tokens[0] if advantages[turn].tokens else advantages[turn].value for turn in weights
    }
    return Bootstrap(
        sum(weight * values[turn][0] for turn, weight in weights.items()),
        sum(weight * firsts[turn] for turn, weight in weights.items()),
    )
