"""One episode in progress: turns a game's observations into requests, and completions into moves and graph nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from types import TracebackType
from typing import get_args

from marl.core.errors import RunError
from marl.core.graph import Trajectory
from marl.core.seeds import seed_of
from marl.core.types import Completion, Deal, EdgeKind, Failure, Fork, Info, Request, Reward, Turn, TurnId
from marl.core.watchdog import CallWatchdog
from marl.host.outside import replace_surrogates
from marl.protocols import Game, PromptContext
from marl.rollout.casting import RoleCasting
from marl.text.origins import origins_of

_Edges = list[tuple[TurnId, EdgeKind]]


class GameError(RunError):
    """A game raised, or did not end. The message names game, seed, options and the moves so far."""


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
    """Limits of an episode."""

    max_turns: int = 10_000
    deadline_s: float = 600.0
    """Maximum time of one call of a game's or role's code, in seconds."""


_DEFAULT_LIMITS = EpisodeLimits()
_LAST_MOVES = 20
"""Maximum number of moves in a message about an episode."""


class GameErrorGuard:
    """Context manager that turns errors of a game into `GameError`, and a call past its deadline into `HangError`."""

    __slots__ = ("_game", "_location", "_watch")

    def __init__(self, game: Game, location: Callable[[], str], deadline_s: float = _DEFAULT_LIMITS.deadline_s) -> None:
        """`location` returns the seed, options and moves so far, for messages."""
        self._game, self._location = game, location
        self._watch = CallWatchdog(lambda: f"{game_label(game)} {location()}", deadline_s)

    def __enter__(self) -> None:
        self._watch.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._watch.__exit__(kind, error, tb)
        # Ctrl-C and exits are no errors of the game.
        if kind is not None and issubclass(kind, Exception):
            raise GameError(f"{game_label(self._game)} raised {kind.__name__}: {error} {self._location()}") from error


def game_label(game: Game) -> str:
    """Return a game's name in messages."""
    return f"game {type(game).__name__}"


def step_done_agents(game: Game) -> bool:
    """Step agents that are done with None, as PettingZoo requires; return True if the episode is over."""
    while game.agents and _done(game, game.agent_selection):
        if all(_done(game, agent) for agent in game.agents):
            return True
        game.step(None)
    return not game.agents


@dataclass(slots=True)
class _Question:
    """A request to an agent's policy, and the edges to its turn: earlier turn -> kinds of the edge."""

    request: Request
    info: Info
    reads: Mapping[TurnId, frozenset[EdgeKind]]
    sent: bool = False
    """True after `new_requests` returned the request."""
    answer: Completion | None = None


@dataclass(slots=True)
class _Memory:
    """The turns of one agent, and its progress in reading the turns of other agents."""

    turns: list[Turn] = field(default_factory=list)
    heard: dict[str, int] = field(default_factory=dict)
    """Other agent -> number of its turns read so far."""
    read: list[Turn] = field(default_factory=list)
    """Turns of other agents read so far."""
    marked: dict[TurnId, Turn] = field(default_factory=dict)
    """Cache of the agent's own turns with origins, for its prompts."""

    def copy(self) -> _Memory:
        """Return an independent copy. The turns themselves are frozen and shared."""
        return _Memory(list(self.turns), dict(self.heard), list(self.read), dict(self.marked))


@dataclass(frozen=True, slots=True)
class _Script:
    """Answers prescribed by a fork."""

    muted: Mapping[str, Completion]
    recorded: Mapping[tuple[str, int], Turn]
    """(agent, number of its earlier turns) -> its turn in the forked episode."""

    def answer(self, agent: str, question: _Question, nth: int) -> Completion | None:
        """Return the prescribed answer, or None if the agent's policy must be asked."""
        if agent in self.muted:
            return self.muted[agent]
        recorded = self.recorded.get((agent, nth))
        if not recorded or _prompt(recorded.request) != _prompt(question.request):
            return None
        # `mark_tokens` are the token positions of the recorded request's marks, which may differ in an equal prompt.
        same_spans = _mark_spans(recorded.request) == _mark_spans(question.request)
        return recorded.completion if same_spans else replace(recorded.completion, mark_tokens=())


class Episode:
    """One game in progress."""

    def __init__(self, game: Game, deal: Deal, casting: RoleCasting, limits: EpisodeLimits = _DEFAULT_LIMITS) -> None:
        self.game, self.casting, self.limits = game, casting, limits
        self._open: dict[str, _Question] = {}
        self._memory = {agent: _Memory() for agent in deal.seats}
        self._marked: dict[bool, dict[TurnId, Turn]] = {False: {}, True: {}}
        """Cache of turns with origins, for prompts of other agents: True with hidden thoughts, False without."""
        self._script: _Script | None = None
        self.trajectory = Trajectory(deal, "")
        with self._guard():
            game.reset(seed=deal.seed, options=deal.options)
            # Two of a run's games may have equal keys, but their episodes are not peers.
            self.trajectory.start = f"{deal.game}/{game.start_key()}" if deal.game else game.start_key()
        self.done = False

    def _guard(self) -> GameErrorGuard:
        return GameErrorGuard(self.game, lambda: self.replay_info, self.limits.deadline_s)

    @property
    def replay_info(self) -> str:
        """Return episode, seed, options and the last moves, for messages."""
        deal, actions = self.trajectory.deal, [turn.action for turn in self.trajectory.turns]
        earlier = len(actions) - _LAST_MOVES
        shown = f"{earlier} earlier actions, then {actions[-_LAST_MOVES:]}" if earlier > 0 else f"actions {actions}"
        return f"(episode {deal.episode}, seed {deal.seed}, options {deal.options}, {shown})"

    def copy(self, game: Game, seats: Mapping[str, str] | None = None) -> Episode:
        """Return an independent copy of the episode on `game`. Its open requests are sent again.

        `game`: a game in a state that the agent to move cannot distinguish from this episode's. `seats`: agent -> its
        role from now on (default: unchanged).
        """
        deal, other = self.trajectory.deal, Episode.__new__(Episode)
        other.game, other.casting, other.limits = game, self.casting, self.limits
        other.trajectory = self.trajectory.copy(replace(deal, seats=seats) if seats else deal)
        other.done, other._script = self.done, None
        other._open = {agent: replace(question, sent=False) for agent, question in self._open.items()}
        other._memory = {agent: memory.copy() for agent, memory in self._memory.items()}
        other._marked = {thoughts: dict(turns) for thoughts, turns in self._marked.items()}
        return other

    def new_requests(self) -> list[tuple[str, Request]]:
        """Return unsent requests with their agents: of the agent to move, and of agents with final observations.

        A fork's script answers some requests itself. These are left out, and may have ended the episode.
        """
        requests: list[tuple[str, Request]] = []
        while not self.done:
            self._pose()
            unsent = [(agent, question) for agent, question in self._open.items() if not question.sent]
            if not unsent:
                break
            for _, question in unsent:
                question.sent = True
            for agent, question in unsent:
                scripted = self._script and self._script.answer(agent, question, len(self._memory[agent].turns))
                if scripted is None:
                    requests.append((agent, question.request))
                elif not self.done:
                    self.answer(agent, scripted)
        return requests

    def answer(self, agent: str, answer: Completion | Failure) -> None:
        """Receive an answer. Answers are played in the game's order, in whatever order they arrive."""
        if isinstance(answer, Failure):
            finish = "overflow" if answer.finish == "overflow" else "aborted"
            answer = Completion("", (), (), (), finish, usage=answer.usage, reason=answer.reason)
        if not answer.text.isascii():
            answer = replace(answer, text=replace_surrogates(answer.text))
        self._open[agent].answer = answer
        while not self.done:
            agent = self.game.agent_selection
            question = self._open.get(agent)
            if question is None or question.answer is None:
                return
            del self._open[agent]
            self._play(agent, question, question.answer)

    def force_action(self, action: str | None) -> None:
        """Play `action` for the agent to move as if it was the answer of its policy. None is an empty answer."""
        self._pose()
        agent = self.game.agent_selection
        self.answer(agent, self._completion_of(agent, action))

    def apply_fork(self, fork: Fork) -> None:
        """Use the answers prescribed by `fork` from now on, instead of their policies'."""
        muted = {agent: self._completion_of(agent, action) for agent, action in fork.scripted_moves}
        recorded: dict[tuple[str, int], Turn] = {}
        if fork.keeps_unchanged_answers:
            turns = fork.trajectory.turns
            recorded = {(turn.agent, turn.nth): turn for i, turn in enumerate(turns) if i != fork.index}
        self._script = _Script(muted, recorded)
        if fork.action is not None:
            self.force_action(fork.action)

    def _completion_of(self, agent: str, action: str | None) -> Completion:
        role = self.casting.roles[self.trajectory.deal.seats[agent]]
        return Completion(role.phrase(action) if action else "", (), (), (), "stop" if action else "aborted")

    def replay(self, past: Trajectory, until: TurnId) -> None:
        """Replay the turns of `past` before the turn `until`, with their ids."""
        self.trajectory.parent = until
        for turn in past.turns:
            # Posed as in the past episode, so that every agent has read as far as it had there.
            self._pose()
            if turn.id == until:
                return
            self._record(turn, self._open.pop(turn.agent).reads)
        raise ValueError(f"turn {until} is not in episode {past.id}")

    def _pose(self) -> None:
        """Open a question for the agent to move, and for each agent whose observation is final."""
        agent = self.game.agent_selection
        for reader in (agent, *self.game.infos[agent]["together"]):
            if reader not in self._open:
                self._open[reader] = self._question(reader)

    def _question(self, agent: str) -> _Question:
        with self._guard():
            observation = self.game.observe(agent)
        info, memory, deal = self.game.infos[agent], self._memory[agent], self.trajectory.deal
        unread = self._unread(agent, info["hears"])
        hears_thoughts = self.casting.roles[deal.seats[agent]].hears_thoughts
        if not hears_thoughts:
            unread = [self.casting.public_turn(turn) for turn in unread]
        turns = self.trajectory.turns
        marked = self.casting.with_origins
        mine = marked(memory.turns, memory.marked, mine=True)
        heard = self._marked[hears_thoughts]
        view = PromptContext(agent, observation, info, mine, marked(unread, heard), marked(memory.read, heard), turns)
        seed = seed_of(
            self.casting.seed, deal.purpose, deal.episode, deal.branch, agent, len(memory.turns), info["attempt"]
        )
        role = deal.seats[agent]
        with self._watch_role(role):
            request = self.casting.request(role, view, seed)
        if role in deal.policies:
            request = replace(request, policy=deal.policies[role])
        if deal.purpose != request.purpose:
            request = replace(request, purpose=deal.purpose)
        memory.read += unread
        return _Question(request, info, self._sources(agent, request, info))

    def _sources(self, agent: str, request: Request, info: Info) -> dict[TurnId, frozenset[EdgeKind]]:
        """Return the edges to the turn of `request`, by source turn in playing order, the agent's own turns last."""
        turns, kinds = self.trajectory.turns, dict[TurnId, frozenset[EdgeKind]]()
        marked: _Edges = [(mark.source, mark.kind) for mark in request.marks]
        if request.continues:
            marked.append((self._memory[agent].turns[-1].id, "self"))
        derived: _Edges = [(turns[step].id, kind) for step, kind in origins_of(info["state"]) if isinstance(step, int)]
        gates: _Edges = [(turns[step].id, "gated") for step in info.get("gates", ())]
        for source, kind in chain(marked, derived, gates):
            earlier = kinds.get(source)
            kinds[source] = earlier | _ONLY[kind] if earlier else _ONLY[kind]
        if len(kinds) < 2:
            return kinds
        order = sorted(kinds, key=lambda source: (turns[source[1]].agent == agent, source[1]))
        return {source: kinds[source] for source in order}

    def _unread(self, agent: str, hears: tuple[str, ...]) -> list[Turn]:
        """Return the turns of the agents `hears` not yet read by `agent`, in playing order, and mark them as read."""
        heard, unread = self._memory[agent].heard, []
        for speaker in hears:
            if speaker != agent:
                turns = self._memory[speaker].turns
                unread += turns[heard.get(speaker, 0) :]
                heard[speaker] = len(turns)
        return sorted(unread, key=lambda turn: turn.id[1])

    def _play(self, agent: str, question: _Question, completion: Completion) -> None:
        deal, info = self.trajectory.deal, question.info
        role = deal.seats[agent]
        move = None
        if completion.finish not in _FAILED:
            with self._watch_role(role):
                move = self.casting.roles[role].parse(completion.text, info["legal"])
        turn = Turn(
            id=(deal.episode, len(self.trajectory.turns)),
            agent=agent,
            nth=len(self._memory[agent].turns),
            attempt=info["attempt"],
            role=role,
            request=question.request,
            completion=completion,
            # A role that decodes escapes (JSON) may turn plain text into surrogates.
            action=move if move is None else replace_surrogates(move),
            problem=info.get("problem", ""),
        )
        self._record(turn, question.reads)

    def _watch_role(self, role: str) -> CallWatchdog:
        return CallWatchdog(lambda: f"role {role!r} {self.replay_info}", self.limits.deadline_s)

    def _record(self, turn: Turn, reads: Mapping[TurnId, frozenset[EdgeKind]]) -> None:
        game = self.game
        self.trajectory.add(turn, reads, reads)
        self._memory[turn.agent].turns.append(turn)
        with self._guard():
            game.step(turn.action or "")
            if game.reward_components:
                for payee, components in game.reward_components.items():
                    for name, value in components.items():
                        if value:
                            cause = game.reward_causes.get((payee, name), "")
                            self.trajectory.rewards.append(Reward(payee, float(value), turn.id, name, cause))
            if step_done_agents(game):
                self.done = True
                self.trajectory.findings = game.findings()
                terminated = any(game.terminations.values()) or not game.agents
                self.trajectory.end = "terminated" if terminated else "truncated"
        if not self.done and len(self.trajectory.turns) >= self.limits.max_turns:
            turns = len(self.trajectory.turns)
            raise GameError(
                f"{game_label(self.game)} is not over after {turns} turns (schedule.max_turns) {self.replay_info}"
            )


_ONLY: Mapping[EdgeKind, frozenset[EdgeKind]] = {kind: frozenset([kind]) for kind in get_args(EdgeKind)}
"""Shared sets for edges of a single kind: a run has millions of edges, most of a single kind."""


def _prompt(request: Request) -> tuple[object, ...]:
    """Return the fields of `request` on which an answer depends, beside weights and random numbers."""
    return request.messages, request.continues, request.options, request.state


def _mark_spans(request: Request) -> list[tuple[int, int, int]]:
    """Return message, begin and end of each mark of `request`, without its source turn."""
    return [(mark.message, mark.begin, mark.end) for mark in request.marks]


def _done(game: Game, agent: str) -> bool:
    return game.terminations[agent] or game.truncations[agent]


_FAILED = ("overflow", "aborted")
"""Reasons for a missing completion: there is no text for a role to parse."""
