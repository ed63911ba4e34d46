"""Episode in progress, which turns a game's observations into requests, and completions into moves and turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from marl.core.errors import ProgramDivergedError
from marl.core.graph import Trajectory
from marl.core.seeds import episode_name_for_seeding, hash_text_to_seed, hash_to_seed
from marl.core.types import Completion, CompletionFailure, Deal, EdgeKind, Fork, Info, Request, Reward, Turn, TurnId
from marl.host.untrusted_text import replace_surrogates
from marl.protocols import Game, IneffectiveCallsNotice, ProgramModelCall, PromptContext
from marl.protocols.programs import ProgramCallerResult, parse_program_answer
from marl.rollout.casting import RoleRequestBuilder
from marl.rollout.forks import PrescribedForkAnswers
from marl.rollout.game_end import step_done_agents_and_check_game_is_over
from marl.rollout.game_errors import (
    EpisodeGuard,
    EpisodeLimits,
    GameError,
    describe_for_replay,
    game_name_for_messages,
)
from marl.rollout.inner_turns import (
    SINGLE_KINDS,
    CallRecognitionAndLatency,
    InnerTurns,
    ProgramCallKey,
    RecordedCallAnswers,
    keyed_inner_turns,
)
from marl.rollout.pending_turns import OwnAndReadTurns, PendingTurn, empty_completion_if_failed, take_unread_turns
from marl.rollout.verdict_imitation import imitation_penalties
from marl.text.origins import origins_of

_DEFAULT_LIMITS = EpisodeLimits()
_NO_RECORDED_CALLS = RecordedCallAnswers()
_NO_NOTES: Mapping[TurnId, CallRecognitionAndLatency] = {}


class Episode:
    """Episode of one game in progress, with its trajectory so far."""

    def __init__(
        self, game: Game, deal: Deal, casting: RoleRequestBuilder, limits: EpisodeLimits = _DEFAULT_LIMITS
    ) -> None:
        self.game, self.casting, self.limits = game, casting, limits
        self.call_notes: Mapping[TurnId, CallRecognitionAndLatency] = _NO_NOTES
        """Id of an inner turn -> fact about its call."""
        self._open: dict[str, PendingTurn] = {}
        """Agent -> its turn that is not played yet."""
        self._memory = {agent: OwnAndReadTurns([], {}, []) for agent in deal.seats}
        self._marked: dict[str | bool, dict[TurnId, Turn]] = {}
        """Agent -> cache of its own turns with marks of their origin, for its prompts. True (False) -> cache of others'
        turns, with (without) their hidden thoughts."""
        self._script: PrescribedForkAnswers | None = None
        """Answers of the fork that this episode continues, or None if policies answer everything."""
        self._recorded_calls = _NO_RECORDED_CALLS
        """Answers to programs' model calls that the fork which this episode continues prescribes."""
        self._begin(Trajectory(deal, ""))
        self.played_turns: list[Turn] = []
        """Turns in the order of the game's steps, without inner turns."""
        with self._guard:
            self._guard.running = EpisodeGuard.GAME
            game.reset(seed=deal.seed, options=deal.options)
            # The key of the start includes the game's name, since equal starts of two games are not peers.
            self.trajectory.start = f"{deal.game}/{game.start_state_key()}" if deal.game else game.start_state_key()
        self.done = False

    def _begin(self, trajectory: Trajectory) -> None:
        """Set `trajectory`, and prepare what each turn needs: guards around foreign code, and the seed's beginning."""
        self.trajectory, deal = trajectory, trajectory.deal
        # Guards that referred to the episode would leave it to the garbage collector to free both.
        self.description_for_replay = partial(describe_for_replay, trajectory)
        self._guard = EpisodeGuard(self.game, self.description_for_replay, self.limits.deadline_s)
        name = episode_name_for_seeding(deal.episode)
        self._seed_prefix = f"{self.casting.seed}/{deal.purpose}/{name}/{deal.branch}"
        """First parts of what is hashed to the seed of each request."""

    def copy(self, game: Game, seats: Mapping[str, str] | None = None) -> Episode:
        """Return an independent copy of the episode that continues on `game`. Unanswered requests are sent again.

        `game` must be in a state that the agent to move cannot distinguish from this episode's state. `seats` maps
        agents to their roles in the copy (default: unchanged).
        """
        deal, other = self.trajectory.deal, Episode.__new__(Episode)
        other.game, other.casting, other.limits = game, self.casting, self.limits
        other._begin(self.trajectory.copy(replace(deal, seats=seats) if seats else deal))
        other.played_turns, other._recorded_calls = list(self.played_turns), _NO_RECORDED_CALLS
        other.done, other._script, other._open = self.done, None, {}
        for agent, question in self._open.items():
            inner = other._inner_turns_if_program(question.info, question.reads)
            other._open[agent] = replace(question, sent=False, inner=inner)
        other._memory = {}
        for agent, memory in self._memory.items():
            # Containers are copied, but not the turns in them, which are frozen and can be shared.
            other._memory[agent] = OwnAndReadTurns(list(memory.turns), dict(memory.read_counts), list(memory.read))
        other._marked = {reader: dict(turns) for reader, turns in self._marked.items()}
        return other

    def take_new_requests(self) -> list[tuple[str, Request]]:
        """Return (agent, new request) of the agent to move, and of other agents whose observation is final already.

        Requests that a fork answers are left out. Their answers are played, which may end the episode.
        """
        requests: list[tuple[str, Request]] = []
        has_played = True
        while has_played and not self.done:
            self._make_pending_turns()
            has_played = False
            new = [(agent, question) for agent, question in self._open.items() if not question.sent]
            for agent, question in new:
                question.sent = True
                scripted = self._scripted_answer(agent, question, self._script) if self._script else None
                if scripted is None:
                    requests.append((agent, question.request))
                elif not self.done:
                    self.play_agent_answer(agent, scripted)
                    has_played = True
        return requests

    def _scripted_answer(self, agent: str, question: PendingTurn, script: PrescribedForkAnswers) -> Completion | None:
        """Return the answer of `agent` that the fork prescribes, or None if the policy is asked."""
        if agent in script.moves:
            return self._completion_that_parses_to_action(agent, script.moves[agent], question.request)
        # Programs have no turn number here, so they always run again: the answers to their calls may change.
        nth = None if question.inner else len(self._memory[agent].turns) + question.has_summary
        return script.recorded_answer_if_request_is_equal(agent, question.request, nth)

    def play_agent_answer(self, agent: str, answer: Completion | CompletionFailure) -> None:
        """Store the answer of `agent`, and play stored answers as long as the agent to move has one."""
        # Only a refused prompt, or the prompt after it, may be replaced.
        question = self._open[agent]
        if isinstance(answer, CompletionFailure) or question.full:
            if self._replace_full_prompt(agent, answer):
                return
            answer = empty_completion_if_failed(answer)
        if not answer.text.isascii():
            answer = replace(answer, text=replace_surrogates(answer.text))
        question.answer = answer
        with self._guard:
            while not self.done:
                agent = self.game.agent_selection
                question = self._open.get(agent)
                if question is None or question.answer is None:
                    return
                del self._open[agent]
                self._play_stored_answer(agent, question, question.answer)

    def _play_stored_answer(self, agent: str, question: PendingTurn, completion: Completion) -> None:
        """Parse `completion`, the answer to `question`, and play the turn of `agent`. Called within the guard."""
        trajectory, casting, info, request = self.trajectory, self.casting, question.info, question.request
        deal, turns, guard = trajectory.deal, trajectory.turns, self._guard
        role = deal.seats[agent]
        if question.inner:
            completion = self._add_inner_turns(question, question.inner)
        if question.full:
            self._add_summary_and_edges_of_shorter_prompt(agent, question)
            request = question.request
        guard.running = role
        move = None
        # A failed request has no text, so there is no move to parse.
        if completion.finish not in ("overflow", "aborted"):
            move = casting.roles[role].parse_completion(request, completion, info["legal"])
            if move is not None:
                # A role that decodes JSON escapes may produce surrogates, which no file can store.
                move = replace_surrogates(move)
        spoofs: tuple[TurnId, ...] | None = None
        if judge := casting.judging_roles.get(role):
            spoofs = judge.find_imitated_verdicts(request, turns)
        guard.running = EpisodeGuard.OWN_CODE
        turn_id, nth = (deal.episode, len(turns)), len(self._memory[agent].turns)
        attempt, problem, stage = info["attempt"], info.get("problem", ""), info.get("stage", "")
        # With names, Python would take twice as long to pass the arguments.
        turn = Turn(turn_id, agent, nth, attempt, role, request, completion, move, problem, spoofs, stage)
        self._add_turn_and_step_game(turn, question.reads)

    def _replace_full_prompt(self, agent: str, answer: Completion | CompletionFailure) -> bool:
        """Replace the request of `agent` if its prompt was refused as too long, or if `answer` is a summary for it.

        Return True if the agent is asked again. False: `answer` is to be played; a refusal counts as an empty answer.
        """
        question, deal, own_turns = self._open[agent], self.trajectory.deal, self._memory[agent].turns
        if isinstance(answer, Completion):
            return question.take_summary(answer, own_turns)
        seed = hash_to_seed(self._seed_prefix, agent, len(own_turns), "summary")
        return question.replace_refused_prompt(answer, self.casting.roles[deal.seats[agent]], own_turns, seed)

    def _add_summary_and_edges_of_shorter_prompt(self, agent: str, question: PendingTurn) -> None:
        """Add the summary in the prompt of `question`, if any, as an inner turn, and find the turns that it reads."""
        memory, summary_id = self._memory[agent], (self.trajectory.id, len(self.trajectory.turns))
        if summary := question.summary_turn(agent, self.trajectory.deal.seats[agent], summary_id, len(memory.turns)):
            edges = {memory.turns[-1].id: SINGLE_KINDS["self"]}
            self.trajectory.add(summary, edges, edges)
            memory.turns.append(summary)
        question.reads = self._edge_kinds_by_source_turn(agent, question.request, question.info)

    def request_or_recorded_answer_of_model_call(self, agent: str, call: ProgramModelCall) -> Request | Completion:
        """Return the request for a model call of the program of `agent`, or its answer without a request.

        In a fork the answer may be a recorded or scripted one. A call beyond `max_turns` is answered by a refusal.
        """
        inner = self._open[agent].inner
        assert inner is not None
        if inner.call_count >= self.limits.max_turns:
            reason = f"the program has made {inner.call_count} calls, the most that schedule.max_turns allows"
            return Completion("", (), (), (), "aborted", reason=reason)
        with self._guard:
            self._guard.running = self.trajectory.deal.seats[call.agent]
            return inner.request_or_recorded_answer_of_model_call(call)

    def record_call_answer(self, agent: str, call: ProgramModelCall, answer: Completion | CompletionFailure) -> None:
        """Record `answer` to a model call of the program of `agent`."""
        question = self._open.get(agent)
        if question and question.inner:
            question.inner.record_call_answer(call.id, empty_completion_if_failed(answer))

    def discard_ineffective_calls(self, agent: str, notice: IneffectiveCallsNotice) -> None:
        """Delete model calls of the program of `agent` that had no effect, as `notice` says."""
        if inner := self._open[agent].inner:
            if notice.calls is None:
                inner.discard_all_calls()
            else:
                inner.discard_ineffective_calls(notice.calls)

    def _inner_turns_if_program(self, info: Info, reads: Mapping[TurnId, frozenset[EdgeKind]]) -> InnerTurns | None:
        """Return an empty record of a program's model calls, or None if `info` is not for a program."""
        if "callers" not in info:
            return None
        read_turns = [self.trajectory.turns[index] for _, index in reads]
        return InnerTurns(self.casting, self.trajectory.deal, info["callers"], read_turns, self._recorded_calls)

    def _add_inner_turns(self, program_turn: PendingTurn, inner_turns: InnerTurns) -> Completion:
        """Add the inner turns of a program that has ended, and return its answer with the results of its calls.

        Raises:
            ProgramDivergedError: if the program of a fork did not repeat its calls before the fork.
        """
        completion = program_turn.answer
        assert completion is not None
        counts = {agent: len(memory.turns) for agent, memory in self._memory.items()}
        self._guard.running = "caller"
        turns = inner_turns.finish_turns(self.trajectory, counts, program_turn.info.get("problem", ""))
        self._guard.running = EpisodeGuard.OWN_CODE
        self.call_notes = {**self.call_notes, **inner_turns.notes}
        if turns is None:
            message = f"the program of a fork has diverged from its record {self.description_for_replay()}"
            raise ProgramDivergedError(program_turn.request.policy, message)
        answer = parse_program_answer(completion.text)
        results = dict(answer.callers) if answer else {}
        for turn, edges in turns:
            self.trajectory.add(turn, edges, edges)
            self._memory[turn.agent].turns.append(turn)
            text, move, before = turn.completion.text, turn.action or "", results.get(turn.agent)
            calls, reported = (before.calls, before.reported) if before else (0, {})
            results[turn.agent] = ProgramCallerResult(text=text, move=move, calls=calls + 1, reported=reported)
        if not (answer and turns):
            return completion
        program_turn.reads = {
            **program_turn.reads,
            **inner_turns.quoted_turn_edges(answer.answer, [turn for turn, _ in turns]),
        }
        return replace(completion, text=answer.model_copy(update={"callers": results}).to_canonical_json())

    def force_action(self, action: str | None) -> None:
        """Play `action` for the agent to move, in place of its policy's answer. None plays an empty answer."""
        self._make_pending_turns()
        agent = self.game.agent_selection
        self.play_agent_answer(agent, self._completion_that_parses_to_action(agent, action, self._open[agent].request))

    def _completion_that_parses_to_action(
        self, agent: str, action: str | None, request: Request | None = None
    ) -> Completion:
        """Return a completion from which the role of `agent` parses `action`, or an empty one for None."""
        role = self.casting.roles[self.trajectory.deal.seats[agent]]
        if request:
            role = role.role_for_request(request.seed)
        return Completion(role.phrase(action) if action else "", (), (), (), "stop" if action else "aborted")

    def replay_to_fork(self, fork: Fork) -> None:
        """Replay the recorded turns before the fork, keep their ids, and use the fork's answers from then on."""
        past, until = fork.trajectory, fork.trajectory.turns[fork.index]
        self.trajectory.parent = until.id
        answers = {
            agent: self._completion_that_parses_to_action(agent, action) for agent, action in fork.scripted_moves
        }
        recorded: dict[tuple[str, int], Turn] = {}
        if fork.keeps_unchanged_answers:
            recorded = {(turn.agent, turn.nth): turn for turn in past.turns if turn.id != until.id}
        prefixes = {(until.agent, until.nth): fork.prefix}
        self._script = PrescribedForkAnswers(dict(fork.scripted_moves), recorded, prefixes)
        # Inner turns of a program precede the program's answer, and are collected until it follows.
        inner_turns: list[Turn] = []
        for turn in past.turns[: fork.index]:
            if turn.inner:
                inner_turns.append(turn)
                continue
            # Requests are built again, so that every agent has read the same turns as in the past episode.
            self._make_pending_turns()
            question = self._open.pop(turn.agent)
            self._add_recorded_turns(past, inner_turns)
            differs = inner_turns or turn.request.messages != question.request.messages
            reads = past.incoming_edge_kinds(turn.id) if differs else question.reads
            with self._guard:
                self._add_turn_and_step_game(turn, reads)
            inner_turns = []
        if until.inner and until.agent == self.game.agent_selection:
            # Turn `until` is a summary of a full prompt. If the fork prescribes none, the agent is asked for it again.
            self._make_pending_turns()
            if fork.action is not None:
                summary = self._completion_that_parses_to_action(until.agent, fork.action)
                self._open[until.agent].prescribe_summary(summary, until.request, self._memory[until.agent].turns)
            return
        has_summary = any(turn.agent == until.agent for turn in inner_turns)
        if not until.inner and (fork.action is not None or until.agent in answers or has_summary):
            # The forked turn's program does not run, so its recorded calls are kept, as is the summary in its prompt.
            self._make_pending_turns()
            if has_summary:
                reads = past.incoming_edge_kinds(until.id)
                self._open[until.agent].use_recorded_prompt(until.request, reads, fork.prefix)
            self._add_recorded_turns(past, inner_turns)
            if fork.action is not None:
                self.force_action(fork.action)
            return
        # Programs after the fork run anew. A program around the fork must repeat its calls up to the fork.
        prescribed: dict[ProgramCallKey, Completion] = {}
        if fork.keeps_unchanged_answers:
            for key, turn in keyed_inner_turns(past.turns):
                if turn.agent not in answers:
                    prescribed.setdefault(key, turn.completion)
        self._recorded_calls = RecordedCallAnswers({}, prescribed, answers)
        self._make_pending_turns()
        question = self._open[self.game.agent_selection]
        if question.inner:
            calls = dict(keyed_inner_turns(past.turns[len(self.trajectory.turns) :]))
            inherited = {key: turn for key, turn in calls.items() if turn in inner_turns}
            forced = {key: turn for key, turn in calls.items() if turn.id == until.id}
            prescribed = {key: turn for key, turn in prescribed.items() if key not in forced}
            if fork.action is not None:
                prescribed |= dict.fromkeys(forced, self._completion_that_parses_to_action(until.agent, fork.action))
            question.inner.use_recorded_calls(RecordedCallAnswers(inherited, prescribed, answers, calls))

    def _add_recorded_turns(self, recorded_trajectory: Trajectory, turns: Sequence[Turn]) -> None:
        """Add inner turns of the recorded episode `recorded_trajectory`, with their edges."""
        for turn in turns:
            edges = recorded_trajectory.incoming_edge_kinds(turn.id)
            self.trajectory.add(turn, edges, edges)
            self._memory[turn.agent].turns.append(turn)

    def _make_pending_turns(self) -> None:
        """Create missing pending turns of the agent to move and of agents whose observation is final already."""
        agent = self.game.agent_selection
        with self._guard:
            # A game of a user may leave the agent out, who would then never be asked.
            for reader in (agent, *self.game.infos[agent]["together"]):
                if reader not in self._open:
                    self._open[reader] = self._make_pending_turn(reader)

    def _make_pending_turn(self, agent: str) -> PendingTurn:
        """Return the pending turn of `agent` in the game's present state, and mark the turns in its prompt as read.

        Called within the guard.
        """
        casting, trajectory, game, guard = self.casting, self.trajectory, self.game, self._guard
        guard.running = EpisodeGuard.GAME
        observation = game.observe(agent)
        guard.running = EpisodeGuard.OWN_CODE
        info, memory, deal = game.infos[agent], self._memory[agent], trajectory.deal
        unread = take_unread_turns(agent, info["hears"], self._memory)
        role, count = deal.seats[agent], len(memory.turns)
        own_turns: Sequence[Turn] = memory.turns
        new_turns: Sequence[Turn] = unread
        read_turns: Sequence[Turn] = memory.read
        if casting.prompts_have_earlier_turns(role):
            hears_thoughts = casting.roles[role].hears_thoughts
            mark, cache = casting.mark_with_origins, self._marked.setdefault(hears_thoughts, {})
            own_turns = mark(own_turns, self._marked.setdefault(agent, {}), reads_own_turns=True)
            new_turns = mark(unread, cache, hides_thoughts=not hears_thoughts)
            read_turns = mark(read_turns, cache, hides_thoughts=not hears_thoughts)
        view = PromptContext(
            agent, observation, info, own_turns, new_turns, read_turns, trajectory.turns, self.played_turns
        )
        seed = hash_text_to_seed(f"{self._seed_prefix}/{agent}/{count}/{info['attempt']}")
        guard.running = role
        request = casting.build_request(role, view, seed, policy := deal.policies.get(role), deal.purpose)
        if self._script:
            build_with_seed = partial(casting.build_request, role, view, policy=policy, purpose=deal.purpose)
            request = self._script.request_as_recorded((agent, count), request, casting.roles[role], build_with_seed)
        guard.running = EpisodeGuard.OWN_CODE
        memory.read += unread
        pending = PendingTurn(request, info, self._edge_kinds_by_source_turn(agent, request, info))
        if "callers" in info:
            pending.inner = self._inner_turns_if_program(info, pending.reads)
        return pending

    def _edge_kinds_by_source_turn(self, agent: str, request: Request, info: Info) -> dict[TurnId, frozenset[EdgeKind]]:
        """Return (id of a source turn -> edge kinds) for the turn of `request`, with own turns last."""
        if not (turns := self.trajectory.turns):
            return {}
        edges: list[tuple[TurnId, EdgeKind]] = [mark[:2] for mark in request.marks]
        if request.continues:
            edges.append((self._memory[agent].turns[-1].id, "self"))
        for step, kind in origins_of(info["state"]):
            if isinstance(step, int):
                edges.append((self.played_turns[step].id, kind))
        for step in info.get("gates", ()):
            edges.append((self.played_turns[step].id, "gated"))
        kinds: dict[TurnId, frozenset[EdgeKind]] = {}
        for source, kind in edges:
            earlier = kinds.get(source)
            kinds[source] = earlier | SINGLE_KINDS[kind] if earlier else SINGLE_KINDS[kind]
        if len(kinds) < 2:
            return kinds
        return dict(sorted(kinds.items(), key=lambda edge: (turns[edge[0][1]].agent == agent, edge[0][1])))

    def _add_turn_and_step_game(self, turn: Turn, source_edges: Mapping[TurnId, frozenset[EdgeKind]]) -> None:
        """Add `turn` with edges from `source_edges` to the trajectory, and step the game with the turn's action.

        Called within the guard.
        """
        game, trajectory = self.game, self.trajectory
        trajectory.add_with_edges(turn, source_edges)
        self._memory[turn.agent].turns.append(turn)
        self.played_turns.append(turn)
        if turn.spoofs:
            role = self.casting.roles[turn.role]
            trajectory.rewards += imitation_penalties(role, turn, trajectory.turns)
        self._guard.running = EpisodeGuard.GAME
        game.step(turn.action or "")
        if game.reward_components:
            for payee, components in game.reward_components.items():
                for name, value in components.items():
                    if value:
                        cause = game.reward_causes.get((payee, name), "")
                        trajectory.rewards.append(Reward(payee, float(value), turn.id, name, cause))
        if step_done_agents_and_check_game_is_over(game):
            self.done = True
            trajectory.findings = game.episode_measures()
            terminated = any(game.terminations.values()) or not game.agents
            trajectory.end = "terminated" if terminated else "truncated"
        self._guard.running = EpisodeGuard.OWN_CODE
        turns = len(self.played_turns)
        if not self.done and turns >= self.limits.max_turns:
            problem = f"is not over after {turns} turns (schedule.max_turns) {self.description_for_replay()}"
            raise GameError(f"{game_name_for_messages(self.game)} {problem}")
