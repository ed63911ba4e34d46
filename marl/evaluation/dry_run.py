"""Dry run: a few random episodes through the real prompts of a scenario, before any weights are loaded."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean

from marl.core.config import shorten
from marl.core.errors import EngineError
from marl.core.graph import Trajectory
from marl.core.seeds import hash_to_seed
from marl.core.types import Completion, Deal, Problem, Purpose, Request, Turn, VerifierCase
from marl.core.watchdog import CallTimeoutError
from marl.engines.reward_model.settings import RewardModelConfig
from marl.engines.scripted import Random
from marl.engines.workers.settings import Verifiers, WorkerEngineConfig, verifier_case_to_json
from marl.evaluation.model_facts import ModelConfigFiles, ModelFacts, known_model_facts
from marl.metrics.trajectory_metrics import trajectories_by_game
from marl.protocols import Engine, PromptContext
from marl.protocols.tasks import overall_score
from marl.rollout.casting import ProgramCallPrompt, RoleRequestBuilder
from marl.rollout.game_errors import GameError
from marl.rollout.simulator import RolloutSimulator
from marl.scenario.games import game_shares
from marl.scenario.schema import Scenario
from marl.scenario.teacher_checks import students_by_teacher
from marl.text.tool_calls import with_tool_fields_as_text

EPISODES = 8
"""Maximum number of episodes per game."""
SOFT_TIME_LIMIT_S = 3.0
"""Time after which no further episode starts [s], once every role has had a turn. The time suffices for all
episodes of the shipped games: otherwise the size of a tiny model's vocabulary would depend on the machine's speed."""
LIMIT_S = 10.0
"""Time limit of one episode [s]."""
_MAX_GOLD_PROBLEMS = 3
"""Maximum number of problems per game whose right answers the verifiers grade as a test."""
_PLACEHOLDER_MOVE = "1"
"""Move of a role that may answer with any text, if the game gives no example answers."""


class RandomPlayRequestBuilder(RoleRequestBuilder):
    """Casting for random play: every request offers an answer to choose, a placeholder if the game offers none."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario.roles, scenario.schedule.seed)
        self._verdicts: dict[str, str] = {}
        self._rule_policies: set[str] = set()
        for name, policy in scenario.policies.items():
            if isinstance(policy.engine, RewardModelConfig):
                self._verdicts[name] = json.dumps({"scores": {policy.engine.name: 0.5}})
            if policy.engine.is_rule_based:
                self._rule_policies.add(name)
        self.free_text_roles: set[str] = set()
        """Roles with a request that accepts any text and has no example answers."""
        self.audible_roles: set[tuple[str, str]] = set()
        """Pairs (reading role, read role) of different agents, where the first may read turns of the second."""
        self.request_count = 0
        """Number of requests so far."""
        self.last_role = ""
        """Role of the latest request, other than model calls of programs."""
        self.deadline_s = math.inf
        """Deadline for new requests (`time.monotonic()`)."""

    def build_request(
        self,
        role_name: str,
        context: PromptContext,
        seed: int,
        policy: str | None = None,
        purpose: Purpose = "train",
    ) -> Request:
        """Return the request for an agent's turn.

        Raises:
            TimeoutError: if the time `deadline_s` has passed.
        """
        self._check_deadline()
        request = super().build_request(role_name, context, seed, policy, purpose)
        self.last_role = role_name
        heard_agents = {*context.info["hears"]} - {context.agent}
        self.audible_roles |= {(role_name, turn.role) for turn in context.turns if turn.agent in heard_agents}
        return self._with_placeholder_answer(role_name, request)

    def build_call_request(
        self, role_name: str, prompt: ProgramCallPrompt, example_moves: Sequence[str], seed: int
    ) -> Request:
        self._check_deadline()
        request = super().build_call_request(role_name, prompt, example_moves, seed)
        return self._with_placeholder_answer(role_name, request)

    def _check_deadline(self) -> None:
        if time.monotonic() > self.deadline_s:
            raise TimeoutError(f"an episode took longer than {LIMIT_S:g} s")

    def _with_placeholder_answer(self, role_name: str, request: Request) -> Request:
        self.request_count += 1
        if verdict := self._verdicts.get(request.policy):
            return replace(request, examples=(verdict,))
        if request.options is None and not request.examples and request.policy not in self._rule_policies:
            self.free_text_roles.add(role_name)
            example = _PLACEHOLDER_MOVE
            with suppress(ValueError):  # a role may be unable to phrase the placeholder, which is then used as it is
                example = self.roles[role_name].role_for_request(request.seed).phrase(_PLACEHOLDER_MOVE)
            return replace(request, examples=(example,))
        return request


@dataclass(frozen=True)
class DryRun:
    """Random episodes of a scenario, with statistics and errors derived from the episodes."""

    scenario: Scenario
    episodes: Sequence[Trajectory]
    free_text_roles: frozenset[str]
    """Roles with a turn that accepts any text and has no example answers."""
    unfinished_requests: int | None
    """Number of requests in the episode that exceeded the time limit, or None if all episodes ended."""
    last_role: str = ""
    """Role of the last request, other than calls of programs. After a timeout, its answer may have been missing."""
    audible_roles: frozenset[tuple[str, str]] = frozenset()
    """Pairs (reading role, read role) of different agents, where the first may read turns of the second."""
    configs: ModelConfigFiles = field(default_factory=dict)
    """config.json files of models that are not on this machine."""
    rejected_gold_errors: Sequence[str] = ()
    """Error messages for verifier checks that rejected every right answer."""

    @cached_property
    def turns_by_role(self) -> Mapping[str, Sequence[Turn]]:
        """Role -> turns of the role, in the order of the roles' first turns."""
        turns: dict[str, list[Turn]] = {}
        for episode in self.episodes:
            for turn in episode.turns:
                turns.setdefault(turn.role, []).append(turn)
        return turns

    @cached_property
    def model_facts(self) -> Mapping[str, ModelFacts]:
        """Policy -> facts of the policy's model that are known without loading weights."""
        models: dict[str, ModelFacts] = {}
        for name, policy in self.scenario.policies.items():
            if policy.model:
                models[name] = known_model_facts(policy.model, self.texts_for_vocabulary(name), self.configs)
        return models

    def texts_for_vocabulary(self, policy: str) -> set[str]:
        """Return prompts, options and example answers of `policy`, of the policies with the same base model, and of
        the policies that a teacher without a role teaches."""
        names = {policy}
        if policy not in self.scenario.sampling_policies:
            names.update(students_by_teacher(self.scenario).get(policy, ()))
        model = self.scenario.policies[policy].model
        if base := model and model.shared_base():
            for name, config in self.scenario.policies.items():
                if config.model and config.model.shared_base() == base:
                    names.add(name)
        texts: set[str] = set()
        for turns in self.turns_by_role.values():
            for turn in turns:
                if turn.request.policy in names:
                    texts.update(with_tool_fields_as_text(message).content for message in turn.request.messages)
                    texts.update((turn.request.options or {}).values())
                    texts.update(turn.request.examples)
        return texts

    @property
    def prompt_token_counts(self) -> Mapping[str, Sequence[int]]:
        """Role -> number of tokens of each prompt. Roles whose tokens cannot be counted are missing."""
        return self._prompt_token_counts_and_errors[0]

    @property
    def chat_template_errors(self) -> Sequence[str]:
        """Error messages for roles with a prompt that the model's chat template refuses."""
        return self._prompt_token_counts_and_errors[1]

    @cached_property
    def _prompt_token_counts_and_errors(self) -> tuple[Mapping[str, Sequence[int]], Sequence[str]]:
        """The values of `prompt_token_counts` and `chat_template_errors`."""
        counts: dict[str, list[int]] = {}
        errors: list[str] = []
        for role, turns in self.turns_by_role.items():
            facts = self.model_facts.get(turns[0].request.policy)
            if facts and facts.count_prompt_tokens:
                try:
                    counts[role] = [facts.count_prompt_tokens(turn.request) for turn in turns]
                except ValueError as error:
                    errors.append(f"roles.{role}: {error}")
            settings = self.scenario.roles[role]
            find_fault = facts and facts.tool_continuation_fault
            has_tools = settings.listed_tools or any(turn.request.tools for turn in turns)
            appends_results = settings.history == "append" and has_tools
            if find_fault and appends_results and (fault := find_fault()):
                errors.append(f"roles.{role}.history: append cannot continue after a tool call: {fault}")
        return counts, errors

    def legal_answer_tokens(self, role: str) -> Mapping[str, int]:
        """Return answer -> its number of tokens, for the legal moves and example answers of `role`.

        The result is empty if the tokens of the role's model cannot be counted.
        """
        turns, lengths = self.turns_by_role[role], dict[str, int]()
        request = turns[0].request
        count = self.model_facts[request.policy].count_prompt_tokens if role in self.prompt_token_counts else None
        if count is None:
            return lengths
        *before, last = request.messages
        for turn in turns:
            for text in (*(turn.request.options or {}).values(), *turn.request.examples):
                if text not in lengths:
                    # The answer is appended to the last message, because a chat template may refuse another message.
                    prolonged = (*before, last._replace(content=f"{last.content} {text}"))
                    lengths[text] = count(replace(request, messages=prolonged)) - self.prompt_token_counts[role][0]
        return lengths

    def role_turns_per_episode(self, role: str) -> float:
        """Return the mean number of turns of `role` in an episode, each game weighted by its share of the deals."""
        mean = 0
        for game, share in (game_shares(self.scenario.games) or {"": 1.0}).items():
            if game in self.episodes_by_game:
                counts = [count_turns_of_roles(episode, (role,)) for episode in self.episodes_by_game[game]]
                mean += share * fmean(counts)
        return mean

    @cached_property
    def episodes_by_game(self) -> Mapping[str, Sequence[Trajectory]]:
        """Game -> its random episodes."""
        return trajectories_by_game(self.episodes)

    @property
    def episodes_per_step(self) -> int:
        """Number of episodes of a training step."""
        schedule = self.scenario.schedule
        return schedule.groups * schedule.group_size


def play_dry_run(scenario: Scenario, config_files: ModelConfigFiles | None = None) -> DryRun:
    """Play up to `EPISODES` random episodes of each game, at least one, within the time limits.

    Raises:
        ValueError: if a game or a role fails.
    """
    casting, games = (
        RandomPlayRequestBuilder(scenario),
        {name: view.game for name, view in scenario.scenario_by_game().items()},
    )
    # Rule-based engines keep answering in the dry run, except reward models. All other policies play at random.
    engines: dict[str, Engine] = {}
    for name, policy in scenario.policies.items():
        engine = policy.engine
        if not engine.is_rule_based or isinstance(engine, RewardModelConfig):
            engine = Random()
        elif isinstance(engine, WorkerEngineConfig):
            engine = engine.model_copy(update={"workers": 1})
        engines[name] = engine.build(None)
    simulator = RolloutSimulator(games, casting, engines, LIMIT_S, max_turns=scenario.schedule.max_turns)
    start_s, unfinished = time.monotonic(), None
    episodes: list[Trajectory] = []
    active_roles = set[str]()
    for index in range(EPISODES):
        name = f"dry_run.{index}"
        seed = hash_to_seed(scenario.schedule.seed, name)
        deals: list[Deal] = []
        for game, view in scenario.scenario_by_game().items():
            deals.append(Deal(f"{name}{game and '.'}{game}", name, seed, view.seats, game=game))
        before, casting.deadline_s = casting.request_count, time.monotonic() + LIMIT_S
        try:
            played = simulator.play(deals)
        except (TimeoutError, CallTimeoutError):
            unfinished = casting.request_count - before
            break
        except (GameError, EngineError, ValueError) as error:
            raise ValueError(f"a random episode failed: {error}") from error
        episodes += played
        for episode in played:
            active_roles.update(turn.role for turn in episode.turns)
        if time.monotonic() - start_s > (SOFT_TIME_LIMIT_S if active_roles >= scenario.roles.keys() else LIMIT_S):
            break
    if not episodes and unfinished is None:
        raise ValueError(f"no random episode could be judged: {'; '.join(simulator.take_failure_messages())}")
    return DryRun(
        scenario,
        episodes,
        frozenset(casting.free_text_roles),
        unfinished,
        casting.last_role,
        frozenset(casting.audible_roles),
        config_files or {},
        _rejected_gold_answer_errors(scenario, simulator, episodes),
    )


def _rejected_gold_answer_errors(
    scenario: Scenario, simulator: RolloutSimulator, episodes: Sequence[Trajectory]
) -> list[str]:
    """Return an error for each check that rejects the right answers of all problems tried.

    A wrong setting, such as `numeric` for answers in words, would otherwise show as a run that never succeeds.
    """
    problems: list[Problem] = []
    for view in scenario.scenario_by_game().values():
        problems += [problem for problem in view.game.problems(_MAX_GOLD_PROBLEMS) if problem.answer]
    errors: list[str] = []
    for name, policy in scenario.policies.items():
        turns = (turn for episode in episodes for turn in episode.turns if turn.request.policy == name)
        turn = next(turns, None)
        if turn is None or not problems or not isinstance(policy.engine, Verifiers):
            continue
        for check_name, check in policy.engine.checks.items():
            if not check.checks_correctness:
                continue
            requests: list[Request] = []
            for problem in problems:
                case = VerifierCase(problem, check.phrase(problem.answer), problem.answer)
                requests.append(replace(turn.request, state=verifier_case_to_json(case)))
            reasons: list[str] = []
            for answer in simulator.ask(requests, "eval"):
                verdict = json.loads(answer.text) if isinstance(answer, Completion) else {}
                if overall_score(verdict.get("scores", {}).get(check_name, 1.0)) <= 0:
                    reasons.append(verdict["why"][check_name])
            if len(reasons) == len(problems):
                errors.append(
                    f"policies.{name}.engine.checks.{check_name}: {check.kind!r} accepts none of the right answers of "
                    f"{len(problems)} problems, such as {shorten(repr(problems[0].answer))}: {shorten(reasons[0])}"
                )
    return errors


def count_turns_of_roles(trajectory: Trajectory, roles: Collection[str]) -> int:
    """Return the number of turns of `roles` in an episode."""
    return sum(turn.role in roles for turn in trajectory.turns)
