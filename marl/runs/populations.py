"""Populations of a league or of one model: `RUN@pool`, all members alike, and `RUN@meta`, by a meta-strategy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from marl.experience.league.league import LeagueExperience
from marl.experience.league.matchmaking import systematic_sample
from marl.experience.league.neupl import OneModelPopulationExperience
from marl.experience.league.neupl_settings import OneModelPopulation
from marl.experience.league.pool import POOL
from marl.experience.league.settings import League
from marl.runs.checkpoint import read_checkpoint, verify_policy_checksums
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError
from marl.scenario.schema import Scenario

POPULATIONS = ("pool", "meta")
"""Words after the @ of a run that name a population."""


@dataclass(frozen=True, slots=True)
class PopulationMember:
    """Weights of a policy, and the share of games in which they play."""

    policy: str
    version: int
    """Step after which the weights were saved."""
    folder: Path
    """Folder of the weights."""
    weight: float
    """Probability of being drawn for an episode."""
    role: str = ""
    """Role whose prompts make the model this member of a one-model population, or "" for a member of a league."""


def is_population(player_spec: str) -> bool:
    """Return True if `player_spec` is `RUN@pool` or `RUN@meta`."""
    path, _, name = player_spec.rpartition("@")
    return name in POPULATIONS and not Path(player_spec).exists() and (Path(path) / "scenario.yaml").is_file()


def read_population(player_spec: str) -> list[PopulationMember]:
    """Return the members of the population `RUN@pool` or `RUN@meta` at the run's newest intact checkpoint.

    The meta-strategy is that of the league's first player that meets the pool: with `by: psro` and `by: rectified` an
    equilibrium of the members' payoffs, with `by: anytime` the average mixture of the last complete phase, and
    otherwise the probabilities with which the player meets the members. Members of a one-model population have the
    weights of the checkpoint, and a role each.

    Raises:
        ScenarioError: if the run has no league or one-model population, or its pool is empty.
    """
    path, _, name = player_spec.rpartition("@")
    home = RunFolder(Path(path))
    scenario = home.scenario()
    settings = scenario.experience
    if isinstance(settings, OneModelPopulation):
        return _members_of_one_model(home, settings, by_meta_strategy=name == "meta")
    if not isinstance(settings, League):
        raise ScenarioError(f"{player_spec}: the run has no pool; its experience is {settings.kind!r}, not 'league'")
    league = LeagueExperience(settings)
    step = home.latest_checkpoint(verify_policy_checksums)[0]
    league.load_state_dict(read_checkpoint(home.checkpoints, step)[1]["experience"])
    role = next((role for role, player in settings.players.items() if player.opponents.get(POOL)), None)
    if name == "meta" and role is None:
        raise ScenarioError(f"{player_spec}: no player of the league meets the pool; choices: {path}@pool")
    weights = league.member_probabilities(role, scenario.roles[role].policy) if name == "meta" and role else {}
    members = weights or dict.fromkeys(league.pool_members(), 1.0)
    if not members:
        raise ScenarioError(f"{player_spec}: the pool is empty at step {step}")
    total = sum(members.values())
    return [
        PopulationMember(*member, home.snapshots.version_folder(*member), weight / total)
        for member, weight in members.items()
    ]


def _members_of_one_model(
    home: RunFolder, settings: OneModelPopulation, *, by_meta_strategy: bool
) -> list[PopulationMember]:
    """Return the trained members of the one-model population in the run's folder `home`."""
    step = home.latest_checkpoint(verify_policy_checksums)[0]
    population = OneModelPopulationExperience(settings)
    population.load_state_dict(read_checkpoint(home.checkpoints, step)[1]["experience"])
    probabilities = population.member_probabilities(step)
    policy = home.scenario().roles[settings.members[1]].policy
    folder = home.checkpoints / f"{step:06d}" / "policies" / policy
    members: list[PopulationMember] = []
    for role, probability in probabilities.items():
        weight = probability if by_meta_strategy else 1 / len(probabilities)
        members.append(PopulationMember(policy, step, folder, weight, role))
    return members


def require_populations(scenario: Scenario) -> None:
    """Check that every population of the scenario's league exists and plays the scenario's game.

    Raises:
        ScenarioError: if a run is missing, has no league or an empty pool, plays another game, or its members are
            prompts of one model, which the prompts of this scenario would not tell apart.
    """
    settings = scenario.experience
    for name, population in settings.populations.items() if isinstance(settings, League) else ():
        field, spec = f"experience.populations.{name}.run", str(population.run)
        if not is_population(spec):
            raise ScenarioError(f"{field}: {spec}: no such run; choices: RUN@pool, RUN@meta")
        other = RunFolder(Path(spec.rpartition("@")[0])).scenario()
        if [other.game] != [scenario.game]:
            raise ScenarioError(f"{field}: {spec} plays {other.game!r}, not {scenario.game!r}")
        if any(member.role for member in read_population(spec)):
            raise ScenarioError(f"{field}: {spec}: its members are prompts of one model; choices: runs of a league")


def episodes_by_share(shares: Sequence[float], episodes: int, seats: int) -> list[int]:
    """Return the number of episodes of each share: its expected number, rounded to a multiple of `seats`."""
    drawn = systematic_sample(range(len(shares)), shares, max(1, episodes // seats), 0.5)
    return [seats * drawn.count(index) for index in range(len(shares))]
