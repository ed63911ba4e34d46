"""One episode in progress: turns a game's observations into requests, and completions into moves and graph nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from types import TracebackType
from typing import get_args

from marl.errors import RunError
from marl.graph import Trajectory
from marl.protocols import Game, View
from marl.provenance import origins_of
from marl.rollout.casting import RoleCasting
from marl.seeds import seed_of
from marl.text import well_formed
from marl.types import Completion, Deal, EdgeKind, Failure, Fork, Info, Request, Reward, Turn, TurnId
from marl.watchdog import Watch

_Edges = list[tuple[TurnId, EdgeKind]]


class GameError(RunError):
    """A game raised, or did not end. The message names game, seed, options and the moves that led there."""


@dataclass(frozen=True, slots=True)
class PlayLimits:
    """Limits of an episode."""

    max_turns: int = 10_000
    deadline_s: float = 600.0
    """Longest time of one call of a game's or role's code."""


_USUAL = PlayLimits()
_LAST_MOVES = 20
"""Moves that the message about a long episode shows."""


class Guard:
    """Turns whatever a game raises into a `GameError` that says where; a call that hangs into a `HangError`."""

    __slots__ = ("_game", "_place", "_watch")

    def __init__(self, game: Game, place: Callable[[], str], deadline_s: float = _USUAL.deadline_s) -> None:
        """`place` returns all that it takes to come there again, for messages."""
        self._game, self._place = game, place
        self._watch = Watch(lambda: f"{name_of(game)} {place()}", deadline_s)

    def __enter__(self) -> None:
        self._watch.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._watch.__exit__(kind, error, tb)
        if kind is not None and issubclass(kind, Exception):
            raise GameError(f"{name_of(self._game)} raised {kind.__name__}: {error} {self._place()}") from error


def name_of(game: Game) -> str:
    """Return a game's name in messages."""
    return f"game {type(game).__name__}"


def step_done_agents(game: Game) -> bool:
    """Step agents that are done with None, as PettingZoo asks; return True if all are done: the episode is over."""
    while game.agents and _done(game, game.agent_selection):
        if all(_done(game, agent) for agent in game.agents):
            return True
        game.step(None)
    return not game.agents


@dataclass(slots=True)
class _Question:
    """A request in flight, and the turns that led to it, each with the ways in which it did."""

    request: Request
    info: Info
    reads: Mapping[TurnId, frozenset[EdgeKind]]
    sent: bool = False
    answer: Completion | None = None


@dataclass(slots=True)
class _Memory:
    """The turns of one agent, and how far it has read those of the others."""

    turns: list[Turn] = field(default_factory=list)
    heard: dict[str, int] = field(default_factory=dict)
    """Agent -> number of its turns that this agent has read."""
    read: list[Turn] = field(default_factory=list)
    """The turns that it has read."""
    marked: dict[TurnId, Turn] = field(default_factory=dict)
    """Its own turns, with marks for its prompts."""


@dataclass(frozen=True, slots=True)
class _Script:
    """Answers that a fork prescribes."""

    muted: Mapping[str, Completion]
    recorded: Mapping[tuple[str, int], Turn]
    """(agent, number of its earlier turns) -> its turn in the episode that was left."""

    def answer(self, agent: str, question: _Question, nth: int) -> Completion | None:
        """Return the prescribed answer; None if the policy is to be asked."""
        if agent in self.muted:
            return self.muted[agent]
        before = self.recorded.get((agent, nth))
        if not before or _prompt(before.request) != _prompt(question.request):
            return None
        alike = _marked_parts(before.request) == _marked_parts(question.request)
        return before.completion if alike else replace(before.completion, mark_tokens=())


class Episode:
    """One game in progress."""

    def __init__(self, game: Game, deal: Deal, casting: RoleCasting, limits: PlayLimits = _USUAL) -> None:
        self.game, self.casting, self.limits = game, casting, limits
        self._open: dict[str, _Question] = {}
        self._memory = {agent: _Memory() for agent in deal.seats}
        self._marked: dict[bool, dict[TurnId, Turn]] = {False: {}, True: {}}
        """Turns with marks for the prompts of others: as most hear them, and (True) with thoughts that are hidden."""
        self._script: _Script | None = None
        self.trajectory = Trajectory(deal, "")
        with self._guard():
            game.reset(seed=deal.seed, options=deal.options)
            # Of several games, starts of different ones are never the same.
            self.trajectory.start = f"{deal.game}/{game.start_key()}" if deal.game else game.start_key()
        self.over = False

    def _guard(self) -> Guard:
        return Guard(self.game, lambda: self.place, self.limits.deadline_s)

    @property
    def place(self) -> str:
        """Return all that it takes to come here again, for messages; of a long episode the last moves only."""
        deal, actions = self.trajectory.deal, [turn.action for turn in self.trajectory.turns]
        earlier = len(actions) - _LAST_MOVES
        shown = f"{earlier} earlier actions, then {actions[-_LAST_MOVES:]}" if earlier > 0 else f"actions {actions}"
        return f"(episode {deal.episode}, seed {deal.seed}, options {deal.options}, {shown})"

    def new_requests(self) -> list[tuple[str, Request]]:
        """Return new requests with their agents: the agent to move, and those whose observations are final now.

        Requests that a fork's script answers are left out; their answers may have ended the episode.
        """
        requests: list[tuple[str, Request]] = []
        while not self.over and (new := self._new()):
            for agent, question in new:
                scripted = self._script and self._script.answer(agent, question, len(self._memory[agent].turns))
                if scripted is None:
                    requests.append((agent, question.request))
                elif not self.over:
                    self.answer(agent, scripted)
        return requests

    def _new(self) -> list[tuple[str, _Question]]:
        self._pose()
        new = [(agent, question) for agent, question in self._open.items() if not question.sent]
        for _, question in new:
            question.sent = True
        return new

    def answer(self, agent: str, answer: Completion | Failure) -> None:
        """Take an answer. Answers are played in the game's order, whatever order they come in."""
        if isinstance(answer, Failure):
            finish = "overflow" if answer.finish == "overflow" else "aborted"
            answer = Completion("", (), (), (), finish, usage=answer.usage, reason=answer.reason)
        if not answer.text.isascii():
            answer = replace(answer, text=well_formed(answer.text))
        self._open[agent].answer = answer
        while not self.over:
            agent = self.game.agent_selection
            question = self._open.get(agent)
            if question is None or question.answer is None:
                return
            del self._open[agent]
            self._play(agent, question, question.answer)

    def force(self, action: str | None) -> None:
        """Play `action` for the agent to move as if its policy had answered so; None is an empty answer."""
        self._pose()
        agent = self.game.agent_selection
        self.answer(agent, self._completion_of(agent, action))

    def follow(self, fork: Fork) -> None:
        """Let the answers that `fork` prescribes be given from here on, without asking their policies."""
        muted = {agent: self._completion_of(agent, action) for agent, action in fork.muted}
        recorded: dict[tuple[str, int], Turn] = {}
        if fork.keeps:
            turns = fork.trajectory.turns
            recorded = {(turn.agent, turn.nth): turn for i, turn in enumerate(turns) if i != fork.index}
        self._script = _Script(muted, recorded)
        if fork.action is not None:
            self.force(fork.action)

    def _completion_of(self, agent: str, action: str | None) -> Completion:
        role = self.casting.roles[self.trajectory.deal.seats[agent]]
        return Completion(role.phrase(action) if action else "", (), (), (), "stop" if action else "aborted")

    def replay(self, past: Trajectory, until: TurnId) -> None:
        """Play the turns of `past` before `until` again, keeping their ids."""
        self.trajectory.parent = until
        for turn in past.turns:
            # Questions are posed as they were, so that every agent has read as far as it had.
            self._pose()
            if turn.id == until:
                return
            self._record(turn, self._open.pop(turn.agent).reads)
        raise ValueError(f"turn {until} is not in episode {past.id}")

    def _pose(self) -> None:
        """Open a question for each agent that can be asked now."""
        agent = self.game.agent_selection
        for who in (agent, *self.game.infos[agent]["together"]):
            if who not in self._open:
                self._open[who] = self._question(who)

    def _question(self, agent: str) -> _Question:
        with self._guard():
            observation = self.game.observe(agent)
        info, memory, deal = self.game.infos[agent], self._memory[agent], self.trajectory.deal
        unread = self._unread(agent, info["hears"])
        hears_thoughts = self.casting.roles[deal.seats[agent]].hears_thoughts
        if not hears_thoughts:
            unread = [self.casting.heard(turn) for turn in unread]
        turns = self.trajectory.turns
        marked = self.casting.marked
        mine = marked(memory.turns, memory.marked, mine=True)
        heard = self._marked[hears_thoughts]
        view = View(agent, observation, info, mine, marked(unread, heard), marked(memory.read, heard), turns)
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
        """Return the turns that led to a request, in playing order, the agent's own last."""
        turns, kinds = self.trajectory.turns, dict[TurnId, frozenset[EdgeKind]]()
        marked: _Edges = [(mark.source, mark.kind) for mark in request.marks]
        if request.continues:
            marked.append((self._memory[agent].turns[-1].id, "self"))
        derived: _Edges = [(turns[step].id, kind) for step, kind in origins_of(info["state"]) if isinstance(step, int)]
        gates: _Edges = [(turns[step].id, "gated") for step in info.get("gates", ())]
        for source, kind in chain(marked, derived, gates):
            known = kinds.get(source)
            kinds[source] = known | _ONLY[kind] if known else _ONLY[kind]
        if len(kinds) < 2:
            return kinds
        order = sorted(kinds, key=lambda source: (turns[source[1]].agent == agent, source[1]))
        return {source: kinds[source] for source in order}

    def _unread(self, agent: str, hears: tuple[str, ...]) -> list[Turn]:
        """Return the turns that `agent` can hear and has not read yet, in playing order, and mark them as read."""
        heard, unread = self._memory[agent].heard, []
        for speaker in hears:
            if speaker != agent:
                turns, known = self._memory[speaker].turns, heard.get(speaker, 0)
                unread += turns[known:]
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
            # A role that reads escapes (JSON) may make surrogates of plain text.
            action=move if move is None else well_formed(move),
            problem=info.get("problem", ""),
        )
        self._record(turn, question.reads)

    def _watch_role(self, role: str) -> Watch:
        return Watch(lambda: f"role {role!r} {self.place}", self.limits.deadline_s)

    def _record(self, turn: Turn, reads: Mapping[TurnId, frozenset[EdgeKind]]) -> None:
        game = self.game
        self.trajectory.add(turn, reads, reads)
        self._memory[turn.agent].turns.append(turn)
        with self._guard():
            game.step(turn.action or "")
            if game.reward_components:
                self.trajectory.rewards += [
                    Reward(payee, float(value), turn.id, name, game.reward_causes.get((payee, name), ""))
                    for payee, parts in game.reward_components.items()
                    for name, value in parts.items()
                    if value
                ]
            if step_done_agents(game):
                self._finish()
        if not self.over and len(self.trajectory.turns) >= self.limits.max_turns:
            turns = len(self.trajectory.turns)
            raise GameError(f"{name_of(self.game)} is not over after {turns} turns (schedule.max_turns) {self.place}")

    def _finish(self) -> None:
        game = self.game
        self.over = True
        self.trajectory.findings = game.findings()
        self.trajectory.end = "terminated" if any(game.terminations.values()) or not game.agents else "truncated"


_ONLY: Mapping[EdgeKind, frozenset[EdgeKind]] = {kind: frozenset([kind]) for kind in get_args(EdgeKind)}
"""One object for each way that is the only one of its edge: there are millions of edges in a run."""


def _prompt(request: Request) -> tuple[object, ...]:
    """Return all that an answer depends on beside weights and random numbers."""
    return request.messages, request.continues, request.options, request.state


def _marked_parts(request: Request) -> list[tuple[int, int, int]]:
    """Return the places of a request's marks, whichever turns they lead to."""
    return [(mark.message, mark.begin, mark.end) for mark in request.marks]


def _done(game: Game, agent: str) -> bool:
    return game.terminations[agent] or game.truncations[agent]


_FAILED = ("overflow", "aborted")
"""Requests without a completion: there is no text that a role could parse."""
