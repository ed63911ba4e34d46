"""`marl why`: explanation of one turn's advantage, from the run's files alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from marl.core.config import shorten
from marl.core.graph import Trajectory
from marl.core.types import Turn, TurnId
from marl.credit_stage.records import TurnCreditRecord
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError
from marl.view.credit_chain import CreditChain, credit_chain, reason_without_credit
from marl.view.edge_text import EDGE_KINDS, describe_edge, format_token_ranges
from marl.view.verifier_scores import readers_by_other_agents, scores_of

_SHOWN_PEERS = 8
_TEXT = 200
"""Length limit of a displayed completion [characters]."""


def explain_advantage(run: Path, turn: str) -> str:
    """Return the explanation of the advantage of `turn` (EPISODE:INDEX, such as 000039.0.1:2).

    Raises:
        ScenarioError: if the run or the turn does not exist, or the step has no credit record.
    """
    home = RunFolder(run)
    episode, index = _parse(turn)
    step, trajectories = _find(home, episode)
    trajectory = next(t for t in trajectories if t.id == episode)
    if not 0 <= index < len(trajectory.turns):
        raise ScenarioError(f"{turn}: episode {episode} has {len(trajectory.turns)} turns, from 0")
    answer, record = trajectory.turns[index], home.read_credit(step)
    credit_of = record.turns()
    header = _header(answer, step, trajectory.deal.game)
    lines = [*header, *_readers(answer, trajectory), *_edges(answer, trajectory)]
    credit = credit_of.get(answer.id)
    if credit is None:
        return "\n".join([*lines, f"not judged: {reason_without_credit(home.scenario(), answer)}"])
    derivation = credit_chain(credit, record, trajectory, credit_of)
    lines += [*_rewards(derivation), *_assignment(derivation), *_comparison(derivation)]
    return "\n".join([*lines, *_tokens(credit, answer)])


def _parse(turn: str) -> TurnId:
    episode, colon, index = turn.rpartition(":")
    if not colon or not index.isdecimal():
        raise ScenarioError(f"{turn}: write a turn as EPISODE:INDEX, such as 000039.0.1:2")
    return episode, int(index)


def _find(home: RunFolder, episode: str) -> tuple[int, list[Trajectory]]:
    home.scenario()  # for its error: there may be no run
    number = episode.split(".")[0]
    # Deals are numbered from 0 and steps from 1, so episode 000039.… is most likely in step 40.
    likely = int(number) + 1 if number.isdecimal() else 0
    for step in sorted(home.recorded_steps(), key=lambda step: (step != likely, step)):
        trajectories = home.load_trajectories(step)
        if any(trajectory.id == episode for trajectory in trajectories):
            if not home.has_credit(step):
                raise ScenarioError(
                    f"{home.path}: step {step} was recorded without its credit record, by an older version"
                )
            return step, trajectories
    steps = ", ".join(map(str, home.recorded_steps())) or "none"
    raise ScenarioError(f"{home.path}: no episode {episode} among the recorded steps ({steps})")


def _header(turn: Turn, step: int, game: str) -> Iterator[str]:
    first, last = turn.completion.versions
    version = f"weights version {first}" if first == last else f"weights versions {first} to {last}"
    game_name = f" of {game}" if game else ""
    yield f"step {step}, turn {turn.id[0]}:{turn.id[1]}{game_name}: {turn.agent} in role {turn.role}, {version}"
    text = turn.completion.text
    excerpt = text if len(text) <= _TEXT else f"{text[:_TEXT]}…"
    yield f"  answered {excerpt!r}, read as {'nothing' if turn.action is None else repr(turn.action)}"


def _readers(turn: Turn, trajectory: Trajectory) -> Iterator[str]:
    """Yield the scores from verifiers and raters of the turn."""
    for reader in readers_by_other_agents(turn, trajectory):
        for score in scores_of(reader):
            reason = f": {shorten(score.why, _TEXT)}" if score.why else ""
            yield f"  scored {score.name} = {score.value:g} by {reader.agent} (turn {reader.id[1]}){reason}"


def _edges(turn: Turn, trajectory: Trajectory) -> Iterator[str]:
    """Yield the sources and the readers of a turn, with the kinds and prompt tokens of each edge."""
    agents = [turn.agent for turn in trajectory.turns]
    sources = trajectory.sources(turn.id, EDGE_KINDS)
    if sources:
        yield "earlier turns that led to it"
    for source in sources:
        yield f"  {source[1]} of {agents[source[1]]}: {describe_edge(turn, source, trajectory, format_token_ranges)}"
    readers = [trajectory.graph.nodes[reader]["turn"] for reader in trajectory.readers(turn.id, EDGE_KINDS)]
    if readers:
        yield "later turns that it led to"
    for reader in readers:
        yield f"  {reader.id[1]} of {reader.agent}: {describe_edge(reader, turn.id, trajectory, format_token_ranges)}"


def _rewards(derivation: CreditChain) -> Iterator[str]:
    credit, rule = derivation.record, derivation.rule
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


def format_settings(part: Mapping[str, Any]) -> str:
    """Return the kind of a plug-in and its non-empty settings."""
    settings = {name: value for name, value in part.items() if name != "kind" and value not in (None, [], {}, ())}
    return part["kind"] + (f" {json.dumps(settings)}" if settings else "")


def _assignment(derivation: CreditChain) -> Iterator[str]:
    credit, rule = derivation.record, derivation.rule
    assigned = "nothing" if credit.assigned is None else f"{credit.assigned:+.4g}"
    yield f"assign ({rule.field}.assign: {format_settings(rule.assign)}) gave this turn {assigned}"
    for name, penalty in credit.penalties.items():
        yield f"  {penalty:+.4g} {name} penalty over its tokens"
    yield f"  earned {credit.earned:+.4g}"


def _comparison(derivation: CreditChain) -> Iterator[str]:
    credit, peers = derivation.record, derivation.peers
    yield f"baseline ({derivation.rule.field}.baseline: {format_settings(derivation.rule.baseline)})"
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


def _tokens(credit: TurnCreditRecord, turn: Turn) -> Iterator[str]:
    count = len(turn.completion.token_ids)
    if not credit.token_advantages:
        yield f"tokens: each of {count} has the turn's advantage"
    else:
        values = " ".join(f"{value:+.3g}" for value in credit.token_advantages)
        yield f"tokens: {count}, with advantages {values}"
    yield f"policy {credit.policy} learnt from it in the update after this step, if its schedule had one"
