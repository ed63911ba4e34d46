"""Simulator in this process: plays episodes and forks, and samples or scores texts by the policies' engines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count

from marl.core.errors import EpisodeWithoutOutcomeError, ProgramDivergedError
from marl.core.graph import Trajectory
from marl.core.spending import SpendingLimit, SpendingLimitReachedError
from marl.core.types import (
    Completion,
    CompletionFailure,
    Deal,
    Fork,
    Metrics,
    Purpose,
    Request,
    Ticket,
    TurnId,
)
from marl.core.usage import RemoteUsage
from marl.protocols import (
    AddedPlayer,
    Engine,
    EngineConfig,
    Game,
    GameConfig,
    IneffectiveCallsNotice,
    ModelCallingEngine,
    PolicyMetricsEngine,
    ProgramModelCall,
    RemoteEngine,
    RewardTransform,
    SleepingEngine,
    WorkerProcessEngine,
    models,
)
from marl.protocols.roles import RoleTemplateError
from marl.rollout.added_policies import AddedPolicies
from marl.rollout.base import WAIT_S, BaseSimulator, EngineMap, FinishedEpisode, ProcessActivity
from marl.rollout.casting import RefusedModelCallError, RoleRequestBuilder
from marl.rollout.episode import Episode
from marl.rollout.game_errors import EpisodeLimits, GameError
from marl.rollout.inner_turns import CallRecognitionAndLatency
from marl.rollout.request_router import Answer, AnswerCallback, CallHandler, RequestRouter


@dataclass(slots=True)
class _OpenEpisode:
    """Episode in progress, with its open requests to engines and the number of its tokens so far."""

    ticket: Ticket
    episode: Episode
    rewards: RewardTransform | None
    requests: set[Ticket] = field(default_factory=set)
    """Tickets of the episode's unanswered requests."""
    calls: dict[tuple[str, int], Ticket] = field(default_factory=dict)
    """(agent that runs a program, id of the program's open call) -> ticket of the request that answers the call."""
    tokens: int = 0
    """Number of tokens sampled or scored for the episode."""


@dataclass(slots=True)
class SubmittedRequests:
    """Requests that were submitted to engines together, and the answers received so far."""

    tickets: list[Ticket] = field(default_factory=list)
    answers: dict[Ticket, Answer] = field(default_factory=dict)

    def answers_if_complete(self) -> list[Answer] | None:
        """Return the answers in the order of the requests, or None while an answer is missing."""
        if len(self.answers) < len(self.tickets):
            return None
        return [self.answers[ticket] for ticket in self.tickets]


class RolloutSimulator(BaseSimulator):
    """Simulator of games with roles at their seats and the engines of the roles' policies, all in this process."""

    def __init__(
        self,
        game: GameConfig | Mapping[str, GameConfig],
        casting: RoleRequestBuilder,
        engines: Mapping[str, Engine],
        deadline_s: float = 600.0,
        worker_delay: int | None = None,
        max_turns: int = 10_000,
    ) -> None:
        """Create a simulator.

        Args:
            game: settings of the only game, or name of a game in deals -> settings.
            casting: roles, with the seed of their samples.
            engines: policy -> engine that samples for the policy.
            deadline_s: maximum time without any answer, and of one call to the game or a role, in seconds.
            worker_delay: number of rounds between a worker's request and its answer (see `RequestRouter`).
            max_turns: maximum number of turns of an episode, above which `GameError` is raised, and of the model calls
                of a program.
        """
        self.router = RequestRouter(engines.values(), deadline_s, worker_delay)
        super().__init__(game if isinstance(game, Mapping) else {"": game}, casting, self.router.step)
        self.engines = engines
        self._limits = EpisodeLimits(max_turns, deadline_s)
        self.added = AddedPolicies({})
        """Policies of `add_policy`. Without slot pools, saved weights cannot be added."""
        self.call_notes: dict[TurnId, CallRecognitionAndLatency] | None = None
        """Id of an inner turn -> fact about its call, or None if they are not collected."""
        self.limit: SpendingLimit | None = None
        """Limit of tokens and cost to which this simulator's requests are charged, or None. An episode with a request
        beyond the limit is left out. Variants have none."""
        self._tickets = count()
        self._idle: dict[str, list[Game]] = {name: [] for name in self.games}
        """Name of a game -> built instances without an episode, for later episodes."""
        self._episodes: dict[Ticket, _OpenEpisode] = {}
        """Episodes in progress."""
        self._finished: dict[Ticket, FinishedEpisode] = {}
        """Results of finished episodes that the caller has not collected yet."""

    def variant(
        self, casting: RoleRequestBuilder, engines: EngineMap | None = None, game: str | None = None
    ) -> RolloutSimulator:
        combined = dict(self.engines)
        for name, engine in (engines or {}).items():
            combined[name] = engine.build(None) if isinstance(engine, EngineConfig) else engine
        other = RolloutSimulator(self.games if game is None else self.games[game], casting, combined)
        # All variants share a router, which steps their engines in the order of first requests.
        other.router, other._advance_play = self.router, self.router.step
        other._limits, other.added = self._limits, self.added
        other.tokens, other.critic, other.drops = self.tokens, self.critic, self.drops
        return other

    def start(
        self, deals_and_forks: Sequence[Deal | Fork], reward_transform: RewardTransform | None = None
    ) -> list[Ticket]:
        tickets: list[Ticket] = []
        try:
            for deal, fork in self.fork_names.episode_starts(deals_and_forks):
                tickets.append(self.start_episode(deal, fork, reward_transform))
        except (GameError, RoleTemplateError):
            self.cancel(tickets)
            raise
        return tickets

    def poll(self, wait_s: float) -> list[tuple[Ticket, Trajectory | None]]:
        return [(ticket, result.trajectory) for ticket, result in self.poll_results(wait_s)]

    def poll_results(self, wait_s: float) -> list[tuple[Ticket, FinishedEpisode]]:
        """Return (ticket, result) of the episodes finished since the last call. Wait at most `wait_s` for the first."""
        if not self._finished and self._episodes:
            self.router.step(wait_s)
        finished, self._finished = list(self._finished.items()), {}
        return finished

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        for ticket in tickets:
            self._finished.pop(ticket, None)
            opened = self._episodes.pop(ticket, None)
            if opened and opened.requests:
                self.router.cancel(opened.requests)
                if self.limit:
                    self.limit.forfeit(opened.requests)

    def _is_in_flight(self, ticket: Ticket) -> bool:
        return ticket in self._episodes

    def _take_trajectory(self, ticket: Ticket) -> Trajectory | None:
        return self._finished.pop(ticket).trajectory

    def ask(self, requests: Sequence[Request], purpose: Purpose = "credit") -> list[Answer]:
        submitted = self.submit_requests(requests, purpose)
        try:
            while (answers := submitted.answers_if_complete()) is None:
                self.router.step(WAIT_S)
        finally:
            self.router.cancel(submitted.tickets)
        return answers

    def submit_requests(self, requests: Sequence[Request], purpose: Purpose) -> SubmittedRequests:
        """Submit `requests` without waiting. Later calls of `router.step` add the answers to the returned object."""
        submitted = SubmittedRequests()

        def store_received_answer(ticket: Ticket, answer: Answer) -> None:
            submitted.answers[ticket] = answer
            self._add_to_token_counter(answer, purpose)

        for request in requests:
            try:
                if request.purpose != purpose:
                    request = replace(request, purpose=purpose)
                ticket = self._submit_request(request, store_received_answer)
            except SpendingLimitReachedError as error:
                # No request has a negative ticket, so the refusal is stored as the answer to one.
                ticket = -1 - len(submitted.tickets)
                submitted.answers[ticket] = CompletionFailure("aborted", str(error))
            submitted.tickets.append(ticket)
        return submitted

    def load_weights(self, policy: str, weights: models.Weights, version: int) -> None:
        self.engines[policy].load_weights(policy, weights, version)

    def add_policy(self, policy_name: str, player: AddedPlayer) -> None:
        if policy_name in self.engines:
            raise ValueError(f"policy {policy_name!r} is one of the simulator's own; choose another name")
        self.added.add_policy(policy_name, player)

    def remove_policy(self, policy_name: str) -> None:
        if policy_name not in self.added.slots:
            raise ValueError(f"no policy {policy_name!r} was added here")
        engine = self.added.slots[policy_name].engine
        # An engine that the simulator's own policies use stays in the router; only the adapter is removed.
        if id(engine) not in self._own_engines_by_id:
            self.router.remove_engine(engine)
        self.added.remove_policy(policy_name)

    @property
    def _own_engines_by_id(self) -> dict[int, Engine]:
        """Identity -> engine, for all engines of the run's own policies. A shared engine is listed once."""
        return {id(engine): engine for engine in self.engines.values()}

    def take_failure_messages(self) -> list[str]:
        messages, self.router.failures.messages = self.router.failures.messages, []
        return messages

    def take_step_metrics(self) -> Metrics:
        metrics = self.step_metrics()
        self.end_step()
        return metrics

    def step_metrics(self) -> Metrics:
        """Return `policy/NAME/METRIC` -> value in this training step so far, of the run's own policies alone."""
        metrics: Metrics = {}
        for engine in self._own_engines_by_id.values():
            if isinstance(engine, PolicyMetricsEngine):
                for policy, policy_metrics in engine.step_metrics().items():
                    for name, value in policy_metrics.items():
                        metrics[f"policy/{policy}/{name}"] = value
        return metrics

    def end_step(self) -> None:
        """Reset the engines' metrics for a new training step."""
        for engine in (*self._own_engines_by_id.values(), *self.added.pool_engines()):
            if isinstance(engine, PolicyMetricsEngine):
                engine.end_step()

    def put_engines_to_sleep(self) -> None:
        for engine in (*self._own_engines_by_id.values(), *self.added.pool_engines()):
            if isinstance(engine, SleepingEngine):
                engine.sleep()

    def process_activities(self) -> list[ProcessActivity]:
        """Return the activity of each engine that runs programs."""
        activities: list[ProcessActivity] = []
        for policy, engine in self.engines.items():
            if isinstance(engine, ModelCallingEngine):
                attempts = engine.program_attempt_counts()
                doing = f"{attempts.describe(self.drops.diverged[policy])}, {attempts.running} running"
                name, open_requests = f"programs of {policy}", self.router.count_open_requests(engine)
                activities.append(ProcessActivity(name, "", doing, attempts.since, open_requests, attempts.repeated))
        return activities

    @property
    def usage_by_policy(self) -> dict[str, RemoteUsage]:
        usage: dict[str, RemoteUsage] = {}
        for policy, engine in self.engines.items():
            if isinstance(engine, RemoteEngine):
                usage[policy] = engine.spent.get(policy, RemoteUsage())
        return usage

    def restore_usage(self, usage_by_policy: Mapping[str, RemoteUsage]) -> None:
        for policy, engine in self.engines.items():
            if isinstance(engine, RemoteEngine) and policy in usage_by_policy:
                engine.spent[policy] = usage_by_policy[policy]

    def start_episode(
        self, deal: Deal, fork: Fork | None = None, reward_transform: RewardTransform | None = None
    ) -> Ticket:
        """Start an episode, at the beginning of the game or after `fork`, and return its ticket."""
        if deal.game not in self.games:
            raise ValueError(f"no game {deal.game!r} here; games: {', '.join(map(repr, self.games))}")
        ticket, idle = next(self._tickets), self._idle[deal.game]
        try:
            game = idle.pop() if idle else self.games[deal.game].build()
            episode = Episode(game, deal, self.casting, self._limits)
            if fork:
                episode.replay_to_fork(fork)
        except GameError as error:
            self._drop_failed_episode(ticket, error)
        except EpisodeWithoutOutcomeError as error:
            self._drop_episode_without_outcome(ticket, error)
        else:
            opened = self._episodes[ticket] = _OpenEpisode(ticket, episode, reward_transform)
            self._continue_episode(opened)
        return ticket

    def _continue_episode(
        self, opened: _OpenEpisode, agent: str = "", request_ticket: Ticket = -1, answer: Answer | None = None
    ) -> None:
        """Play `answer` of `agent`, if given, and submit the episode's next requests or store its result."""
        episode, ticket = opened.episode, opened.ticket
        if answer is not None:
            opened.requests.discard(request_ticket)
            opened.tokens += self._add_to_token_counter(answer, episode.trajectory.deal.purpose)
            if isinstance(answer, CompletionFailure) and answer.finish == "unjudged":
                self._drop_episode_without_outcome(ticket, None, opened.tokens)
                return
        try:
            if answer is not None:
                episode.play_agent_answer(agent, answer)
            requests = episode.take_new_requests()
        except GameError as error:
            self.cancel([ticket])
            self._drop_failed_episode(ticket, error, opened.tokens)
            return
        except EpisodeWithoutOutcomeError as error:
            self._drop_episode_without_outcome(ticket, error, opened.tokens)
            return
        if not episode.done:
            try:
                for next_agent, request in requests:
                    deliver = partial(self._continue_episode, opened, next_agent)
                    opened.requests.add(self._submit_request(request, deliver, opened, next_agent))
            except SpendingLimitReachedError:
                self._drop_episode_without_outcome(ticket, None, opened.tokens)
            return
        self.cancel([ticket])
        trajectory = episode.trajectory
        # Only a game whose episode ended is used again, because a game that raised an error may be in any state.
        self._idle[trajectory.deal.game].append(episode.game)
        if opened.rewards:
            trajectory = opened.rewards(trajectory)
        if self.call_notes is not None:
            self.call_notes |= episode.call_notes
        self._finished[ticket] = FinishedEpisode(trajectory, opened.tokens)

    def _handle_model_call_or_notice(
        self,
        opened: _OpenEpisode,
        agent: str,
        engine: ModelCallingEngine,
        call: ProgramModelCall | IneffectiveCallsNotice,
    ) -> None:
        """Submit the request for a model call of the program of `agent`, or cancel void calls."""
        if isinstance(call, IneffectiveCallsNotice):
            opened.episode.discard_ineffective_calls(agent, call)
            ids = [number for owner, number in opened.calls if owner == agent] if call.calls is None else call.calls
            tickets = [opened.calls.pop((agent, number)) for number in ids if (agent, number) in opened.calls]
            opened.requests.difference_update(tickets)
            self.router.cancel(tickets)
            return
        try:
            request = opened.episode.request_or_recorded_answer_of_model_call(agent, call)
        except RefusedModelCallError as error:
            engine.deliver_model_call_answer(call.id, CompletionFailure("aborted", str(error)))
            return
        if isinstance(request, Completion):
            # An absent agent answers with an empty text, and its program goes on. Recorded failures have a reason.
            is_absent = request.finish == "aborted" and not request.reason
            engine.deliver_model_call_answer(call.id, replace(request, finish="stop") if is_absent else request)
            return
        deliver = partial(self._record_and_deliver_model_call_answer, opened, agent, engine, call)
        try:
            ticket = self._submit_request(request, deliver)
        except SpendingLimitReachedError:
            self._drop_episode_without_outcome(opened.ticket, None, opened.tokens)
            return
        except ValueError as error:
            # The engine may refuse a program's request, for instance messages that the chat template cannot render.
            opened.episode.discard_ineffective_calls(agent, IneffectiveCallsNotice(call.parent, (call.id,)))
            engine.deliver_model_call_answer(call.id, CompletionFailure("aborted", str(error)))
            return
        self.router.mark_as_call_of_program(ticket)
        opened.calls[agent, call.id] = ticket
        opened.requests.add(ticket)

    def _record_and_deliver_model_call_answer(
        self,
        opened: _OpenEpisode,
        agent: str,
        engine: ModelCallingEngine,
        call: ProgramModelCall,
        ticket: Ticket,
        answer: Answer,
    ) -> None:
        """Record `answer` to a model call of the program of `agent`, and pass it on to the program."""
        opened.requests.discard(ticket)
        opened.calls.pop((agent, call.id), None)
        opened.tokens += self._add_to_token_counter(answer, opened.episode.trajectory.deal.purpose)
        opened.episode.record_call_answer(agent, call, answer)
        engine.deliver_model_call_answer(call.id, answer)

    def _submit_request(
        self, request: Request, deliver: AnswerCallback, opened: _OpenEpisode | None = None, agent: str = ""
    ) -> Ticket:
        """Submit `request`, for a turn of `agent` in `opened` or for no turn, to its engine. `deliver` gets the answer.

        Raises:
            SpendingLimitReachedError: if the answer might exceed the simulator's limit.
        """
        slot, limit = self.added.slots.get(request.policy), self.limit
        engine = slot.engine if slot else self.engines[request.policy]
        handle_call: CallHandler | None = None
        if opened and isinstance(engine, ModelCallingEngine):
            handle_call = partial(self._handle_model_call_or_notice, opened, agent)
        if limit is None:
            return self.router.submit(engine, request, deliver, slot and slot.policy, handle_call)
        most = RemoteUsage(completion_tokens=request.sampling.max_tokens)
        if isinstance(engine, RemoteEngine):
            most = engine.max_usage(request)
        elif isinstance(engine, WorkerProcessEngine):
            most = RemoteUsage()
        limit.check(most.completion_tokens, most.cost)

        def settle_and_deliver(ticket: Ticket, answer: Answer) -> None:
            sampled = len(answer.token_ids) - answer.prefix_tokens if isinstance(answer, Completion) else 0
            usage = answer.usage or RemoteUsage(completion_tokens=sampled)
            limit.settle(ticket, usage.completion_tokens, usage.cost)
            deliver(ticket, answer)

        ticket = self.router.submit(engine, request, settle_and_deliver, slot and slot.policy, handle_call)
        limit.reserve(ticket, most.completion_tokens, most.cost)
        return ticket

    def _drop_episode_without_outcome(
        self, ticket: Ticket, error: EpisodeWithoutOutcomeError | None, token_count: int = 0
    ) -> None:
        """End an episode that cannot be judged. `error` is the cause, or None if the cause was logged already."""
        self.unverified += 1
        if isinstance(error, ProgramDivergedError):
            self.drops.diverged[error.policy] += 1
        if error is not None:
            self.router.failures.messages.append(f"an episode is left out: {error}")
        self.cancel([ticket])
        self._finished[ticket] = FinishedEpisode(None, token_count)

    def _drop_failed_episode(self, ticket: Ticket, error: GameError, token_count: int = 0) -> None:
        self.count_dropped_episode(error)
        self._finished[ticket] = FinishedEpisode(None, token_count, error)

    def _add_to_token_counter(self, answer: Answer, purpose: Purpose) -> int:
        """Add the number of generated tokens in `answer` to the counter of `purpose`, and return the number."""
        if isinstance(answer, CompletionFailure):
            return 0
        tokens = len(answer.token_ids) - answer.prefix_tokens
        self.tokens[purpose] += tokens
        return tokens
