"""A dry run: a few random episodes through the real prompts of a scenario, before a weight is loaded."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING

from marl.config import nearest
from marl.engines.reward_model.settings import RewardSeat
from marl.engines.scripted import Random, ScriptedConfig
from marl.engines.workers.settings import RuleConfig
from marl.evaluation.held_out import summarize_play
from marl.evaluation.model_facts import Configs, ModelFacts, facts_of
from marl.metrics.summaries import by_game
from marl.models.tiny import Tiny
from marl.rollout.casting import RoleCasting
from marl.rollout.episode import GameError
from marl.rollout.simulator import RolloutSimulator
from marl.scenario.games import shares
from marl.seeds import seed_of
from marl.types import Deal
from marl.watchdog import HangError

if TYPE_CHECKING:
    from marl.graph import Trajectory
    from marl.protocols import Engine, RoleConfig, View
    from marl.scenario.schema import Scenario
    from marl.types import Request, Turn

EPISODES = 8
"""Most episodes that are played."""
ENOUGH_S = 3.0
"""Time after which no further episode is begun, unless a role has not spoken yet: so long that shipped games play all,
as figures such as the size of a vocabulary would otherwise depend on the speed of the machine."""
LIMIT_S = 10.0
"""Time after which an episode is broken off."""
_ANYTHING = "1"
"""A move of a role that may say anything, where the game gives no examples."""


class RandomCasting(RoleCasting):
    """Roles of which each question can be answered by random play: where the game has no answer to offer, by ours."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario.roles, scenario.schedule.seed)
        engines = {name: policy.engine for name, policy in scenario.policies.items()}
        self._verdicts = {
            name: json.dumps({"scores": {engine.name: 0.5}})
            for name, engine in engines.items()
            if isinstance(engine, RewardSeat)
        }
        self._by_rule = {name for name, engine in engines.items() if engine.rule_bound}
        self.free: set[str] = set()
        """Roles that were asked where any text is a move and the game gives no examples."""
        self.audible: set[tuple[str, str]] = set()
        """(role, another agent's role whose turns it could hear)"""
        self.count = 0
        """Requests so far."""
        self.end = math.inf
        """Time at which no further request may be made."""

    def request(self, role: str, view: View, seed: int) -> Request:
        """Return a request; raise TimeoutError if it is too late."""
        if time.monotonic() > self.end:
            raise TimeoutError(f"an episode took longer than {LIMIT_S:g} s")
        request = super().request(role, view, seed)
        heard = {*view.info["hears"]} - {view.agent}
        self.audible |= {(role, turn.role) for turn in view.turns if turn.agent in heard}
        self.count += 1
        if verdict := self._verdicts.get(request.policy):
            return replace(request, examples=(verdict,))
        if request.options is None and not request.examples and request.policy not in self._by_rule:
            self.free.add(role)
            return replace(request, examples=(_anything(self.roles[role]),))
        return request


def _anything(role: RoleConfig) -> str:
    try:
        return role.phrase(_ANYTHING)
    except ValueError:
        return _ANYTHING


@dataclass(frozen=True)
class DryRun:
    """Random episodes of a scenario, and what can be told from them."""

    scenario: Scenario
    episodes: Sequence[Trajectory]
    free: frozenset[str]
    """Roles that may say anything somewhere, without examples of what."""
    unfinished: int | None
    """Number of questions in an episode that was broken off, as it took too long; None: all came to their end."""
    audible: frozenset[tuple[str, str]] = frozenset()
    """(role, another agent's role whose turns it could hear)"""
    configs: Configs = field(default_factory=dict)

    @cached_property
    def turns(self) -> Mapping[str, Sequence[Turn]]:
        """Role -> its turns, in the order in which the roles first spoke."""
        turns: dict[str, list[Turn]] = {}
        for turn in (turn for episode in self.episodes for turn in episode.turns):
            turns.setdefault(turn.role, []).append(turn)
        return turns

    @cached_property
    def models(self) -> Mapping[str, ModelFacts]:
        """Policy -> what is known of its model without its weights."""
        return {
            name: facts_of(policy.model, self.texts(name), self.configs)
            for name, policy in self.scenario.policies.items()
            if policy.model
        }

    def texts(self, policy: str) -> set[str]:
        """Return what the policy, and any that shares its base, reads and writes."""
        policies = self.scenario.policies
        bases = {name: other.model.shared() for name, other in policies.items() if other.model}
        names = {name for name, base in bases.items() if name == policy or (base and base == bases[policy])}
        requests = [turn.request for turns in self.turns.values() for turn in turns if turn.request.policy in names]
        return {
            text
            for request in requests
            for text in (
                *(message.content for message in request.messages),
                *(request.options or {}).values(),
                *request.examples,
            )
        }

    @property
    def prompt_tokens(self) -> Mapping[str, Sequence[int]]:
        """Role -> tokens of each prompt; roles whose tokens cannot be counted are left out."""
        return self._counted[0]

    @cached_property
    def _counted(self) -> tuple[Mapping[str, Sequence[int]], Sequence[str]]:
        """`prompt_tokens`, and a message for each role whose prompt the chat template of its model refuses."""
        counts: dict[str, list[int]] = {}
        refused: list[str] = []
        for role, turns in self.turns.items():
            facts = self.models.get(turns[0].request.policy)
            if facts and facts.count:
                try:
                    counts[role] = [facts.count(turn.request) for turn in turns]
                except ValueError as error:
                    refused.append(f"roles.{role}: {error}")
        return counts, refused

    def per_episode(self, role: str) -> float:
        """Return the mean number of turns of a role; games count as often as they are dealt by weight."""
        parts = shares(self.scenario.games) or {"": 1.0}
        turns = {game: [sum(turn.role == role for turn in e.turns) for e in of] for game, of in self._by_game.items()}
        return sum(share * fmean(turns[game]) for game, share in parts.items() if game in turns)

    @cached_property
    def _by_game(self) -> Mapping[str, Sequence[Trajectory]]:
        return by_game(self.episodes)

    def expected(self, turn: Turn) -> str | None:
        """Return what the answer of a turn must be, in words, where neither rules nor prompts say so."""
        game = next(episode.deal.game for episode in self.episodes if episode.id == turn.id[0])
        return self.scenario.by_game()[game].game.expected().get(turn.agent)

    @property
    def episodes_a_step(self) -> int:
        schedule = self.scenario.schedule
        return schedule.groups * schedule.group_size

    # --- what would go wrong -----------------------------------------------------------------------------------------

    def problems(self) -> Iterator[str]:
        """Yield a message for each thing that would end a run of the scenario, or keep it from learning."""
        yield from self._without_answers()
        yield from self._never_read()
        yield from self._too_many_minibatches()
        yield from self._counted[1]

    def notes(self) -> Iterator[str]:
        """Yield a line for each thing that an author should know of."""
        scenario = self.scenario
        if self.unfinished is not None:
            yield f"an episode had not ended after {LIMIT_S:g} s and {self.unfinished:,} questions of random play"
        for role in (role for role in scenario.roles if role not in self.turns and self.episodes):
            yield f"roles.{role}: did not speak in {len(self.episodes)} random episodes"
        yield from self._heard_in_vain()
        yield from self._without_best()
        for role, counts in self.prompt_tokens.items():
            settings = scenario.roles[role]
            room, longest = self.models[settings.policy].context, max(counts) + settings.sampling.max_tokens
            if room is not None and longest > room:
                yield (
                    f"roles.{role}: a prompt of {max(counts):,} tokens and an answer of up to "
                    f"{settings.sampling.max_tokens:,} are more than the {room:,} that the model of "
                    f"policies.{settings.policy} was made for"
                )

    def _without_best(self) -> Iterator[str]:
        name, played = self.scenario.evaluate.best_by, self._by_game
        for game, view in self.scenario.by_game().items():
            scope = f"eval/{game}/held_out/" if game else "eval/held_out/"
            if name and name.startswith(scope) and view.game.measured() is None and game in played:
                figures = summarize_play(played[game])
                if (short := name.removeprefix(scope)) not in figures and not short.startswith("role/"):
                    known = [figure for figure in figures if not figure.startswith("role/")]
                    yield f"evaluate.keep_best: no random episode had a measure {short!r}; {nearest(short, known)}"

    def _heard_in_vain(self) -> Iterator[str]:
        """Yield a line for each role that hears another one, of whose words and facts no prompt makes use."""
        used = set[tuple[str, str]]()
        for episode in self.episodes:
            turns = {turn.id: turn for turn in episode.turns}
            prompts = [(u, v) for u, v, kinds in episode.graph.edges(data="kinds") if {*kinds} - {"gated"}]
            used |= {(turns[reader].role, turns[source].role) for source, reader in prompts}
        for role, speaker in sorted(self.audible - used):
            yield (
                f"roles.{role}: hears role {speaker!r}, but no prompt in {len(self.episodes)} random episodes used its "
                "words; show them in the `prompt`, as {% for turn in heard %}{{ turn.text }}{% endfor %}, or do not "
                "let it hear them"
            )

    def _without_answers(self) -> Iterator[str]:
        for role in sorted(self.free):
            policy = self.scenario.policies[self.scenario.roles[role].policy]
            base = policy.model and (policy.model.shared() or policy.model)
            if isinstance(base, Tiny) and (base.warm_up or base.vocabulary == "words"):
                who = "its tiny model learns words and answers from random play"
            elif isinstance(policy.engine, ScriptedConfig):
                who = f"engine {policy.engine.kind!r} plays"
            elif "random" in self.scenario.evaluate.against:
                who = "`random` of evaluate.against plays"
            else:
                continue
            yield f"roles.{role}: any text is a move and the game gives no examples of moves, but {who}"

    def _never_read(self) -> Iterator[str]:
        for role, turns in self.turns.items():
            if role not in self.free and not any(turn.action for turn in turns):
                text = turns[0].completion.text
                yield f"roles.{role}: reads no move in what it is to say itself, such as {text!r}"

    def _too_many_minibatches(self) -> Iterator[str]:
        if not self.episodes or self.scenario.experience.siblings:
            return
        for name, policy in self.scenario.policies.items():
            roles = [role for role, settings in self.scenario.roles.items() if settings.policy == name]
            learning = [role for role in roles if self.scenario.roles[role].trainable]
            most = max(sum(turn.role in learning for turn in episode.turns) for episode in self.episodes)
            samples = most * self.episodes_a_step * policy.update_every
            minibatches = dict(policy.learner or ()).get("minibatches", 1)
            if minibatches > max(samples, 1):
                yield (
                    f"policies.{name}.learner.minibatches: {minibatches}, but an update has about {samples} samples: "
                    f"{self.episodes_a_step * policy.update_every} episodes with up to {most} turns each"
                )


def dry_run(scenario: Scenario, configs: Configs | None = None) -> DryRun:
    """Play random episodes of each game: `EPISODES`, or as many as there is time for, but one at least.

    Raises:
        ValueError: if a game or a role fails.
    """
    casting, games = RandomCasting(scenario), {name: view.game for name, view in scenario.by_game().items()}
    simulator = RolloutSimulator(games, casting, _engines(scenario), LIMIT_S, max_turns=scenario.schedule.max_turns)
    began, unfinished = time.monotonic(), None
    played: list[Trajectory] = []
    for name in map("dry_run.{}".format, range(EPISODES)):
        before, casting.end = casting.count, time.monotonic() + LIMIT_S
        try:
            played += simulator.play(_deals(name, scenario))
        except (TimeoutError, HangError):
            unfinished = casting.count - before
            break
        except (GameError, ValueError) as error:
            raise ValueError(f"a random episode failed: {error}") from error
        speaking = {turn.role for each in played for turn in each.turns}
        if time.monotonic() - began > (ENOUGH_S if speaking >= scenario.roles.keys() else LIMIT_S):
            break
    if not played and unfinished is None:
        raise ValueError(f"no random episode could be judged: {'; '.join(simulator.take_failures())}")
    return DryRun(scenario, played, frozenset(casting.free), unfinished, frozenset(casting.audible), configs or {})


def _deals(name: str, scenario: Scenario) -> list[Deal]:
    """Return a deal of each game."""
    seed = seed_of(scenario.schedule.seed, name)
    return [
        Deal(f"{name}{game and '.'}{game}", name, seed, view.seats, game=game)
        for game, view in scenario.by_game().items()
    ]


def _engines(scenario: Scenario) -> dict[str, Engine]:
    """Return an engine for each policy: rules as they are, but for reward models, and random play for all others."""
    engines: dict[str, Engine] = {}
    for name, policy in scenario.policies.items():
        engine = policy.engine
        if not engine.rule_bound or isinstance(engine, RewardSeat):
            engine = Random()
        elif isinstance(engine, RuleConfig):
            engine = engine.model_copy(update={"workers": 1})
        engines[name] = engine.build(None)
    return engines
