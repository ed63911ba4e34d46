"""Forks: names of forked episodes, and answers that forks prescribe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from urllib.parse import quote

from marl.core.graph import Trajectory
from marl.core.types import Completion, Deal, Fork, Request, Turn
from marl.protocols import RoleConfig

EpisodeStart = tuple[Deal, Fork | None]
"""(deal of an episode to play, fork that the episode continues, or None to start at the game's beginning)."""


answer_inputs = attrgetter("messages", "continues", "options", "state")
"""Function that returns the fields of a request that determine its answer, given weights and random numbers."""
_message_span = attrgetter("message", "begin", "end")
"""Function that returns (message, begin, end) of an `SpanFromEarlierTurn`, without its source turn."""


@dataclass(frozen=True, slots=True)
class PrescribedForkAnswers:
    """Answers that a fork prescribes for agents, in place of answers sampled from policies."""

    moves: Mapping[str, str | None]
    """Agent -> the move that it plays at every turn; None is an empty answer."""
    recorded: Mapping[tuple[str, int], Turn]
    """(agent, index among the agent's turns) -> turn in the forked episode."""
    prefixes: Mapping[tuple[str, int], tuple[int, ...]] = field(default_factory=dict[tuple[str, int], tuple[int, ...]])
    """(agent, index among the agent's turns) -> tokens with which the agent's answer begins."""

    def recorded_answer_if_request_is_equal(
        self, agent: str, request: Request, turn_number: int | None
    ) -> Completion | None:
        """Return the recorded answer of `agent` if the recorded request equals `request`, else None.

        `turn_number` is the number of earlier turns of `agent`, or None if no recorded answer may be reused.
        """
        recorded = None if turn_number is None else self.recorded.get((agent, turn_number))
        if not recorded or answer_inputs(recorded.request) != answer_inputs(request):
            return None
        # `mark_tokens` belong to the recorded request's spans; an equal prompt with other spans cannot use them.
        same_spans = list(map(_message_span, recorded.request.marks)) == list(map(_message_span, request.marks))
        return recorded.completion if same_spans else replace(recorded.completion, mark_tokens=())

    def request_as_recorded(
        self, turn: tuple[str, int], request: Request, role: RoleConfig, build_with_seed: Callable[[int], Request]
    ) -> Request:
        """Return `request` with the prefix of `turn` (agent, index among its turns), and with the recorded prompt if it
        differs only by the answer tag of `role`. `build_with_seed` builds the request with another seed.
        """
        recorded = self.recorded.get(turn)
        if recorded and role.role_for_request(request.seed) is not role:
            # The seed determines the answer tag, so only the recorded seed can give the recorded prompt.
            same_prompt = build_with_seed(recorded.request.seed)
            if answer_inputs(same_prompt) == answer_inputs(recorded.request):
                request = same_prompt
        prefix = self.prefixes.get(turn)
        return replace(request, prefix=prefix) if prefix else request


@dataclass(slots=True)
class ForkedEpisodeNamer:
    """Generator of unique names for a simulator's forked episodes."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    """Id of the original episode -> name of a fork -> number of episodes that have continued the fork so far."""

    def episode_starts(self, deals_and_forks: Sequence[Deal | Fork]) -> list[EpisodeStart]:
        """Return the episodes to play for `deals_and_forks`: one for each deal, `n` with unique names for each fork.

        Raises:
            ValueError: if the trajectory of a fork has no turn with the fork's index.
        """
        # All forks are checked before the first gets its number, so that an error changes no counter.
        for fork in deals_and_forks:
            if isinstance(fork, Fork) and not 0 <= fork.index < len(fork.trajectory.turns):
                past = fork.trajectory
                raise ValueError(f"fork: episode {past.id!r} has no turn {fork.index}; it has {len(past.turns)}")
        starts: list[EpisodeStart] = []
        for fork in deals_and_forks:
            if isinstance(fork, Deal):
                starts.append((fork, None))
                continue
            # The name of a forked episode contains all of the fork's settings, so different forks have different names.
            settings = [_escape_move_for_fork_name(fork.action)]
            settings += [f"{quote(agent)}={_escape_move_for_fork_name(move)}" for agent, move in fork.scripted_moves]
            if fork.keeps_unchanged_answers:
                settings.append("kept")
            if fork.prefix:
                settings.append(f"after {len(fork.prefix)} tokens")
            past, name = fork.trajectory, f"{fork.index}.{','.join(settings)}"
            branches = self.counts.setdefault(past.id, Counter())
            first = branches[name] + 1
            branches[name] += fork.n
            for branch in range(first, first + fork.n):
                episode = f"{past.id}~{name}.{branch}"
                starts.append((replace(past.deal, episode=episode, purpose=fork.purpose, branch=branch), fork))
        return starts

    def restart_fork_numbering(self, trajectories: Iterable[Trajectory]) -> None:
        """Number the next episodes that fork from any of `trajectories` from 1 again."""
        for trajectory in trajectories:
            self.counts.pop(trajectory.id, None)


def _escape_move_for_fork_name(move: str | None) -> str:
    """Return `move` as a component of a forked episode's name, with the separators of names escaped."""
    if move is None:
        return ""
    # An empty move is written as "=", which tells it from no move ("").
    return quote(move, safe=" ").replace("~", "%7E") or "="
