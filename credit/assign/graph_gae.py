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
from marl.credit.assign.edges import EdgeFollowingAssign
from marl.credit.assign.gae import BootstrapValueAndAdvantage, EpisodeValues, TeamChainGae, TurnChain
from marl.credit.assign.hierarchical import normalize_weights
from marl.credit.assign.teams import CreditTeam


class CreditedTurnAncestry:
    """Parents of turns in a trajectory graph that is reduced to the credited turns; edges pass through other turns.

    Vector clocks tell whether one turn led to another (Fidge 1988, Mattern 1989). A line is a sequence of turns of one
    agent in which each turn follows the previous turn. For every line, a turn's clock contains the last turn that led
    to this turn. So time is linear in edges, and memory in turns times lines: one line per agent if `self` is followed.
    Without `self`, an agent starts a new line at every turn that follows none of its own turns, so there may be as many
    lines as turns.
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
            candidates = dict.fromkeys(chain.from_iterable(map(self.nearest_credited_ancestors, sources)))
            # A credited ancestor is a parent if no later ancestor descends from it. `clock` is a vector clock.
            clock: dict[TurnId, int] = {}
            parents: set[TurnId] = set()
            for candidate in sorted(candidates, key=lambda turn_id: turn_id[1], reverse=True):
                if not self._is_ancestor_by_clock(candidate, clock):
                    parents.add(candidate)
                    for line, index in self._clocks[candidate].items():
                        clock[line] = max(index, clock.get(line, -1))
            self._parents[turn.id] = [candidate for candidate in candidates if candidate in parents]
            if turn.id in self._credited:
                line = self._lines[earlier] if earlier and self._is_ancestor_by_clock(earlier, clock) else turn.id
                self._lines[turn.id] = line
                self._clocks[turn.id] = clock | {line: turn.id[1]}
                latest[turn.agent] = turn.id

    def _is_ancestor_by_clock(self, turn: TurnId, vector_clock: Mapping[TurnId, int]) -> bool:
        """Return True if `turn` led to the turn whose vector clock is `vector_clock`."""
        return vector_clock.get(self._lines[turn], -1) >= turn[1]

    def credited_parents(self, turn: TurnId) -> Sequence[TurnId]:
        """Return the credited turns that `turn` read directly, which means that no parent led to another parent."""
        return self._parents[turn]

    def nearest_credited_ancestors(self, turn: TurnId) -> Sequence[TurnId]:
        """Return [`turn`] if the turn is credited, else the nearest credited turns before it in the graph."""
        return [turn] if turn in self._credited else self._parents[turn]


class GraphGae(EdgeFollowingAssign, TeamChainGae):
    """GAE along the edges from read turns to their readers, which may speak at the same time.

    The formulas, and the rules for forks, joins and ends, are in `credit/assign/graph_gae.py`.
    """

    kind: str = "graph_gae"
    level: Literal["token", "turn"] = "token"
    """Moments of the time axis. `token`: every token; `turn`: every turn."""
    rewards: Literal["last", "paid"] = "last"
    """Time of the team's rewards: `last`: all at the end, after every turn without a reader; `paid`: each reward at the
    turn at which it was paid."""
    share: Literal["whole", "equal", "tokens"] = "whole"
    """Share of a turn's advantage that each turn it read (parent) receives. `whole`: the full advantage; a turn with
    several readers gets the mean of their advantages. `equal`: equal shares; the shares from several readers add up, as
    in `flow`. `tokens`: shares in proportion to the prompt's tokens that come from each parent; they add up, too."""

    def advantages(self, team: CreditTeam, turns: Sequence[Turn], episode: EpisodeValues) -> list[Advantage]:
        ids = [turn.id for turn in turns]
        ancestry = CreditedTurnAncestry(episode.trajectory, ids, self.along)
        weights = self._edge_weights_by_source_and_reader(turns, ancestry)
        rewards: dict[TurnId, float] = defaultdict(float)
        if self.rewards == "last":
            ends = [turn for turn in ids if turn not in weights]
            reward = team.total_reward(episode.trajectory)
            rewards.update(dict.fromkeys(ends, reward if self.share == "whole" else reward / len(ends)))
        else:
            by_turn = team.rewards_by_turn(episode.trajectory)
            latest: TurnId | None = None
            for turn in episode.trajectory.turns:
                nearest = ancestry.nearest_credited_ancestors(turn.id)
                latest = turn.id if turn.id in nearest else latest
                receiver = max(nearest, key=lambda credited: credited[1]) if nearest else latest
                # A reward paid before the first credited turn is credited to no turn.
                if receiver is not None:
                    rewards[receiver] += by_turn.get(turn.id, 0.0)
        advantages: dict[TurnId, Advantage] = {}
        for turn in reversed(ids):
            later = episode.bootstrap_after_final_turn(turn)
            if turn in weights:
                # The next value and advantage are means over the turns that read `turn`, weighted by shares.
                value, advantage = 0.0, 0.0
                for reader, weight in weights[turn].items():
                    credit = advantages[reader]
                    value += weight * episode.values[reader][0]
                    advantage += weight * (credit.tokens[0] if credit.tokens else credit.value)
                later = BootstrapValueAndAdvantage(value, advantage)
            values, reward = episode.values[turn], rewards.get(turn, 0.0)
            [advantages[turn]] = self.advantages_of_turn_chain(
                TurnChain([turn], [values], [reward], later, episode.evidence.token_rewards)
            )
        return list(map(advantages.__getitem__, ids))

    def _edge_weights_by_source_and_reader(
        self, turns: Sequence[Turn], ancestry: CreditedTurnAncestry
    ) -> Mapping[TurnId, Mapping[TurnId, float]]:
        """Return turn u -> each of its readers v -> weight w(u, v); turns without readers are absent."""
        weights: dict[TurnId, dict[TurnId, float]] = defaultdict(dict)
        for reader in turns:
            tokens: dict[TurnId, float] = dict.fromkeys(ancestry.credited_parents(reader.id), 0.0)
            if not tokens:
                continue
            if self.share == "tokens":
                for mark, (first, end) in zip(reader.request.marks, reader.completion.mark_tokens, strict=False):
                    sources = (
                        tokens.keys() & ancestry.nearest_credited_ancestors(mark.source)
                        if mark.kind in self.along
                        else ()
                    )
                    for source in sources:
                        tokens[source] += (end - first) / len(sources)
            # The shares of a reader are normalised, so that they sum to 1 over all its parents.
            for parent, share in zip(tokens, normalize_weights(list(tokens.values())), strict=True):
                weights[parent][reader.id] = share
        if self.share == "whole":
            for turn, readers in weights.items():
                weights[turn] = dict.fromkeys(readers, 1 / len(readers))
        return dict(weights)
