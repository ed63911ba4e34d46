"""Whether turns that are compared are alike in what their baseline says they are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

from marl.graph import Trajectory
from marl.protocols import Peers
from marl.types import Turn, TurnId


def prompt(turn: Turn) -> Hashable:
    """What was asked: token ids, or the messages where there are none."""
    return turn.completion.prompt_ids or turn.request.messages


def purity(peers: Peers | None, trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Role -> share of the groups compared whose members have in common what the baseline says of them.

    `prompt`: what they were asked; `problem`: the problem's key; `start`: the start key, and whatever follows from the
    start alone: asked for the first time after the same words, an agent is asked the same and works on the same
    problem. So a game that gives different starts one key is found out.
    """
    if peers is None or peers.like is None:
        return {}
    turns = {turn.id: turn for trajectory in trajectories for turn in trajectory.turns}
    alike, unit = _TESTS[peers.like](trajectories)
    verdicts: dict[str, list[bool]] = defaultdict(list)
    for members in ([turns[turn_id] for turn_id in group] for group in peers.groups):
        if len(set(map(unit, members))) > 1:
            verdict = alike(members)
            for role in {turn.role for turn in members}:
                verdicts[role].append(verdict)
    return {role: sum(found) / len(found) for role, found in verdicts.items()}


Test = tuple[Callable[[Sequence[Turn]], bool], Callable[[Turn], Hashable]]
"""Whether turns are alike, and what of a turn counts as one peer."""


def _same(of: Callable[[Turn], Hashable], unit: Callable[[Turn], Hashable]) -> Test:
    return lambda turns: len(set(map(of, turns))) == 1, unit


def _starts(trajectories: Sequence[Trajectory]) -> Test:
    homes: dict[TurnId, int] = {}
    for number, trajectory in enumerate(trajectories):
        for turn in trajectory.turns:
            homes.setdefault(turn.id, number)
    known: dict[tuple[int, ...], bool] = {}  # the agents of some episodes are groups of their own

    def alike(turns: Sequence[Turn]) -> bool:
        episodes = tuple(dict.fromkeys([homes[turn.id] for turn in turns]))
        if episodes not in known:
            known[episodes] = _one_start([trajectories[number] for number in episodes])
        return known[episodes]

    return alike, lambda turn: homes[turn.id]


def _one_start(trajectories: Sequence[Trajectory]) -> bool:
    asked: dict[Hashable, Hashable] = {}
    openings = (opening for trajectory in trajectories for opening in _openings(trajectory))
    return len({t.start for t in trajectories}) == 1 and all(
        asked.setdefault(key, what) == what for key, what in openings
    )


def _openings(trajectory: Trajectory) -> Iterator[tuple[Hashable, Hashable]]:
    """For each agent's first turn: who was asked after which words, and what.

    What a game makes of words without a legal move may be chance: all that came after such words is left out.
    """
    said: list[str] = []
    met: set[str] = set()
    for turn in trajectory.turns:
        if turn.agent not in met:
            met.add(turn.agent)
            yield (turn.agent, turn.role, *said), (prompt(turn), turn.problem)
        if turn.action is None or len(met) == len(trajectory.deal.seats):
            return
        said += [turn.agent, turn.completion.text]


_TESTS: Mapping[str, Callable[[Sequence[Trajectory]], Test]] = {
    "start": _starts,
    "prompt": lambda _: _same(prompt, lambda turn: turn.id),
    "problem": lambda _: _same(lambda turn: turn.problem, lambda turn: (turn.id[0], turn.agent)),
}
