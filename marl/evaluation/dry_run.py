"""Dry run: a few random episodes through the real prompts of a scenario, before any weights are loaded."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean

from marl.core.config import choices_hint
from marl.core.graph import Trajectory
from marl.core.seeds import seed_of
from marl.core.types import Deal, Request, Turn
from marl.core.watchdog import HangError
from marl.engines.reward_model.settings import RewardModelConfig
from marl.engines.scripted import Random, ScriptedConfig
from marl.engines.workers.settings import WorkerEngineConfig
from marl.evaluation.held_out import summarize_play
from marl.evaluation.model_facts import Configs, ModelFacts, facts_of
from marl.metrics.trajectory_metrics import trajectories_by_game
from marl.models.tiny import Tiny
from marl.protocols import Engine, PromptContext, RoleConfig
from marl.rollout.casting import RoleCasting
from marl.rollout.episode import GameError
from marl.rollout.simulator import RolloutSimulator
from marl.scenario.games import game_shares
from marl.scenario.schema import Scenario

EPISODES = 8
"""Maximum number of episodes per game."""
ENOUGH_S = 3.0
"""Time after which no further episode starts [s], once every role has had a turn. It is long enough for the shipped
games to play all episodes: otherwise the size of a tiny model's vocabulary would depend on the machine's speed."""
LIMIT_S = 10.0
"""Time limit of one episode [s]."""
_PLACEHOLDER_MOVE = "1"
"""Move of a role that may answer with any text, if the game gives no example answers."""


class RandomCasting(RoleCasting):
    """Roles whose requests always have an answer for random play, a placeholder if the game offers none."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario.roles, scenario.schedule.seed)
        engines = {name: policy.engine for name, policy in scenario.policies.items()}
        self._verdicts = {
            name: json.dumps({"scores": {engine.name: 0.5}})
            for name, engine in engines.items()
            if isinstance(engine, RewardModelConfig)
        }
        self._rule_policies = {name for name, engine in engines.items() if engine.is_rule_based}
        self.free_text_roles: set[str] = set()
        """Roles with a request that accepts any text and has no example answers."""
        self.audible: set[tuple[str, str]] = set()
        """(role, role of another agent whose turns the first role could hear)"""
        self.count = 0
        """Number of requests so far."""
        self.end = math.inf
        """Deadline for new requests (`time.monotonic()`)."""

    def request(self, role: str, view: PromptContext, seed: int) -> Request:
        """Return the request for an agent's turn.

        Raises:
            TimeoutError: if the deadline `end` is over.
        """
        if time.monotonic() > self.end:
            raise TimeoutError(f"an episode took longer than {LIMIT_S:g} s")
        request = super().request(role, view, seed)
        heard_agents = {*view.info["hears"]} - {view.agent}
        self.audible |= {(role, turn.role) for turn in view.turns if turn.agent in heard_agents}
        self.count += 1
        if verdict := self._verdicts.get(request.policy):
            return replace(request, examples=(verdict,))
        if request.options is None and not request.examples and request.policy not in self._rule_policies:
            self.free_text_roles.add(role)
            return replace(request, examples=(_placeholder_text(self.roles[role]),))
        return request


def _placeholder_text(role: RoleConfig) -> str:
    try:
        return role.phrase(_PLACEHOLDER_MOVE)
    except ValueError:
        return _PLACEHOLDER_MOVE


@dataclass(frozen=True)
class DryRun:
    """Random episodes of a scenario, with the problems and figures derived from them."""

    scenario: Scenario
    episodes: Sequence[Trajectory]
    free_text_roles: frozenset[str]
    """Roles with a turn that accepts any text and has no example answers."""
    unfinished: int | None
    """Number of requests in the episode that exceeded the time limit, or None if all episodes ended."""
    audible: frozenset[tuple[str, str]] = frozenset()
    """(role, role of another agent whose turns the first role could hear)"""
    configs: Configs = field(default_factory=dict)

    @cached_property
    def turns(self) -> Mapping[str, Sequence[Turn]]:
        """Role -> turns of the role, in the order of the roles' first turns."""
        turns: dict[str, list[Turn]] = {}
        for episode in self.episodes:
            for turn in episode.turns:
                turns.setdefault(turn.role, []).append(turn)
        return turns

    @cached_property
    def models(self) -> Mapping[str, ModelFacts]:
        """Policy -> facts of its model that are known without the weights."""
        return {
            name: facts_of(policy.model, self.texts(name), self.configs)
            for name, policy in self.scenario.policies.items()
            if policy.model
        }

    def texts(self, policy: str) -> set[str]:
        """Return prompts, options and example answers of `policy` and of the policies with the same base model."""
        policies = self.scenario.policies
        bases = {name: config.model.shared_base() for name, config in policies.items() if config.model}
        names = {name for name, base in bases.items() if name == policy or (base and base == bases[policy])}
        texts: set[str] = set()
        for turns in self.turns.values():
            for request in (turn.request for turn in turns if turn.request.policy in names):
                texts.update(message.content for message in request.messages)
                texts.update((request.options or {}).values())
                texts.update(request.examples)
        return texts

    @property
    def prompt_tokens(self) -> Mapping[str, Sequence[int]]:
        """Role -> number of tokens of each of its prompts, without roles whose tokens cannot be counted."""
        return self._token_counts[0]

    @cached_property
    def _token_counts(self) -> tuple[Mapping[str, Sequence[int]], Sequence[str]]:
        """`prompt_tokens`, and a message for each role with a prompt that the model's chat template refuses."""
        counts: dict[str, list[int]] = {}
        refusals: list[str] = []
        for role, turns in self.turns.items():
            facts = self.models.get(turns[0].request.policy)
            if facts and facts.count:
                try:
                    counts[role] = [facts.count(turn.request) for turn in turns]
                except ValueError as error:
                    refusals.append(f"roles.{role}: {error}")
        return counts, refusals

    def per_episode(self, role: str) -> float:
        """Return the mean number of turns of `role` in an episode, each game weighted by its share of the deals."""
        mean = 0
        for game, share in (game_shares(self.scenario.games) or {"": 1.0}).items():
            if game in self._by_game:
                counts = [sum(turn.role == role for turn in episode.turns) for episode in self._by_game[game]]
                mean += share * fmean(counts)
        return mean

    @cached_property
    def _by_game(self) -> Mapping[str, Sequence[Trajectory]]:
        return trajectories_by_game(self.episodes)

    def expected(self, turn: Turn) -> str | None:
        """Return the game's hint at the expected answer of `turn`, or None if rules and prompts already state it."""
        game = next(episode.deal.game for episode in self.episodes if episode.id == turn.id[0])
        return self.scenario.by_game()[game].game.answer_hints().get(turn.agent)

    @property
    def episodes_a_step(self) -> int:
        schedule = self.scenario.schedule
        return schedule.groups * schedule.group_size

    # --- problems and notes ------------------------------------------------------------------------------------------

    def problems(self) -> Iterator[str]:
        """Yield a message for each error that would end a run of the scenario or prevent learning."""
        yield from self._missing_examples()
        yield from self._unreadable_roles()
        yield from self._too_many_minibatches()
        yield from self._token_counts[1]

    def notes(self) -> Iterator[str]:
        """Yield a warning for each likely mistake in the scenario that does not prevent a run."""
        scenario = self.scenario
        if self.unfinished is not None:
            yield f"an episode had not ended after {LIMIT_S:g} s and {self.unfinished:,} questions of random play"
        for role in (role for role in scenario.roles if role not in self.turns and self.episodes):
            yield f"roles.{role}: did not speak in {len(self.episodes)} random episodes"
        yield from self._unused_hearing()
        yield from self._missing_best_metric()
        for role, counts in self.prompt_tokens.items():
            settings = scenario.roles[role]
            context, longest = self.models[settings.policy].context, max(counts) + settings.sampling.max_tokens
            if context is not None and longest > context:
                yield (
                    f"roles.{role}: a prompt of {max(counts):,} tokens and an answer of up to "
                    f"{settings.sampling.max_tokens:,} are more than the {context:,} that the model of "
                    f"policies.{settings.policy} was made for"
                )

    def _missing_best_metric(self) -> Iterator[str]:
        """Yield a note if no random episode has the held-out measure by which the best checkpoint is chosen."""
        name, played = self.scenario.evaluate.best_by, self._by_game
        for game, view in self.scenario.by_game().items():
            scope = f"eval/{game}/held_out/" if game else "eval/held_out/"
            if name and name.startswith(scope) and view.game.measure_names() is None and game in played:
                figures = summarize_play(played[game])
                if (short := name.removeprefix(scope)) not in figures and not short.startswith("role/"):
                    choices = [figure for figure in figures if not figure.startswith("role/")]
                    hint = choices_hint(short, choices)
                    yield f"evaluate.keep_best: no random episode had a measure {short!r}; {hint}"

    def _unused_hearing(self) -> Iterator[str]:
        """Yield a note for each pair of roles where the first hears the second but uses none of its texts or facts."""
        used = set[tuple[str, str]]()
        for episode in self.episodes:
            turns = {turn.id: turn for turn in episode.turns}
            for source, reader, kinds in episode.graph.edges(data="kinds"):
                # A `gated` edge alone decides who may speak; it puts no text into a prompt.
                if {*kinds} - {"gated"}:
                    used.add((turns[reader].role, turns[source].role))
        for role, speaker in sorted(self.audible - used):
            yield (
                f"roles.{role}: hears role {speaker!r}, but no prompt in {len(self.episodes)} random episodes used its "
                "words; show them in the `prompt`, as {% for turn in heard %}{{ turn.text }}{% endfor %}, or do not "
                "let it hear them"
            )

    def _missing_examples(self) -> Iterator[str]:
        """Yield a message for each role that needs example answers for random play or warm-up and has none."""
        for role in sorted(self.free_text_roles):
            policy = self.scenario.policies[self.scenario.roles[role].policy]
            base = policy.model and (policy.model.shared_base() or policy.model)
            if isinstance(base, Tiny) and (base.warm_up or base.vocabulary == "words"):
                reason = "its tiny model learns words and answers from random play"
            elif isinstance(policy.engine, ScriptedConfig):
                reason = f"engine {policy.engine.kind!r} plays"
            elif "random" in self.scenario.evaluate.against:
                reason = "`random` of evaluate.against plays"
            else:
                continue
            yield f"roles.{role}: any text is a move and the game gives no examples of moves, but {reason}"

    def _unreadable_roles(self) -> Iterator[str]:
        """Yield a message for each role that cannot parse the texts it should produce itself."""
        for role, turns in self.turns.items():
            if role not in self.free_text_roles and not any(turn.action for turn in turns):
                text = turns[0].completion.text
                yield f"roles.{role}: reads no move in what it is to say itself, such as {text!r}"

    def _too_many_minibatches(self) -> Iterator[str]:
        """Yield a message for each learner with more minibatches than samples in an update."""
        if not self.episodes or self.scenario.experience.plays_groups:
            return
        for name, policy in self.scenario.policies.items():
            roles = self.scenario.roles.items()
            learning = [role for role, settings in roles if settings.policy == name and settings.trainable]
            turn_count = max(sum(turn.role in learning for turn in episode.turns) for episode in self.episodes)
            episode_count = self.episodes_a_step * policy.update_every
            samples = turn_count * episode_count
            minibatches = dict(policy.learner or ()).get("minibatches", 1)
            if minibatches > max(samples, 1):
                yield (
                    f"policies.{name}.learner.minibatches: {minibatches}, but an update has about {samples} samples: "
                    f"{episode_count} episodes with up to {turn_count} turns each"
                )


def dry_run(scenario: Scenario, configs: Configs | None = None) -> DryRun:
    """Play up to `EPISODES` random episodes of each game, at least one, within the time limits.

    Raises:
        ValueError: if a game or a role fails.
    """
    casting, games = RandomCasting(scenario), {name: view.game for name, view in scenario.by_game().items()}
    simulator = RolloutSimulator(games, casting, _engines(scenario), LIMIT_S, max_turns=scenario.schedule.max_turns)
    began, unfinished = time.monotonic(), None
    episodes: list[Trajectory] = []
    for index in range(EPISODES):
        name = f"dry_run.{index}"
        seed = seed_of(scenario.schedule.seed, name)
        deals: list[Deal] = []
        for game, view in scenario.by_game().items():
            deals.append(Deal(f"{name}{game and '.'}{game}", name, seed, view.seats, game=game))
        before, casting.end = casting.count, time.monotonic() + LIMIT_S
        try:
            episodes += simulator.play(deals)
        except (TimeoutError, HangError):
            unfinished = casting.count - before
            break
        except (GameError, ValueError) as error:
            raise ValueError(f"a random episode failed: {error}") from error
        active_roles = set[str]()
        for episode in episodes:
            active_roles.update(turn.role for turn in episode.turns)
        if time.monotonic() - began > (ENOUGH_S if active_roles >= scenario.roles.keys() else LIMIT_S):
            break
    if not episodes and unfinished is None:
        raise ValueError(f"no random episode could be judged: {'; '.join(simulator.take_failure_messages())}")
    return DryRun(
        scenario, episodes, frozenset(casting.free_text_roles), unfinished, frozenset(casting.audible), configs or {}
    )


def _engines(scenario: Scenario) -> dict[str, Engine]:
    """Return policy -> engine: rule-based engines are kept, reward models and all other policies play at random."""
    engines: dict[str, Engine] = {}
    for name, policy in scenario.policies.items():
        engine = policy.engine
        if not engine.is_rule_based or isinstance(engine, RewardModelConfig):
            engine = Random()
        elif isinstance(engine, WorkerEngineConfig):
            engine = engine.model_copy(update={"workers": 1})
        engines[name] = engine.build(None)
    return engines
