"""Episodes for Q-learning: the turns of all agents of a policy, and the transitions between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from marl.core.types import EpisodeEnd, Sample
from marl.models.decision_prompts import OBSERVATION


@dataclass(frozen=True, slots=True)
class TurnWithFollowingRewards:
    """A decision of an agent, its action and the rewards that followed."""

    index: int
    """Index of the turn among all turns of the episode, other policies' turns included."""
    agent: str
    turn_number: int
    """Number of earlier turns of the same agent."""
    prompt_index: int
    """Index, in `JointEpisode.prompts`, of the prompt that contains the decision."""
    decision_index: int
    """Index of the decision among the decisions of its prompt."""
    action: int
    """Token id of the move."""
    end: EpisodeEnd
    """End of the episode if this is the agent's last turn; else `no`."""
    rewards: tuple[tuple[int, float], ...]
    """(index of the turn at which the agent was paid, reward), as in `Sample.rewards`."""


@dataclass(frozen=True, slots=True)
class JointEpisode:
    """The turns of all agents of a policy in one episode."""

    prompts: tuple[tuple[int, ...], ...]
    """Token ids of the agents' longest prompts: a prompt that a later one continues is left out."""
    turns: tuple[TurnWithFollowingRewards, ...]
    """Turns in playing order."""

    @property
    def agents(self) -> set[str]:
        """Names of the agents with a turn."""
        return {turn.agent for turn in self.turns}


class Transition(NamedTuple):
    """Unit of temporal-difference learning: a single turn, or with a mixer a round of a team's turns."""

    turns: tuple[int, ...]
    """Index in `JointEpisode.turns` of each seat's turn; -1 for an empty seat."""
    reward: float
    """Reward between this transition and the next."""
    next_index: int
    """Index of the next transition of the same agents; -1 without a next transition."""
    has_target: bool
    """True if a next transition follows, or the episode terminated: otherwise the target is unknown."""


def joint_episodes(samples: Iterable[Sample]) -> list[JointEpisode]:
    """Return the episodes of `samples`, in order of first appearance."""
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.id[0], []).append(sample)
    episodes: list[JointEpisode] = []
    for group in groups.values():
        prompts: list[tuple[int, ...]] = []
        latest: dict[str, tuple[int, tuple[int, ...]]] = {}
        turns: list[TurnWithFollowingRewards] = []
        for sample in sorted(group, key=lambda sample: sample.id[1]):
            number, so_far = latest.get(sample.agent, (-1, ()))
            if number >= 0 and sample.prompt_ids[: len(so_far)] == so_far:
                prompts[number] = sample.prompt_ids
            else:
                number = len(prompts)
                prompts.append(sample.prompt_ids)
            latest[sample.agent] = number, (*sample.prompt_ids, *sample.token_ids)
            # A prompt contains one observation per decision so far, so their count numbers the decision.
            decision, [action] = sample.prompt_ids.count(OBSERVATION) - 1, sample.token_ids
            numbers = sample.nth, number, decision, action
            turns.append(TurnWithFollowingRewards(sample.id[1], sample.agent, *numbers, sample.end, sample.rewards))
        episodes.append(JointEpisode(tuple(prompts), tuple(turns)))
    return episodes


def turn_transitions(episode: JointEpisode) -> list[Transition]:
    """Return a transition for each turn; the next transition is the same agent's next turn."""
    index_of = {(turn.agent, turn.turn_number): index for index, turn in enumerate(episode.turns)}
    transitions: list[Transition] = []
    for index, turn in enumerate(episode.turns):
        following = index_of.get((turn.agent, turn.turn_number + 1), -1)
        has_target = following >= 0 or turn.end == "terminated"
        transitions.append(Transition((index,), sum(value for _, value in turn.rewards), following, has_target))
    return transitions


def round_transitions(
    episode: JointEpisode, seat_index_by_agent: Mapping[str, int], team_reward: Literal["mean", "sum"]
) -> list[Transition]:
    """Return a transition for each round, the turns of all agents with one `turn_number`; `seat_index_by_agent`: agent
    -> seat index.

    A reward belongs to the latest round that had begun when it was paid, so that no later move changes an earlier
    round's reward.
    """
    numbers = sorted({turn.turn_number for turn in episode.turns})
    tables = [[-1] * len(seat_index_by_agent) for _ in numbers]
    rewards = [0.0] * len(numbers)
    starts: list[int] = [episode.turns[-1].index] * len(numbers) if episode.turns else []
    for index, turn in enumerate(episode.turns):
        round_index = numbers.index(turn.turn_number)
        tables[round_index][seat_index_by_agent[turn.agent]] = index
        starts[round_index] = min(starts[round_index], turn.index)
    for turn in episode.turns:
        for paid_at, reward in turn.rewards:
            rewards[max(index for index, start in enumerate(starts) if start <= paid_at)] += reward
    share = 1 / len(episode.agents) if team_reward == "mean" else 1.0
    transitions: list[Transition] = []
    for round_index, (turn_number, table) in enumerate(zip(numbers, tables, strict=True)):
        is_last = round_index + 1 == len(numbers)
        following = -1 if is_last or numbers[round_index + 1] > turn_number + 1 else round_index + 1
        ended = is_last and any(episode.turns[index].end == "terminated" for index in table if index >= 0)
        transitions.append(Transition(tuple(table), share * rewards[round_index], following, following >= 0 or ended))
    return transitions
