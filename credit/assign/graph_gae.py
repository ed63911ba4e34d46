"""Generalised advantage estimation on the trajectory graph: time runs along who read whom.

A turn u is followed by its readers v, which may speak at the same time. With weights w(u, v) (below), r(u) what is paid
there and V(u) the value of the state before it,

    delta(u) = r(u) + gamma sum_v w(u, v) V(v) - V(u)            the temporal difference
    A(u) = delta(u) + gamma lambda sum_v w(u, v) A(v)            advantages flow back, not rewards

and the value target is A(u) + V(u). The same weights carry values and advantages, so sums telescope: with lambda = 1

    A(u) = G(u) - V(u),   G(u) = r(u) + gamma sum_v w(u, v) G(v)

whatever the values are. So G is what the rule estimates, and what V is fitted to; lambda < 1 trusts the values of the
readers, which know what u said. (With the readers' mean for values and other weights for advantages, a wrong value does
not cancel, and lambda = 1 is biased by it.) Two pairs of rules for forks and joins have this property:

- `share: whole`: w(u, v) = 1 / number of readers of u. A turn looks ahead to the mean of its readers, and the advantage
  of a join reaches each of its parents whole. With gamma = 1 and rewards at the end, G is the team's return for
  everybody: the policy gradient of the team's return, as with `chain_gae`, and unbiased.
- `share: equal`: w(u, v) = 1 / number of parents of v, so that the weights of a join sum to 1; several readers add up.
  G is what `flow` pays with decay gamma: no reward is multiplied. `share: tokens`: parents in proportion to the tokens
  of the join's prompt that were made from them; equal parts where no tokens are known.

On a line both are `chain_gae`, and on the turns of one agent `gae`, to the last bit.

Readers are next readers: if u led to x and x to v, then v follows x, also where its prompt repeats u. So it does not
matter whether prompts repeat what was read before. Along `self` an agent's turns follow one another, whether a prompt
holds the one before or not, because the game knows it. Turns without values (verifiers, tools, frozen roles, other
teams) are part of the world: readers are found through them, they cost no discount, and what is paid there belongs to
the last turn with a value that they read, or, if they read none, that spoke before.

`rewards: last`: the game reads every turn that has no reader, and pays the team then: its return enters after each of
these turns, whole or (`equal`, `tokens`) in equal parts. So an episode may have several ends, and turns that nobody
reads are judged by the outcome. `rewards: paid`: where rewards were paid. A turn that leads to no reward then earns
nothing, and with `whole`, rewards of several branches count by their mean. In a truncated episode a turn without
readers goes on with `Reading.next_value`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from credit.assign.edges import EdgeAssign
from credit.assign.gae import Chain, ChainGae, Later, Seen
from credit.assign.trajectory import shares
from marl.types import Advantage, EdgeKind, TurnId

if TYPE_CHECKING:
    from credit.assign.teams import Team
    from marl.graph import Trajectory
    from marl.types import Turn

Weights = Mapping[TurnId, Mapping[TurnId, float]]
"""Turn -> each of its readers -> weight of that reader; only turns that have readers."""


class Ancestry:
    """Turns that are judged, in the order of who read whom; other turns only pass on what they read.

    Whether one turn led to another is read from vector clocks (Fidge 1988, Mattern 1989). A line is a run of turns of
    one agent of which each follows the one before it; of every line a turn keeps how far it knows it. So time is linear
    in edges, and memory in turns times lines: one line an agent where `self` is followed. Without `self` an agent
    begins a new line whenever it follows none of its own turns, and there may be as many lines as turns.
    """

    def __init__(self, trajectory: Trajectory, judged: Collection[TurnId], along: Collection[EdgeKind]) -> None:
        self._judged = frozenset(judged)
        self._parents: dict[TurnId, list[TurnId]] = {}
        self._lines: dict[TurnId, TurnId] = {}
        """Judged turn -> first turn of its line."""
        self._clocks: dict[TurnId, dict[TurnId, int]] = {}
        """Judged turn -> line -> place of its last turn that is this one or led to it."""
        latest: dict[str, TurnId] = {}
        for turn in trajectory.turns:
            sources, earlier = trajectory.sources(turn.id, along), latest.get(turn.agent)
            if earlier and turn.id in self._judged and "self" in along:
                sources += [earlier]
            near = dict.fromkeys(parent for source in sources for parent in self.nearest(source))
            self._parents[turn.id], clock = self._last(near)
            if turn.id in self._judged:
                line = self._lines[earlier] if earlier and self._is_in(clock, earlier) else turn.id
                self._lines[turn.id] = line
                self._clocks[turn.id] = clock | {line: turn.id[1]}
                latest[turn.agent] = turn.id

    def _last(self, near: Collection[TurnId]) -> tuple[list[TurnId], dict[TurnId, int]]:
        """Return those of the turns that led to no other of them, and the clock of all."""
        clock: dict[TurnId, int] = {}
        last: set[TurnId] = set()
        for turn in sorted(near, key=lambda turn: turn[1], reverse=True):
            if not self._is_in(clock, turn):
                last.add(turn)
                clock |= {line: place for line, place in self._clocks[turn].items() if place > clock.get(line, -1)}
        return [turn for turn in near if turn in last], clock

    def _is_in(self, clock: Mapping[TurnId, int], turn: TurnId) -> bool:
        """Return True if the turn is one of those that led to where the clock is read."""
        return clock.get(self._lines[turn], -1) >= turn[1]

    def parents(self, turn: TurnId) -> Sequence[TurnId]:
        """Return the judged turns that a turn follows: it has read them, and none of them led to another of them."""
        return self._parents[turn]

    def nearest(self, turn: TurnId) -> Sequence[TurnId]:
        """Return a judged turn itself, and of any other one its parents."""
        return [turn] if turn in self._judged else self._parents[turn]


class GraphGae(EdgeAssign, ChainGae):
    """GAE along who-read-whom: a turn is followed by the turns that read it, which may speak at the same time.

    Formulas, and what happens at forks, joins and ends: `credit/assign/graph_gae.py`.
    """

    kind: str = "graph_gae"
    level: Literal["token", "turn"] = "token"
    """Moments of the time axis. `token`: every token; `turn`: every turn."""
    rewards: Literal["last", "paid"] = "last"
    """Place at which the team's reward enters: all at the end, after every turn that nobody reads, or each where it was
    paid."""
    share: Literal["whole", "equal", "tokens"] = "whole"
    """Part of a join (a turn that read several) that each of these gets. `whole`: all of it, and one that several read
    looks ahead to their mean. `equal`: equal parts, and what several readers pass back adds up, as in `flow`. `tokens`:
    the same with parts in proportion to the prompt's tokens that were made from each."""

    def advantages(self, team: Team, turns: Sequence[Turn], seen: Seen) -> list[Advantage]:
        ancestry = Ancestry(seen.trajectory, [turn.id for turn in turns], self.along)
        weights = self._weights(turns, ancestry)
        if self.rewards == "paid":
            rewards = _where_paid(seen.trajectory, team, ancestry)
        else:
            rewards = self._at_the_ends(team.total_reward(seen.trajectory), turns, weights)
        judged: dict[TurnId, Advantage] = {}
        for turn in (turn.id for turn in reversed(turns)):
            later = _ahead(weights[turn], seen.values, judged) if turn in weights else seen.after(turn)
            chain = Chain([turn], [seen.values[turn]], [rewards.get(turn, 0.0)], later, seen.evidence.token_rewards)
            [judged[turn]] = self.judge(chain)
        return [judged[turn.id] for turn in turns]

    def _weights(self, turns: Sequence[Turn], ancestry: Ancestry) -> Weights:
        weights: dict[TurnId, dict[TurnId, float]] = defaultdict(dict)
        for reader in turns:
            for parent, part in self._parts(reader, ancestry).items():
                weights[parent][reader.id] = part
        if self.share == "whole":
            return {turn: dict.fromkeys(readers, 1 / len(readers)) for turn, readers in weights.items()}
        return dict(weights)

    def _parts(self, reader: Turn, ancestry: Ancestry) -> Mapping[TurnId, float]:
        """Return the part of a turn that each of its parents gets; they sum to 1."""
        tokens: dict[TurnId, float] = dict.fromkeys(ancestry.parents(reader.id), 0.0)
        if self.share == "tokens":
            for mark, (first, end) in zip(reader.request.marks, reader.completion.mark_tokens, strict=False):
                sources = tokens.keys() & ancestry.nearest(mark.source) if mark.kind in self.along else ()
                for source in sources:
                    tokens[source] += (end - first) / len(sources)
        return dict(zip(tokens, shares(list(tokens.values())), strict=True)) if tokens else {}

    def _at_the_ends(self, paid: float, turns: Sequence[Turn], weights: Weights) -> dict[TurnId, float]:
        """Return what the game pays after each turn that has no reader."""
        ends = [turn.id for turn in turns if turn.id not in weights]
        return dict.fromkeys(ends, paid if self.share == "whole" else paid / len(ends))


def _where_paid(trajectory: Trajectory, team: Team, ancestry: Ancestry) -> dict[TurnId, float]:
    """Return judged turn -> the team's rewards that belong to it; what is paid before the first one is lost."""
    paid: dict[TurnId, float] = defaultdict(float)
    for reward in trajectory.rewards:
        if reward.agent in team.agents:
            paid[reward.turn] += team.share * reward.value
    rewards: dict[TurnId, float] = defaultdict(float)
    latest: TurnId | None = None
    for turn in (turn.id for turn in trajectory.turns):
        near = ancestry.nearest(turn)
        latest = turn if turn in near else latest
        payee = max(near, key=lambda judged: judged[1]) if near else latest
        if payee is not None:
            rewards[payee] += paid.get(turn, 0.0)
    return rewards


def _ahead(
    weights: Mapping[TurnId, float], values: Mapping[TurnId, Sequence[float]], judged: Mapping[TurnId, Advantage]
) -> Later:
    """Return value and advantage at the readers' first moments, by their weights."""
    firsts = {turn: judged[turn].tokens[0] if judged[turn].tokens else judged[turn].value for turn in weights}
    return Later(
        sum(weight * values[turn][0] for turn, weight in weights.items()),
        sum(weight * firsts[turn] for turn, weight in weights.items()),
    )
