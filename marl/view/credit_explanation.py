"""`marl why`: explanation of one turn's advantage, from the run's files alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from marl.core.config import shorten
from marl.core.graph import Trajectory
from marl.core.types import Turn
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError
from marl.view.credit_chain import (
    AdvantageDerivation,
    derive_advantage,
    describe_update_from_turn,
    reason_without_credit,
)
from marl.view.edge_text import EDGE_KINDS, describe_edge, format_token_ranges
from marl.view.verifier_scores import turns_of_other_agents_reading, verifier_scores_in_turn

_SHOWN_PEERS = 8
"""Maximum number of listed peers of a turn."""
_TEXT = 200
"""Length limit of a displayed completion [characters]."""


def explain_advantage(run_path: Path, turn_name: str) -> str:
    """Return the explanation of the advantage of `turn_name` (EPISODE:INDEX, such as 000040.0.1:2).

    Raises:
        ScenarioError: if the run or the turn does not exist, or the step has no credit record.
    """
    home = RunFolder(run_path)
    episode, colon, index = turn_name.rpartition(":")
    if not colon or not index.isdecimal():
        raise ScenarioError(f"{turn_name}: write a turn as EPISODE:INDEX, such as 000040.0.1:2")
    step, trajectory = _find_episode(home, episode)
    if int(index) >= len(trajectory.turns):
        raise ScenarioError(f"{turn_name}: episode {episode} has the turns 0 to {len(trajectory.turns) - 1}")
    answer, record = trajectory.turns[int(index)], home.read_credit_of_step(step)
    scenario, credit_of = home.scenario(), record.turns()
    lines = list(_turn_lines(answer, step, trajectory))
    credit = credit_of.get(answer.id)
    if credit is None:
        return "\n".join([*lines, f"no credit: {reason_without_credit(scenario, answer)}"])
    lines += _derivation_lines(derive_advantage(credit, record, trajectory, credit_of))
    count = len(answer.completion.token_ids)
    if credit.token_advantages:
        values = " ".join(f"{value:+.3g}" for value in credit.token_advantages)
        lines.append(f"tokens: {count}, with advantages {values}")
    else:
        lines.append(f"tokens: each of {count} has the turn's advantage")
    metrics = next((row for row in home.rows() if row["step"] == step), {})
    update = describe_update_from_turn(answer, trajectory, scenario, step, metrics)
    return "\n".join(filter(None, [*lines, update]))


def _find_episode(run_folder: RunFolder, episode_id: str) -> tuple[int, Trajectory]:
    """Return a recorded episode with its step, or raise ScenarioError."""
    run_folder.scenario()  # raises an error with a hint if the folder contains no run
    number = episode_id.split(".")[0]
    # Episode 000040.… belongs to step 40, unless a queue played it ahead; so step 40 is searched first.
    likely = int(number) if number.isdecimal() else 0
    for step in sorted(run_folder.recorded_steps(), key=lambda step: (step != likely, step)):
        trajectory = next(
            (trajectory for trajectory in run_folder.load_trajectories(step) if trajectory.id == episode_id), None
        )
        if trajectory is None:
            continue
        if not run_folder.has_credit_record(step):
            raise ScenarioError(
                f"{run_folder.path}: step {step} was recorded without its credit record, by an older version"
            )
        return step, trajectory
    steps = run_folder.recorded_steps()
    recorded = ", ".join(map(str, steps)) or "none"
    example = f"; the first is {run_folder.load_trajectory(steps[0], 0).id}" if steps else ""
    raise ScenarioError(
        f"{run_folder.path}: no episode {episode_id} among the recorded steps ({recorded}){example} "
        "(checkpoint.trajectories=1 records every step)"
    )


def _turn_lines(turn: Turn, step: int, trajectory: Trajectory) -> Iterator[str]:
    """Yield a turn's role, weights, answer and scores, then its sources and readers with the kinds of their edges."""
    first, last = turn.completion.versions
    version = f"weights version {first}" if first == last else f"weights versions {first} to {last}"
    game_name = f" of {trajectory.deal.game}" if trajectory.deal.game else ""
    yield f"step {step}, turn {turn.id[0]}:{turn.id[1]}{game_name}: {turn.agent} in role {turn.role}, {version}"
    text = turn.completion.text
    excerpt = text if len(text) <= _TEXT else f"{text[:_TEXT]}…"
    yield f"  answered {excerpt!r}, read as {'nothing' if turn.action is None else repr(turn.action)}"
    for reader in turns_of_other_agents_reading(turn, trajectory):
        for score in verifier_scores_in_turn(reader):
            reason = f": {shorten(score.why, _TEXT)}" if score.why else ""
            yield f"  scored {score.name} = {score.value:g} by {reader.agent} (turn {reader.id[1]}){reason}"
    sources = trajectory.sources(turn.id, EDGE_KINDS)
    if sources:
        yield "earlier turns that led to it"
    for source in sources:
        agent = trajectory.turns[source[1]].agent
        yield f"  {source[1]} of {agent}: {describe_edge(turn, source, trajectory, format_token_ranges)}"
    readers = trajectory.readers(turn.id, EDGE_KINDS)
    if readers:
        yield "later turns that it led to"
    for reader_id in readers:
        reader = trajectory.graph.nodes[reader_id]["turn"]
        yield f"  {reader.id[1]} of {reader.agent}: {describe_edge(reader, turn.id, trajectory, format_token_ranges)}"


def _derivation_lines(derivation: AdvantageDerivation) -> Iterator[str]:
    """Yield the rewards, the assigned credit, and the comparison with the baseline that give a turn's advantage."""
    credit, rule, peers = derivation.record, derivation.rule, derivation.peers
    sharing = f", shared by {', '.join(credit.pool)}" if len(credit.pool) > 1 else ""
    yield f"rewards{sharing}"
    for reward in derivation.rewards:
        cause = f": {reward.cause}" if reward.cause else ""
        yield f"  {reward.value:+.4g} {reward.name} to {reward.agent} after turn {reward.turn[1]}{cause}"
    if not derivation.rewards:
        yield "  none was paid"
    scaled = f" (times scale {rule.scale:g})" if rule.scale != 1 else ""
    if credit.pool:
        yield f"  in all {credit.pool_reward:+.4g}{scaled}"
    assigned = "nothing" if credit.assigned is None else f"{credit.assigned:+.4g}"
    yield f"assign ({rule.field}.assign: {format_plugin_settings(rule.assign)}) gave this turn {assigned}"
    for name, penalty in credit.penalties.items():
        yield f"  {penalty:+.4g} {name} penalty over its tokens"
    yield f"  earned {credit.earned:+.4g}"
    yield f"baseline ({rule.field}.baseline: {format_plugin_settings(rule.baseline)})"
    if peers is not None:
        like = f" with the same {derivation.like}" if derivation.like else ""
        listed_peers = ", ".join(f"{p.turn[0]}:{p.turn[1]} {p.earned:+.4g}" for p in peers[:_SHOWN_PEERS])
        more = f", and {len(peers) - _SHOWN_PEERS} more" if len(peers) > _SHOWN_PEERS else ""
        noun = "peer" if len(peers) == 1 else "peers"
        yield f"  {len(peers)} {noun}{like}" + (f": {listed_peers}{more}" if peers else "")
    if credit.baseline is None or credit.scale is None:
        yield f"  advantage {credit.advantage:+.4g}"
    else:
        difference = f"{credit.earned:.4g} - {credit.baseline:.4g}"
        yield f"  advantage ({difference}) * {credit.scale:.4g} = {credit.advantage:+.4g}"


def format_plugin_settings(settings: Mapping[str, Any]) -> str:
    """Return the settings of a plug-in as text: its kind, and the settings that are not empty."""
    filled = {name: value for name, value in settings.items() if name != "kind" and value not in (None, [], {}, ())}
    return settings["kind"] + (f" {json.dumps(filled)}" if filled else "")
