"""Checks of the speakers of a workflow: their order, and whether role and engine support their stage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from marl.core.config import choices_hint
from marl.engines.reward_model.settings import RewardModelConfig
from marl.engines.scripted import ScriptedConfig
from marl.engines.workers.settings import Tools, Verifiers
from marl.games.team.stages import Stage, TeamSeats, WorkflowStep, stages_with_predecessors, steps_with_paths
from marl.models.tiny import Tiny
from marl.protocols import AgentSetup


def order_errors(steps: Sequence[WorkflowStep], seats: TeamSeats) -> Iterator[str]:
    """Yield a message for each role heard or verified only where the role cannot have spoken yet."""
    audible: dict[tuple[str, str], set[str]] = defaultdict(set)
    """(label of a stage, name heard there) -> agents of this name with an earlier turn.

    Several stages can share a label; an agent with an earlier turn in any of these stages is enough.
    """
    for stage, predecessors in stages_with_predecessors(steps):
        earlier_speakers: set[str] = set()
        for predecessor in predecessors:
            earlier_speakers.update(seats.speakers(predecessor))
            if predecessor.tools:
                earlier_speakers.update(seats.toolbox(predecessor, agent) for agent in seats.speakers(predecessor))
        speakers = seats.speakers(stage)
        # The only agent of a stage does not hear itself.
        unheard = {*speakers} if len(speakers) == 1 else set()
        for name in stage.hears:
            audible[stage.label, name] |= earlier_speakers.intersection(seats.named(name)) - unheard
        if stage.verifies:
            audible[stage.label, stage.verifies] |= earlier_speakers.intersection(seats.named(stage.verifies))
    for (label, name), agents in audible.items():
        if not agents:
            itself = {*seats.named(name)} <= {*seats.speakers(seats.stages[label])}
            why = "speaks there itself, at the same time" if itself else "has not spoken by then"
            verb = "verifies" if seats.stages[label].verifies == name else "hears"
            yield f"stage {label!r}: {verb}: {name!r} {why}; choices: roles of earlier stages or of a loop's last round"


def speaker_errors(
    steps: Sequence[WorkflowStep], seats: TeamSeats, speakers: Mapping[str, AgentSetup]
) -> Iterator[str]:
    """Yield a message for each stage whose needs exceed its agents' role or engine; `speakers` maps agent -> setup."""
    callers = set[str]()
    for path, stage in steps_with_paths("stages", steps):
        if not isinstance(stage, Stage):
            continue
        agent = seats.speakers(stage)[0]
        yield from _example_problems(path, stage, speakers[agent])
        engine = speakers[agent].engine
        if isinstance(engine, Verifiers | RewardModelConfig):
            checks = list(engine.checks) if isinstance(engine, Verifiers) else [engine.name]
            for name in stage.scores:
                if name not in checks:
                    hint = choices_hint(name, checks)
                    yield f"{path}.scores: no check {name!r} in its engine {engine.kind!r}; {hint}"
        if stage.tools:
            callers.add(agent)
            yield from _tool_problems(path, stage.tools, speakers[agent], speakers[seats.toolbox(stage, agent)])
    for agents in seats.agents_of.values():
        if speakers[agents[0]].role.tools and agents[0] not in callers:
            yield (
                f"stages: the role of {agents[0]!r} has `tools`, but nobody answers its calls; name the role that does "
                "in its stage, as `tools: ROLE`, and give that one the engine `tools`"
            )


def _example_problems(path: str, stage: Stage, speaker: AgentSetup) -> Iterator[str]:
    """Yield a message if random play in `stage` has no moves to choose from."""
    base = speaker.model and (speaker.model.shared_base() or speaker.model)
    learns = isinstance(base, Tiny) and (base.warm_up or base.vocabulary == "words")
    if stage.legal is None and not stage.examples and (learns or isinstance(speaker.engine, ScriptedConfig)):
        who = "a tiny model learns words and answers from random play" if learns else f"{speaker.engine.kind!r} plays"
        yield (
            f"{path}.examples: missing: {who}, which has nothing to say where any text is a move; give examples of "
            'moves, such as ["{{ answer }}", "{{ wrong[0] }}"], or `legal`'
        )


def _tool_problems(path: str, toolbox: str, caller: AgentSetup, answering: AgentSetup) -> Iterator[str]:
    """Yield a message for each tool of `caller` that `answering`, an agent of the role `toolbox`, does not have."""
    if not caller.role.tools:
        yield f"{path}.tools: {toolbox!r} answers calls, but its role knows of no tool to call; give the role `tools`"
    engine = answering.engine
    if isinstance(engine, Tools):
        for tool in caller.role.tools:
            if tool.name not in engine.tools:
                yield f"{path}.tools: {toolbox!r} has no tool {tool.name!r}; {choices_hint(tool.name, engine.tools)}"
