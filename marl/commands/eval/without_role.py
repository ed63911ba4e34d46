"""`marl eval run --without ROLE`: what a role of a team is worth, on the same held-out starts with and without it."""

from __future__ import annotations

from dataclasses import replace

from marl.commands.eval.evaluate import EvaluatedPolicies
from marl.core.config import choices_hint
from marl.core.plugins import find_plugin
from marl.core.statistics import paired_bootstrap_interval
from marl.core.types import Metrics
from marl.engines.scripted import EchoEngine
from marl.evaluation.evaluate import insert_game_into_metric_names
from marl.evaluation.held_out import SAMPLED_PREFIX, held_out_deals, metric_with_interval, summarize_episodes
from marl.protocols import RoleConfig
from marl.rollout.base import BaseSimulator
from marl.rollout.casting import RoleRequestBuilder
from marl.scenario.load import ScenarioError
from marl.scenario.schema import Scenario

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
eval/without/ROLE/MEASURE | the game's | mean of a measure on held-out starts if ROLE only passes on what it reads
eval/worth/ROLE/MEASURE | the game's | mean over the same starts of the measure with ROLE minus the measure without it
"""

_ECHO = "passed_on@without"
"""Name of the policy that answers for the role that is left out."""


def measure_without_role(policies: EvaluatedPolicies, role: str, episodes: int) -> Metrics:
    """Return the metrics of held-out episodes with and without `role`, and the paired differences of all measures.

    Without the role, its seats pass on the move of the last agent that they read, except rule-based ones. A seat that
    reads nobody, or must choose from a list without this move, has an empty move.

    Raises:
        ScenarioError: if the role is unknown, rule-based or nowhere seated, or nothing is held out.
    """
    views = {game: view for game, view in policies.scenario.scenario_by_game().items() if role in view.seats.values()}
    seated: set[str] = set()
    for view in policies.scenario.scenario_by_game().values():
        seated |= {*view.seats.values()} - policies.scenario.rule_based_roles
    if role not in seated:
        raise ScenarioError(f"--without {role}: no role of a model that has a seat; {choices_hint(role, seated)}")
    if not all(view.game.held_out_reset_options(1) for view in views.values()):
        kinds = ", ".join(repr(view.game.kind) for view in views.values())
        raise ScenarioError(f"--without {role}: game {kinds} has no held-out starts, on which roles are compared")
    simulator = policies.load_simulator()
    metrics: Metrics = {}
    for game, view in views.items():
        measured = _measure_one_game(view, simulator.variant_for_game(game) if game else simulator, role, episodes)
        metrics |= insert_game_into_metric_names(game, measured)
    return metrics


def _measure_one_game(view: Scenario, simulator: BaseSimulator, role: str, episodes: int) -> Metrics:
    """Return the metrics of `measure_without_role` for the scenario's only game `view`."""
    casting = simulator.casting
    deals = held_out_deals(view, casting.seed, episodes)
    roles = {**casting.roles, role: _role_that_passes_on(view)}
    variant = simulator.variant(RoleRequestBuilder(roles, casting.seed), {_ECHO: EchoEngine()})
    with_role = simulator.play(deals)
    without_role = variant.play([replace(deal, policies={**deal.policies, role: _ECHO}) for deal in deals])
    metrics: Metrics = {}
    for prefix, trajectories in ((SAMPLED_PREFIX, with_role), (f"eval/without/{role}", without_role)):
        for name, value in summarize_episodes(trajectories).items():
            if not name.startswith(("role/", "return/")):
                metrics[f"{prefix}/{name}"] = value
    measures = {trajectory.id: trajectory.findings.measures for trajectory in without_role}
    pairs: dict[str, list[tuple[float, float]]] = {}
    for trajectory in with_role:
        for name, value in trajectory.findings.measures.items():
            if name in measures.get(trajectory.id, {}):
                pairs.setdefault(name, []).append((measures[trajectory.id][name], value))
    for name, values in pairs.items():
        without, present = zip(*values, strict=True)
        interval = paired_bootstrap_interval(without, present, seed=casting.seed)
        metrics |= metric_with_interval(f"eval/worth/{role}/{name}", interval)
    return metrics


def _role_that_passes_on(view: Scenario) -> RoleConfig:
    """Return a role whose prompt is the move of the last agent that it reads, and whose answer is read as it is."""
    rule_based = sorted(view.rule_based_roles)
    last = "{% if loop.last %}{{ turn.move or '' }}{% endif %}"
    prompt = f"{{% for turn in heard if turn.role not in {rule_based} %}}{last}{{% endfor %}}"
    settings = {"policy": _ECHO, "instructions": "", "prompt": prompt, "answer": "whole", "trainable": False}
    role = find_plugin("roles", "solver").model_validate(settings)
    assert isinstance(role, RoleConfig)
    return role
