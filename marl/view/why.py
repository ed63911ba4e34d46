"""`marl why`: the chain from rewards to the advantage of one turn, in words and numbers, from disk alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from marl.config import cut
from marl.graph import Trajectory
from marl.judging.records import TurnRecord
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError
from marl.types import Turn, TurnId
from marl.view.chain import CreditChain, credit_chain, not_judged
from marl.view.edges import KINDS, kinds_in_words, placed
from marl.view.verdicts import readers_of, scores_of

_SHOWN_PEERS = 8
_TEXT = 200
"""Characters of a completion that are shown."""


def why(run: Path, turn: str) -> str:
    """Return why `turn` (EPISODE:INDEX, such as 000039.0.1:2) of a recorded step got its advantage.

    Raises:
        ScenarioError: if there is no such run or turn, or its judgement was not recorded.
    """
    home = RunFolder(run)
    episode, index = _parse(turn)
    step, trajectories = _find(home, episode)
    trajectory = next(t for t in trajectories if t.id == episode)
    if not 0 <= index < len(trajectory.turns):
        raise ScenarioError(f"{turn}: episode {episode} has {len(trajectory.turns)} turns, from 0")
    node, record = trajectory.turns[index], home.judgement(step)
    chains = record.turns()
    header = _header(node, step, trajectory.deal.game)
    lines = [*header, *_readers(node, trajectory), *_edges(node, trajectory)]
    chain = chains.get(node.id)
    if chain is None:
        return "\n".join([*lines, f"not judged: {not_judged(home.scenario(), node)}"])
    judged = credit_chain(chain, record, trajectory, chains)
    lines += [*_rewards(judged), *_assignment(judged), *_comparison(judged)]
    return "\n".join([*lines, *_tokens(chain, node)])


def _parse(turn: str) -> TurnId:
    episode, colon, index = turn.rpartition(":")
    if not colon or not index.isdecimal():
        raise ScenarioError(f"{turn}: write a turn as EPISODE:INDEX, such as 000039.0.1:2")
    return episode, int(index)


def _find(home: RunFolder, episode: str) -> tuple[int, list[Trajectory]]:
    home.scenario()  # raises where there is no run
    number = episode.split(".")[0]
    likely = int(number) + 1 if number.isdecimal() else 0
    for step in sorted(home.recorded(), key=lambda step: (step != likely, step)):
        trajectories = home.episodes(step)
        if any(trajectory.id == episode for trajectory in trajectories):
            if not home.has_judgement(step):
                raise ScenarioError(f"{home.path}: step {step} was recorded without its judgement, by an older version")
            return step, trajectories
    steps = ", ".join(map(str, home.recorded())) or "none"
    raise ScenarioError(f"{home.path}: no episode {episode} among the recorded steps ({steps})")


def _header(turn: Turn, step: int, game: str) -> Iterator[str]:
    first, last = turn.completion.versions
    version = f"weights version {first}" if first == last else f"weights versions {first} to {last}"
    played = f" of {game}" if game else ""
    yield f"step {step}, turn {turn.id[0]}:{turn.id[1]}{played}: {turn.agent} in role {turn.role}, {version}"
    text = turn.completion.text
    shown = text if len(text) <= _TEXT else f"{text[:_TEXT]}…"
    yield f"  answered {shown!r}, read as {'nothing' if turn.action is None else repr(turn.action)}"


def _readers(turn: Turn, trajectory: Trajectory) -> Iterator[str]:
    """Yield the scores that verifiers and raters gave the turn."""
    for reader in readers_of(turn, trajectory):
        for score in scores_of(reader):
            reason = f": {cut(score.why, _TEXT)}" if score.why else ""
            yield f"  scored {score.name} = {score.value:g} by {reader.agent} (turn {reader.id[1]}){reason}"


def _edges(turn: Turn, trajectory: Trajectory) -> Iterator[str]:
    """Yield the turns that led to a turn and those that it led to: in which ways, and in which tokens of a prompt."""
    agents = [turn.agent for turn in trajectory.turns]
    sources = trajectory.sources(turn.id, KINDS)
    if sources:
        yield "earlier turns that led to it"
    for source in sources:
        yield f"  {source[1]} of {agents[source[1]]}: {kinds_in_words(turn, source, trajectory, placed)}"
    readers = [trajectory.graph.nodes[reader]["turn"] for reader in trajectory.readers(turn.id, KINDS)]
    if readers:
        yield "later turns that it led to"
    for reader in readers:
        yield f"  {reader.id[1]} of {reader.agent}: {kinds_in_words(reader, turn.id, trajectory, placed)}"


def _rewards(judged: CreditChain) -> Iterator[str]:
    chain, rule = judged.turn, judged.rule
    sharing = f", shared by {', '.join(chain.pool)}" if len(chain.pool) > 1 else ""
    yield f"rewards{sharing}"
    for reward in judged.rewards:
        cause = f": {reward.cause}" if reward.cause else ""
        yield f"  {reward.value:+.4g} {reward.name} to {reward.agent} after turn {reward.turn[1]}{cause}"
    if not judged.rewards:
        yield "  none was paid"
    scaled = f" (times scale {rule.scale:g})" if rule.scale != 1 else ""
    if chain.pool:
        yield f"  in all {chain.pool_reward:+.4g}{scaled}"


def settings_in_words(part: Mapping[str, Any]) -> str:
    """Return the kind of a part, and those of its settings that say something."""
    settings = {name: value for name, value in part.items() if name != "kind" and value not in (None, [], {}, ())}
    return part["kind"] + (f" {json.dumps(settings)}" if settings else "")


def _assignment(judged: CreditChain) -> Iterator[str]:
    chain, rule = judged.turn, judged.rule
    assigned = "nothing" if chain.assigned is None else f"{chain.assigned:+.4g}"
    yield f"assign ({rule.field}.assign: {settings_in_words(rule.assign)}) gave this turn {assigned}"
    for name, penalty in chain.penalties.items():
        yield f"  {penalty:+.4g} {name} penalty over its tokens"
    yield f"  earned {chain.earned:+.4g}"


def _comparison(judged: CreditChain) -> Iterator[str]:
    chain, peers = judged.turn, judged.peers
    yield f"baseline ({judged.rule.field}.baseline: {settings_in_words(judged.rule.baseline)})"
    if peers is not None:
        like = f" with the same {judged.like}" if judged.like else ""
        shown = ", ".join(f"{p.turn[0]}:{p.turn[1]} {p.earned:+.4g}" for p in peers[:_SHOWN_PEERS])
        more = f", and {len(peers) - _SHOWN_PEERS} more" if len(peers) > _SHOWN_PEERS else ""
        noun = "peer" if len(peers) == 1 else "peers"
        yield f"  {len(peers)} {noun}{like}" + (f": {shown}{more}" if peers else "")
    if chain.baseline is None or chain.scale is None:
        yield f"  advantage {chain.advantage:+.4g}"
    else:
        yield f"  advantage ({chain.earned:.4g} - {chain.baseline:.4g}) * {chain.scale:.4g} = {chain.advantage:+.4g}"


def _tokens(chain: TurnRecord, turn: Turn) -> Iterator[str]:
    count = len(turn.completion.token_ids)
    if not chain.token_advantages:
        yield f"tokens: each of {count} has the turn's advantage"
    else:
        values = " ".join(f"{value:+.3g}" for value in chain.token_advantages)
        yield f"tokens: {count}, with advantages {values}"
    yield f"policy {chain.policy} learnt from it in the update after this step, if its schedule had one"
