"""Episodes written down by hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from marl.core.config import Sampling
from marl.core.graph import Trajectory
from marl.core.types import Advantage, Completion, Credit, Deal, Message, Request, Reward, Turn
from marl.protocols import Evidence

TimedRewards = Iterable[tuple[str, float, int]]
"""(agent, value, index of the turn after which it was paid)."""


def make_episode(
    name: str,
    agents: Sequence[str],
    paid: TimedRewards = (),
    *,
    start: str = "",
    prompts: Sequence[tuple[int, ...]] = (),
    seats: Mapping[str, str] | None = None,
) -> Trajectory:
    """Turns of `agents` in this order, everybody hearing everybody."""
    roles = seats or dict.fromkeys(agents, "player")
    trajectory = Trajectory(Deal(name, start, 0, roles), start)
    heard: dict[str, int] = {}
    for index, agent in enumerate(agents):
        said = Completion("a", prompts[index] if prompts else (1, index), (2,), (-0.5,), "stop")
        request = Request("actor", (Message("user", f"{index}"),), Sampling())
        nth = sum(turn.agent == agent for turn in trajectory.turns)
        turn = Turn((name, index), agent, nth, 0, roles[agent], request, said, "a")
        since = heard.get(agent, 0)
        reads = [turn.id for turn in trajectory.turns[since:] if turn.agent != agent]
        own = [turn.id for turn in trajectory.turns if turn.agent == agent][-1:]
        trajectory.add(turn, [*reads, *own])
        heard[agent] = index
    trajectory.rewards = [Reward(agent, value, (name, turn)) for agent, value, turn in paid]
    trajectory.end = "terminated"
    return trajectory


def advantages_of(credit: Credit, trajectory: Trajectory) -> list[float]:
    """Of the episode's turns, in playing order."""
    return [credit[turn.id].value for turn in trajectory.turns]


def make_evidence(*trajectories: Trajectory) -> Evidence:
    return Evidence(trajectories, "a_game")


def uniform_credit(trajectories: Iterable[Trajectory], *values: float) -> Credit:
    """The same worth for every turn of an episode, one value for each episode."""
    pairs = zip(trajectories, values, strict=True)
    return {turn.id: Advantage(value) for trajectory, value in pairs for turn in trajectory.turns}
