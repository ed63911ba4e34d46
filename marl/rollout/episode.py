"""Play games with policies. An AEC game already asks (`observe`) and answers (`step`), so playing many games at
once is a loop over their open questions, each sent to the engine that speaks for its policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType

from marl.errors import RunError
from marl.graph import Trajectory
from marl.protocols import Game, View
from marl.rollout.casting import Cast
from marl.seeds import seed_of
from marl.types import Completion, Deal, Failure, Fork, Info, Request, Reward, Turn, TurnId


class GameError(RunError):
    """A game raised; the message names game, seed and the actions that led there."""


@dataclass
class _Blame:
    """Says which episode a game's own error came from."""

    episode: Episode

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if kind is not None and issubclass(kind, Exception):
            deal = self.episode.trajectory.deal
            actions = [turn.action for turn in self.episode.trajectory.turns]
            raise GameError(
                f"game {type(self.episode.game).__name__} raised {kind.__name__}: {error} "
                f"(episode {deal.episode}, seed {deal.seed}, options {deal.options}, actions {actions})"
            ) from error


@dataclass(slots=True)
class _Question:
    """A request on its way, and what its prompt held."""

    request: Request
    info: Info
    reads: list[TurnId]
    sent: bool = False
    answer: Completion | None = None


@dataclass(slots=True)
class _Memory:
    """What one agent has said, and how far it has read."""

    turns: list[Turn] = field(default_factory=list)
    heard: dict[str, int] = field(default_factory=dict)
    """Agent -> how many of its turns this one has read."""
    read: list[Turn] = field(default_factory=list)
    """Those turns."""


@dataclass(frozen=True, slots=True)
class _Script:
    """What a fork decides of what is said."""

    muted: Mapping[str, Completion]
    kept: Mapping[tuple[str, int], Turn]
    """(agent, how many turns it had before) -> its turn in the episode that was left."""

    def answer(self, agent: str, question: _Question, nth: int) -> Completion | None:
        """None: the policy is to be asked."""
        if agent in self.muted:
            return self.muted[agent]
        then = self.kept.get((agent, nth))
        return then.completion if then and _asked(then.request) == _asked(question.request) else None


class Episode:
    """One game in progress."""

    def __init__(self, game: Game, deal: Deal, cast: Cast) -> None:
        self.game, self.cast = game, cast
        self._open: dict[str, _Question] = {}
        self._memory = {agent: _Memory() for agent in deal.seats}
        self._script: _Script | None = None
        self.trajectory = Trajectory(deal, "")
        with _Blame(self):
            game.reset(seed=deal.seed, options=deal.options)
            self.trajectory.start = game.start_key()
        self.over = False

    def asks(self) -> list[tuple[str, Request]]:
        """New questions: to the agent to move, and to those whose observations are final now.

        Those that a fork's script answers are not among them; they may have ended the episode.
        """
        asked: list[tuple[str, Request]] = []
        while not self.over and (new := self._new()):
            for agent, question in new:
                said = self._script and self._script.answer(agent, question, len(self._memory[agent].turns))
                if said is None:
                    asked.append((agent, question.request))
                elif not self.over:
                    self.answer(agent, said)
        return asked

    def _new(self) -> list[tuple[str, _Question]]:
        self._pose()
        new = [(agent, question) for agent, question in self._open.items() if not question.sent]
        for _, question in new:
            question.sent = True
        return new

    def answer(self, agent: str, said: Completion | Failure) -> None:
        """Take an answer; answers are played in the game's order, whatever order they come in."""
        if isinstance(said, Failure):
            said = Completion("", (), (), (), said.finish, usage=said.usage)
        self._open[agent].answer = said
        while not self.over:
            agent = self.game.agent_selection
            question = self._open.get(agent)
            if question is None or question.answer is None:
                return
            del self._open[agent]
            self._play(agent, question, question.answer)

    @property
    def waits(self) -> bool:
        """Whether questions are open."""
        return bool(self._open)

    def force(self, action: str | None) -> None:
        """Play `action` for the agent to move, as if it had said so; None is an answer that says nothing."""
        self._pose()
        agent = self.game.agent_selection
        self.answer(agent, self._saying(agent, action))

    def follow(self, fork: Fork, past: Trajectory) -> None:
        """From here on, those whom `fork` gives something to say say it, without being asked."""
        muted = {agent: self._saying(agent, action) for agent, action in fork.muted}
        kept: dict[tuple[str, int], Turn] = {}
        if fork.keeps:
            left = past.turns[fork.turn[1]]
            kept = {(turn.agent, turn.nth): turn for turn in past.turns if turn is not left}
        self._script = _Script(muted, kept)
        if fork.action is not None:
            self.force(fork.action)

    def _saying(self, agent: str, action: str | None) -> Completion:
        role = self.cast.roles[self.trajectory.deal.seats[agent]]
        return Completion(role.phrase(action) if action else "", (), (), (), "stop" if action else "aborted")

    def replay(self, past: Trajectory, until: TurnId) -> None:
        """Play the turns of `past` before `until` again, exactly, keeping their ids."""
        self.trajectory.parent = until
        for turn in past.turns:
            # Asked as it was then, so that everybody has read as far as they had.
            self._pose()
            if turn.id == until:
                return
            self._record(turn, self._open.pop(turn.agent).reads)
        raise ValueError(f"turn {until} is not in episode {past.id}")

    def _pose(self) -> None:
        """Have a question open for each agent that can be asked now."""
        agent = self.game.agent_selection
        for who in (agent, *self.game.infos[agent]["together"]):
            if who not in self._open:
                self._open[who] = self._question(who)

    def _question(self, agent: str) -> _Question:
        with _Blame(self):
            observation = self.game.observe(agent)
        info, memory, deal = self.game.infos[agent], self._memory[agent], self.trajectory.deal
        unread = self._unread(agent, info["hears"])
        view = View(agent, observation, info, memory.turns, unread, memory.read)
        seed = seed_of(
            self.cast.seed, deal.purpose, deal.episode, deal.branch, agent, len(memory.turns), info["attempt"]
        )
        request = self.cast.request(deal.seats[agent], view, seed)
        memory.read += unread
        reads = [turn.id for turn in unread]
        if memory.turns:
            reads.append(memory.turns[-1].id)
        return _Question(request, info, reads)

    def _unread(self, agent: str, hears: tuple[str, ...]) -> list[Turn]:
        """What the others said that `agent` can hear and has not read yet, in playing order; it has, then."""
        heard, unread = self._memory[agent].heard, []
        for speaker in hears:
            if speaker != agent:
                turns, known = self._memory[speaker].turns, heard.get(speaker, 0)
                unread += turns[known:]
                heard[speaker] = len(turns)
        return sorted(unread, key=_place)

    def _play(self, agent: str, question: _Question, said: Completion) -> None:
        deal, info = self.trajectory.deal, question.info
        role = deal.seats[agent]
        turn = Turn(
            id=(deal.episode, len(self.trajectory.turns)),
            agent=agent,
            nth=len(self._memory[agent].turns),
            attempt=info["attempt"],
            role=role,
            request=question.request,
            completion=said,
            action=None if said.finish in _UNSAID else self.cast.roles[role].parse(said.text, info["legal"]),
            problem=info.get("problem", ""),
        )
        self._record(turn, question.reads)

    def _record(self, turn: Turn, reads: list[TurnId]) -> None:
        game = self.game
        self.trajectory.add(turn, reads)
        self._memory[turn.agent].turns.append(turn)
        with _Blame(self):
            game.step(turn.action or "")
            if game.paid:
                self.trajectory.rewards += [
                    Reward(payee, value, turn.id, name)
                    for payee, parts in game.paid.items()
                    for name, value in parts.items()
                    if value
                ]
            self._bury()

    def _bury(self) -> None:
        """Step agents that are done, as PettingZoo asks; the episode is over when all are."""
        game = self.game
        while game.agents and _done(game, game.agent_selection):
            if all(_done(game, agent) for agent in game.agents):
                break
            game.step(None)
        else:
            if game.agents:
                return
        self.over = True
        self.trajectory.findings = game.findings()
        self.trajectory.end = "terminated" if any(game.terminations.values()) or not game.agents else "truncated"


def _asked(request: Request) -> tuple[object, ...]:
    """All that an answer depends on, beside weights and luck."""
    return request.messages, request.continues, request.options, request.state


def _place(turn: Turn) -> int:
    return turn.id[1]


def _done(game: Game, agent: str) -> bool:
    return game.terminations[agent] or game.truncations[agent]


_UNSAID = ("overflow", "aborted")
"""Requests that failed: no text, so no role is asked what it means."""
