"""The replay buffer: recent episodes, of which all are as likely to be drawn, with a state of plain tensors."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, get_args

import torch
from torch import Tensor

from marl.core.types import EpisodeEnd
from marl.trainers.q_learning.transitions import JointEpisode, PlayedTurn

_ENDS: tuple[EpisodeEnd, ...] = get_args(EpisodeEnd)


class ReplayBuffer:
    """Episodes, of which the oldest give way."""

    def __init__(self, capacity: int) -> None:
        self._episodes: deque[JointEpisode] = deque(maxlen=capacity)

    def __len__(self) -> int:
        return len(self._episodes)

    def add(self, episodes: Iterable[JointEpisode]) -> None:
        """Add the newest episodes."""
        self._episodes.extend(episodes)

    def draw(self, many: int, seed: int) -> list[JointEpisode]:
        """Return so many different episodes, all as likely."""
        return [self._episodes[place] for place in random.Random(seed).sample(range(len(self)), many)]

    def state_dict(self) -> dict[str, Any]:
        """Return the episodes as a fixed number of tensors."""
        agents = sorted({turn.agent for episode in self._episodes for turn in episode.turns})
        prompts = [prompt for episode in self._episodes for prompt in episode.prompts]
        turns = [turn for episode in self._episodes for turn in episode.turns]
        payments = [payment for turn in turns for payment in turn.rewards]
        facts = [
            (
                t.index,
                agents.index(t.agent),
                t.turn_number,
                t.prompt_index,
                t.decision_index,
                t.action,
                _ENDS.index(t.end),
            )
            for t in turns
        ]
        return {
            "agents": agents,
            "prompts": _integers([len(episode.prompts) for episode in self._episodes]),
            "turns": _integers([len(episode.turns) for episode in self._episodes]),
            "lengths": _integers([len(prompt) for prompt in prompts]),
            "ids": _integers([number for prompt in prompts for number in prompt]),
            "facts": _integers([number for row in facts for number in row]),
            "payments": _integers([len(turn.rewards) for turn in turns]),
            "paid_at": _integers([index for index, _ in payments]),
            "paid": torch.tensor([value for _, value in payments], dtype=torch.float64),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Hold the episodes of a state, or the newest of them."""
        ids, lengths = iter(state["ids"].tolist()), iter(state["lengths"].tolist())
        payments = iter(list(zip(state["paid_at"].tolist(), state["paid"].tolist(), strict=True)))
        turns = _turns(state["agents"], state["facts"], state["payments"].tolist(), payments)
        self._episodes.clear()
        for prompts, many in zip(state["prompts"].tolist(), state["turns"].tolist(), strict=True):
            texts = tuple([tuple(islice(ids, length)) for length in islice(lengths, prompts)])
            self._episodes.append(JointEpisode(texts, tuple(islice(turns, many))))


def _turns(
    agents: list[str], facts: Tensor, counts: Sequence[int], payments: Iterator[tuple[int, float]]
) -> Iterator[PlayedTurn]:
    for row, count in zip(facts.view(-1, 7).tolist(), counts, strict=True):
        index, agent, nth, sequence, place, action, end = row
        rewards = tuple(islice(payments, count))
        yield PlayedTurn(index, agents[agent], nth, sequence, place, action, _ENDS[end], rewards)


def _integers(numbers: Sequence[int]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64)
