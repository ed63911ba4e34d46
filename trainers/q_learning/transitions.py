"""Episodes as Q-learning sees them: turns of all agents of a policy, and which of them teach what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from marl.core.types import EpisodeEnd, Sample
from marl.models.decision_prompts import OBSERVATION


@dataclass(frozen=True, slots=True)
class PlayedTurn:
    """A decision and what came of it."""

    index: int
    """Place in the episode, among the turns of everybody."""
    agent: str
    turn_number: int
    """Number of the agent's earlier turns."""
    prompt_index: int
    """Prompt that holds the decision ..."""
    decision_index: int
    """... and its place there."""
    action: int
    """Number that stands for the move."""
    end: EpisodeEnd
    rewards: tuple[tuple[int, float], ...]
    """As in `Sample.rewards`."""


@dataclass(frozen=True, slots=True)
class JointEpisode:
    """The turns of all agents of a policy in one episode."""

    prompts: tuple[tuple[int, ...], ...]
    """Prompts of which none continues another."""
    turns: tuple[PlayedTurn, ...]
    """In playing order."""


class Transition(NamedTuple):
    """Turns of one episode that teach something together: a round of a team, or one turn."""

    turns: tuple[int, ...]
    """For each seat, the place of its turn among those of the episode; -1 for an empty seat."""
    reward: float
    next_index: int
    """Place of the next transition of the same agents; -1 if there is none."""
    has_target: bool
    """True if it is known what followed, be it the end."""


def joint_episodes(samples: Iterable[Sample]) -> list[JointEpisode]:
    """Return the episodes to which samples belong, in the order in which they first come."""
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.id[0], []).append(sample)
    return [_episode(sorted(group, key=lambda sample: sample.id[1])) for group in groups.values()]


def _episode(samples: Sequence[Sample]) -> JointEpisode:
    prompts: list[tuple[int, ...]] = []
    latest: dict[str, tuple[int, tuple[int, ...]]] = {}
    turns: list[PlayedTurn] = []
    for sample in samples:
        number, so_far = latest.get(sample.agent, (-1, ()))
        if number >= 0 and sample.prompt_ids[: len(so_far)] == so_far:
            prompts[number] = sample.prompt_ids
        else:
            number = len(prompts)
            prompts.append(sample.prompt_ids)
        latest[sample.agent] = number, (*sample.prompt_ids, *sample.token_ids)
        place, [action] = sample.prompt_ids.count(OBSERVATION) - 1, sample.token_ids
        index = sample.id[1]
        turns.append(PlayedTurn(index, sample.agent, sample.nth, number, place, action, sample.end, sample.rewards))
    return JointEpisode(tuple(prompts), tuple(turns))


def single_transitions(episode: JointEpisode) -> list[Transition]:
    """Return a transition for each turn, followed by its agent's next turn."""
    places = {(turn.agent, turn.turn_number): place for place, turn in enumerate(episode.turns)}
    transitions: list[Transition] = []
    for place, turn in enumerate(episode.turns):
        following = places.get((turn.agent, turn.turn_number + 1), -1)
        known = following >= 0 or turn.end == "terminated"
        transitions.append(Transition((place,), sum(value for _, value in turn.rewards), following, known))
    return transitions


def joint_transitions(
    episode: JointEpisode, seats: Mapping[str, int], common: Literal["mean", "sum"]
) -> list[Transition]:
    """Return a transition for each round: the turns of one number, each at its agent's seat (agent -> place).

    A reward belongs to the latest round that had begun when it was paid, so that no later move changes what an earlier
    round is paid.
    """
    numbers = sorted({turn.turn_number for turn in episode.turns})
    tables = [[-1] * len(seats) for _ in numbers]
    for place, turn in enumerate(episode.turns):
        tables[numbers.index(turn.turn_number)][seats[turn.agent]] = place
    rewards, agents = _round_rewards(episode, numbers), len({turn.agent for turn in episode.turns})
    share = 1 / agents if common == "mean" else 1.0
    transitions: list[Transition] = []
    for number, (nth, table) in enumerate(zip(numbers, tables, strict=True)):
        last = number + 1 == len(numbers)
        following = -1 if last or numbers[number + 1] > nth + 1 else number + 1
        ended = last and any(episode.turns[place].end == "terminated" for place in table if place >= 0)
        transitions.append(Transition(tuple(table), share * rewards[number], following, following >= 0 or ended))
    return transitions


def _round_rewards(episode: JointEpisode, numbers: Sequence[int]) -> list[float]:
    """Return the summed rewards of the agents in each round; `numbers`: those of the rounds' turns."""
    begins = [min(turn.index for turn in episode.turns if turn.turn_number == number) for number in numbers]
    rewards = [0.0] * len(numbers)
    for index, value in (payment for turn in episode.turns for payment in turn.rewards):
        rewards[max(number for number, begin in enumerate(begins) if begin <= index)] += value
    return rewards
