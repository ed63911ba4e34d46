"""What each credit rule estimates, exactly, from the enumerated game: by another way than the rule itself takes.

An estimand is made for a world, and then says for each play what every turn's credit is, in expectation over what the
rule itself draws. The team's return is the mean of what its agents are paid, whichever way a rule spells it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping
from itertools import groupby

import numpy as np

from credit.validation.coalitions import Instead, replaced, shapley, without
from credit.validation.fits import Joint, Table, marginals
from credit.validation.world import History, PerTurn, Play, World

PerPlay = Callable[[Play], PerTurn]
Estimand = Callable[[World], PerPlay]


class Undefined(ValueError):  # noqa: N818 (says what it is)
    """The method has no estimand in this game."""


def returns(_: World) -> PerPlay:
    """The team's return, for every turn."""
    return lambda play: [play.worth] * len(play.choices)


def advantage(world: World) -> PerPlay:
    """The exact sequential advantage Q(h, a) - V(h)."""
    return lambda play: [world.advantage(choice.cell) for choice in play.choices]


def last(_: World) -> PerPlay:
    """The team's return, for the last turn alone."""
    return lambda play: [0.0] * (len(play.choices) - 1) + [play.worth]


def flown(decay: float, share: float) -> Estimand:
    """c = r + decay * P c, solved as a linear system; P[u, v] = 1 / (how many turns v had read) if it had read u.

    `share`: what a reward to one agent counts.
    """

    def of(play: Play) -> PerTurn:
        turns = [turn.id for turn in play.trajectory.turns]
        paid = [sum(r.value for r in play.trajectory.rewards if r.turn == turn) * share for turn in turns]
        passed = np.zeros((len(turns), len(turns)))
        for reader, turn in enumerate(turns):
            read = list(play.trajectory.graph.predecessors(turn))
            for source in read:
                passed[turns.index(source), reader] = 1 / len(read)
        return np.linalg.solve(np.eye(len(turns)) - decay * passed, np.array(paid)).tolist()

    return lambda _: of


def shared(by_agent: bool, discount: float) -> Estimand:
    """Shares of the team's return: equal ones of its agents; of an agent's turns, in proportion to `discount` to the
    number of its later ones. Not `by_agent`: each agent has all of it, and each turn that power of it.
    """

    def of(play: Play) -> PerTurn:
        many = {c.situation.agent: c.nth + 1 for c in play.choices}
        weights = [discount ** (many[c.situation.agent] - 1 - c.nth) for c in play.choices]
        if not by_agent:
            return [weight * play.worth for weight in weights]
        totals: dict[str, float] = defaultdict(float)
        for choice, weight in zip(play.choices, weights, strict=True):
            totals[choice.situation.agent] += weight
        pairs = zip(play.choices, weights, strict=True)
        return [weight * play.worth / len(many) / totals[c.situation.agent] for c, weight in pairs]

    return lambda _: of


def shapley_values(instead: Instead) -> Estimand:
    """Each agent's Shapley value of its part in the play, for all its turns."""

    def of(world: World) -> PerPlay:
        def turns(play: Play) -> PerTurn:
            everybody = set(world.agents)
            shares = shapley(world.agents, lambda here: without(world, play, everybody - here, instead))
            return [shares[choice.situation.agent] for choice in play.choices]

        return turns

    return of


def left_out(instead: Instead) -> Estimand:
    """The return minus what is expected if the agent is absent and everybody else is not."""

    def of(world: World) -> PerPlay:
        def turns(play: Play) -> PerTurn:
            lost = {agent: play.worth - without(world, play, {agent}, instead) for agent in world.agents}
            return [lost[choice.situation.agent] for choice in play.choices]

        return turns

    return of


def difference(instead: Instead | None) -> Estimand:
    """The return minus what is expected if that one turn were another; None: one that its policy draws anew."""

    def of(world: World) -> PerPlay:
        other = instead or world.played
        return lambda play: [play.worth - replaced(world, play, choice, other) for choice in play.choices]

    return of


def siblings(world: World) -> PerPlay:
    """The return minus what was to be expected before the turn."""
    return lambda play: [play.worth - world.value(choice.cell.history) for choice in play.choices]


def coma(world: World) -> PerPlay:
    """Q(s, a) - sum over a' of pi(a') Q(s, (a_-i, a')), Q being what is expected after the moves of a whole round. One
    of them is exchanged; agents that answered it are taken to say the same.
    """

    def turns(play: Play) -> PerTurn:
        found: list[float] = []
        for _, group in groupby(play.choices, key=lambda choice: choice.nth):
            choices = list(group)
            before, moves = choices[0].cell.history, [choice.cell.move for choice in choices]
            for place, choice in enumerate(choices):
                own = world.strategy[choice.situation]
                others = {
                    m: History(before.start, (*before.moves, *moves[:place], m, *moves[place + 1 :])) for m in own
                }
                mean = sum(chance * world.value(others[move]) for move, chance in own.items()) / sum(own.values())
                found.append(world.value(others[choice.cell.move]) - mean if choice.cell.move else 0.0)
        return found

    return turns


def fitted(fit: Callable[[Table, Table], Mapping[Joint, float]]) -> Estimand:
    """Rounds of moves made at once, each described by `fit`: a move's marginal there.

    Raises:
        Undefined: if agents of one round do not move at once, for then the fit has more than one solution.
    """

    def of(world: World) -> PerPlay:
        tables = _rounds(world)
        found: dict[Hashable, dict[Joint, list[float]]] = {}
        for key, (table, chances) in tables.items():
            best = fit(table, chances)
            found[key] = {joint: marginals(best, chances, joint) for joint in table}

        def turns(play: Play) -> PerTurn:
            rounds = [(found.get(key, {}).get(joint), joint) for key, joint in _joints(play)]
            return [worth for worths, joint in rounds for worth in worths or [0.0] * len(joint)]

        return turns

    return of


def _joints(play: Play) -> Iterator[tuple[Hashable, Joint]]:
    """Of each round: what its agents knew, and their joint move.

    Raises:
        Undefined: if one of them had read another's move of the round.
    """
    for _, group in groupby(zip(play.choices, play.trajectory.turns, strict=True), key=lambda pair: pair[0].nth):
        choices, turns = zip(*group, strict=True)
        ids = [turn.id for turn in turns]
        if play.trajectory.graph.subgraph(ids).number_of_edges():
            raise Undefined("agents that speak one after the other have no table of joint moves")
        yield tuple(c.situation for c in choices), tuple(c.cell.move or "" for c in choices)


def _rounds(world: World) -> dict[Hashable, tuple[Table, Table]]:
    """What the agents of a round knew -> the mean return of each joint move, and its probability. Legal moves only."""
    mass: dict[Hashable, dict[Joint, float]] = defaultdict(lambda: defaultdict(float))
    total: dict[Hashable, dict[Joint, float]] = defaultdict(lambda: defaultdict(float))
    for play in world.plays:
        for key, joint in _joints(play):
            if all(joint) and len(joint) == len(world.agents):
                mass[key][joint] += play.chance
                total[key][joint] += play.chance * play.worth
    means = {key: {joint: total[key][joint] / chance for joint, chance in mass[key].items()} for key in mass}
    return {key: (means[key], dict(mass[key])) for key in mass}
