"""Everything one run needs, built once from its scenario."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from marl.graph import Trajectory
from marl.judging.judge import Judge, Judgement
from marl.protocols import Brief, Engine, Evidence, Experience, Learner, ModelConfig, Simulator, Source
from marl.rollout.casting import Cast
from marl.rollout.simulator import Table
from marl.scenario.schema import PolicyConfig, Scenario
from marl.seeds import seed_of
from marl.training.update_schedule import Pace
from marl.types import Deal, Reading, TurnId, Usage


@dataclass
class Run:
    """The working parts of a run. Data travels through them one way, see `marl.training.loop`."""

    scenario: Scenario
    table: Table
    learners: dict[str, Learner]
    judge: Judge
    experience: Experience
    step: int = 0
    """Steps done."""
    versions: dict[str, int] = field(init=False)
    pace: Pace = field(init=False)

    def __post_init__(self) -> None:
        self.versions = dict.fromkeys(self.learners, 0)
        self.pace = Pace(self.scenario.policies)

    def deal(self, step: int) -> list[Deal]:
        """The starts of one step: groups share a seed, so their episodes begin alike."""
        schedule = self.scenario.schedule
        deals = []
        for group in range(schedule.groups):
            name = f"{step:06d}.{group}"
            seed = seed_of(schedule.seed, "deal", name)
            seats = self._seats(step * schedule.groups + group)
            deals += [Deal(f"{name}.{i}", name, seed, seats) for i in range(schedule.group_size)]
        return deals

    def _seats(self, turn: int) -> dict[str, str]:
        seats = self.scenario.seats
        shift = turn % len(seats) if self.scenario.schedule.rotate_seats else 0
        roles = list(seats.values())
        return dict(zip(seats, roles[shift:] + roles[:shift], strict=True))

    def read(self, trajectories: Sequence[Trajectory]) -> dict[TurnId, Reading]:
        """One pass of each learner's model over its own turns, if a part asks for it."""
        roles = self.scenario.roles
        # By id: a turn that several forks inherited is read once.
        said = {t.id: t for trajectory in trajectories for t in trajectory.turns if t.completion.prompt_ids}
        readings: dict[TurnId, Reading] = {}
        for name, learner in self.learners.items():
            wanted = (self.judge.needs & self._reads(name)) | learner.needs
            if not wanted:
                continue
            turns = [t for t in said.values() if roles[t.role].policy == name and roles[t.role].trainable]
            readings.update(zip((turn.id for turn in turns), learner.read(turns, wanted), strict=True))
        return readings

    def _reads(self, policy: str) -> frozenset[str]:
        learner = self.scenario.policies[policy].learner
        return learner.readable if learner else frozenset()

    def evidence(self, trajectories: Sequence[Trajectory], readings: Mapping[TurnId, Reading]) -> Evidence:
        """All that credit may look at."""
        return evidence(self.scenario, trajectories, readings, self.table)

    def judged(self, trajectories: Sequence[Trajectory], readings: Mapping[TurnId, Reading]) -> Judgement:
        """Judge a step; `credit/tokens` are those that credit itself had sampled or scored."""
        before = self.table.tokens["credit"]
        judgement = self.judge(self.evidence(trajectories, readings))
        judgement.metrics["credit/tokens"] = float(self.table.tokens["credit"] - before)
        return judgement

    def publish(self, name: str, version: int) -> None:
        """Hand a learner's new weights to the engine that speaks with them, if one does."""
        learner = self.scenario.policies[name].learner
        if learner is None or not learner.speaks:
            return
        self.versions[name] = version
        self.table.engines[name].load_weights(name, self.learners[name].publish(), version)

    def save_policies(self, folder: Path) -> None:
        """One Hugging Face folder per policy that learns."""
        for name, learner in self.learners.items():
            learner.save(folder / name)

    def state_dict(self) -> dict[str, Any]:
        return {
            "learners": {name: learner.state_dict() for name, learner in self.learners.items()},
            "judge": self.judge.state_dict(),
            "pace": self.pace.state_dict(),
            "versions": dict(self.versions),
            # Not part of what `unplay` takes back: money that was spent stays spent.
            "spent": {name: asdict(usage) for name, usage in self.table.spent.items()},
            **self.played(),
        }

    def played(self) -> dict[str, Any]:
        """The part of the state that play changes: where experience stands, and what was counted."""
        return {
            "experience": self.experience.state_dict(),
            "tokens": dict(self.table.tokens),
            "dropped": self.table.dropped,
        }

    def unplay(self, state: Mapping[str, Any]) -> None:
        """Go back to what `played` returned."""
        self.experience.load_state_dict(state["experience"])
        self.table.tokens.clear()
        self.table.tokens.update(state["tokens"])
        self.table.dropped = state["dropped"]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.judge.load_state_dict(state["judge"])
        self.pace.load_state_dict(state["pace"])
        self.unplay(state)
        self.table.restore_spent({name: Usage(**usage) for name, usage in state["spent"].items()})
        for name, learner in self.learners.items():
            learner.load_state_dict(state["learners"][name])
            self.publish(name, state["versions"][name])


def evidence(
    scenario: Scenario, trajectories: Sequence[Trajectory], readings: Mapping[TurnId, Reading], simulator: Simulator
) -> Evidence:
    """All that credit may look at."""
    rules = {name for name, role in scenario.roles.items() if scenario.policies[role.policy].engine.rule_bound}
    return Evidence(trajectories, scenario.game.kind, readings, simulator, frozenset(rules), scenario.schedule.seed)


def build(scenario: Scenario) -> Run:
    """Load weights and put the parts of a run together."""
    use_threads(scenario.schedule.threads)
    schedule = scenario.schedule
    weights = sources(scenario, scenario.policies)
    table = lay(scenario, engines(scenario.policies, weights))
    learners = {
        name: policy.learner.build(
            Brief(name, source, policy.updates(schedule.steps), seed_of(schedule.seed, "learner", name))
        )
        for name, policy in scenario.policies.items()
        if policy.learner and (source := weights[name])
    }
    return Run(scenario, table, learners, Judge(scenario.credit), scenario.experience.build())


def lay(scenario: Scenario, speakers: Mapping[str, Engine], seed: int | None = None) -> Table:
    """The scenario's game with its roles, spoken for by `speakers` (policy -> engine); default: the scenario's seed."""
    schedule = scenario.schedule
    cast = Cast(scenario.roles, schedule.seed if seed is None else seed)
    table = Table(scenario.game, cast, speakers, schedule.deadline_s)
    table.may_drop = schedule.max_drops if schedule.on_error == "drop" else 0
    return table


def sources(scenario: Scenario, policies: Mapping[str, PolicyConfig]) -> dict[str, Source | None]:
    """Where each policy's weights come from."""
    return {name: p.model.prepare(scenario, (name,)) if p.model else None for name, p in policies.items()}


def engines(policies: Mapping[str, PolicyConfig], sources: Mapping[str, Source | None]) -> dict[str, Engine]:
    """An engine for each policy. Those with a base in common share one; so do those that never learn and are alike."""
    together: dict[Hashable, list[str]] = {}
    for name, policy in policies.items():
        together.setdefault(_alike(name, policy, sources[name]), []).append(name)
    speakers: dict[str, Engine] = {}
    for names in together.values():
        engine = _engine(policies[names[0]], {name: sources[name] for name in names})
        speakers |= dict.fromkeys(names, engine)
    return {name: speakers[name] for name in policies}


def _engine(policy: PolicyConfig, sources: Mapping[str, Source | None]) -> Engine:
    """One for all policies in `sources`, which are like `policy`."""
    if _base(policy):
        return policy.engine.serve({name: source for name, source in sources.items() if source})
    return policy.engine.build(next(iter(sources.values())))


def _alike(name: str, policy: PolicyConfig, source: Source | None) -> Hashable:
    """Equal for policies that one engine can speak for."""
    if base := _base(policy):
        return base.model_dump_json(), policy.engine.model_dump_json()
    # Equal settings may mean different weights: a tiny model is warmed up for what its policy says.
    return name if policy.learner else (policy.engine.model_dump_json(), source)


def _base(policy: PolicyConfig) -> ModelConfig | None:
    return policy.model.shared() if policy.model and policy.engine.serves else None


def rule_bound(policies: Mapping[str, PolicyConfig]) -> dict[str, Engine]:
    """Engines for those policies whose answers follow from the question alone, such as verifiers: no player takes their
    seats, random or other."""
    return {name: policy.engine.build(None) for name, policy in policies.items() if policy.engine.rule_bound}


def use_threads(threads: int | None) -> None:
    """Let torch use this many threads; None leaves it as it is."""
    import torch

    if threads:
        torch.set_num_threads(threads)
