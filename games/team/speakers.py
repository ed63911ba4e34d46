"""Checks of who speaks in a workflow: in which order, and whether role and engine can do what their stage asks for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from games.team.stages import Stage, TeamSeats, steps_with_paths, with_earlier
from marl.config import nearest
from marl.engines.reward_model.settings import RewardSeat
from marl.engines.scripted import ScriptedConfig
from marl.engines.workers.settings import Tools, Verifiers
from marl.models.tiny import Tiny

if TYPE_CHECKING:
    from games.team.settings import TeamConfig
    from marl.protocols import EngineConfig, RoleConfig, Speaker


def order_problems(team: TeamConfig) -> Iterator[str]:
    """Yield a message for each role that is heard or verified, but only ever where it has not spoken yet."""
    seats = team.team_seats
    audible: dict[tuple[str, str], set[str]] = defaultdict(set)
    """(label of a stage, a name that it hears) -> agents of this name that have spoken by then.

    Several stages may have a label, the same one at several places: it is enough that one of them hears something.
    """
    for stage, earlier in with_earlier(team.stages):
        speakers = {agent for each in earlier for agent in _speakers(each, seats)}
        for name in stage.hears:
            audible[stage.label, name] |= speakers.intersection(seats.named(name)) - _alone(stage, seats)
        if stage.verifies:
            audible[stage.label, stage.verifies] |= speakers.intersection(seats.named(stage.verifies))
    for (label, name), agents in audible.items():
        if not agents:
            itself = {*seats.named(name)} <= {*seats.speakers(seats.stages[label])}
            why = "speaks there itself, at the same time" if itself else "has not spoken by then"
            verb = "verifies" if seats.stages[label].verifies == name else "hears"
            yield f"stage {label!r}: {verb}: {name!r} {why}; choices: roles of earlier stages or of a loop's last round"


def _speakers(stage: Stage, seats: TeamSeats) -> Iterator[str]:
    """Yield the agents that speak in a stage, and those that answer their tool calls."""
    for agent in seats.speakers(stage):
        yield from (agent, seats.toolbox(stage, agent)) if stage.tools else (agent,)


def _alone(stage: Stage, seats: TeamSeats) -> set[str]:
    """Return the agent of a stage that has only one: it does not hear itself."""
    speakers = seats.speakers(stage)
    return {*speakers} if len(speakers) == 1 else set()


def speaker_problems(team: TeamConfig, speakers: Mapping[str, Speaker]) -> Iterator[str]:
    """Yield a message for each stage that asks for what those who speak for its agents (agent -> speaker) cannot do."""
    seats, callers = team.team_seats, set[str]()
    for path, stage in steps_with_paths("stages", team.stages):
        if isinstance(stage, Stage):
            agent = seats.speakers(stage)[0]
            yield from _example_problems(path, stage, speakers[agent])
            yield from _score_problems(path, stage, speakers[agent].engine)
            if stage.tools:
                callers.add(agent)
                toolbox = speakers[seats.toolbox(stage, agent)].engine
                yield from _tool_problems(path, stage.tools, speakers[agent].role, toolbox)
    for agents in seats.agents_of.values():
        if speakers[agents[0]].role.tools and agents[0] not in callers:
            yield (
                f"stages: the role of {agents[0]!r} has `tools`, but nobody answers its calls; name the role that does "
                "in its stage, as `tools: ROLE`, and give that one the engine `tools`"
            )


def _example_problems(path: str, stage: Stage, speaker: Speaker) -> Iterator[str]:
    base = speaker.model and (speaker.model.shared() or speaker.model)
    learns = isinstance(base, Tiny) and (base.warm_up or base.vocabulary == "words")
    if stage.legal is None and not stage.examples and (learns or isinstance(speaker.engine, ScriptedConfig)):
        who = "a tiny model learns words and answers from random play" if learns else f"{speaker.engine.kind!r} plays"
        yield (
            f"{path}.examples: missing: {who}, which has nothing to say where any text is a move; give examples of "
            'moves, such as ["{{ answer }}", "{{ wrong[0] }}"], or `legal`'
        )


def _score_problems(path: str, stage: Stage, engine: EngineConfig) -> Iterator[str]:
    match engine:
        case Verifiers():
            known = list(engine.checks)
        case RewardSeat():
            known = [engine.name]
        case _:
            return
    for name in stage.scores:
        if name not in known:
            yield f"{path}.scores: no check {name!r} in its engine {engine.kind!r}; {nearest(name, known)}"


def _tool_problems(path: str, toolbox: str, role: RoleConfig, engine: EngineConfig) -> Iterator[str]:
    if not role.tools:
        yield f"{path}.tools: {toolbox!r} answers calls, but its role knows of no tool to call; give the role `tools`"
    if isinstance(engine, Tools):
        for tool in role.tools:
            if tool.name not in engine.tools:
                yield f"{path}.tools: {toolbox!r} has no tool {tool.name!r}; {nearest(tool.name, engine.tools)}"
