"""Checks of a workflow's agents: the order of their turns, and whether role and engine support their stage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from marl.core.config import choices_hint
from marl.engines.reward_model.settings import RewardModelConfig
from marl.engines.scripted import ScriptedConfig
from marl.engines.workers.settings import Tools, Verifiers
from marl.games.team.stages import (
    Stage,
    TeamSeats,
    WorkflowStep,
    stages_with_possible_predecessors,
    steps_with_setting_paths,
)
from marl.models.tiny import Tiny
from marl.protocols import AgentRoleAndEngine, EngineConfig


def read_before_turn_errors(steps: Sequence[WorkflowStep], seats: TeamSeats) -> Iterator[str]:
    """Yield an error message for each role that a stage reads or verifies before the role can have had a turn."""
    audible: dict[tuple[str, str], set[str]] = defaultdict(set)
    """(label of a stage, name read there) -> agents of this name with a turn before any stage with this label."""
    for stage, predecessors in stages_with_possible_predecessors(steps):
        earlier_speakers: set[str] = set()
        for predecessor in predecessors:
            earlier_speakers.update(seats.stage_agents(predecessor), seats.program_callers_in_stage(predecessor))
            for agent in seats.stage_agents(predecessor) if predecessor.tools else ():
                earlier_speakers.add(seats.agent_answering_tool_calls(predecessor, agent))
                if scoring_agent := seats.agent_scoring_tool_calls(predecessor, agent):
                    earlier_speakers.add(scoring_agent)
        speakers = seats.stage_agents(stage)
        # In a stage of a single agent, the agent does not hear itself.
        unheard = {*speakers} if len(speakers) == 1 else set()
        for name in stage.hears:
            audible[stage.name_in_expressions, name] |= (
                earlier_speakers.intersection(seats.agents_by_role_or_name(name)) - unheard
            )
        if stage.verifies:
            audible[stage.name_in_expressions, stage.verifies] |= earlier_speakers.intersection(
                seats.agents_by_role_or_name(stage.verifies)
            )
    for (label, name), agents in audible.items():
        if not agents:
            itself = {*seats.agents_by_role_or_name(name)} <= {*seats.stage_agents(seats.stages[label])}
            why = "speaks there itself, at the same time" if itself else "has not spoken by then"
            verb = "verifies" if seats.stages[label].verifies == name else "hears"
            yield f"stage {label!r}: {verb}: {name!r} {why}; choices: roles of earlier stages or of a loop's last round"


def _what_needs_example_moves(setup: AgentRoleAndEngine) -> str:
    """Return the user of example moves in an agent's setup (for error messages), or "" if the setup needs none."""
    # Tiny models and scripted policies play random moves, so they need example moves.
    base = setup.model and (setup.model.shared_base() or setup.model)
    if isinstance(base, Tiny) and (base.warm_up or base.vocabulary == "words"):
        return "a tiny model learns words and answers from random play"
    return f"{setup.engine.kind!r} plays" if isinstance(setup.engine, ScriptedConfig) else ""


def _program_and_caller_errors(
    path: str, stage: Stage, seats: TeamSeats, setup_by_agent: Mapping[str, AgentRoleAndEngine]
) -> Iterator[str]:
    """Yield an error for a program in a stage without `callers`, for `callers` without a program, and for callers with
    an unsuitable role or without examples."""
    agent = seats.stage_agents(stage)[0]
    engine = setup_by_agent[agent].engine
    if engine.runs_programs and stage.callers is None:
        yield f"{path}.callers: missing: engine {engine.kind!r} runs a program; name the roles that it asks"
    if not engine.runs_programs and stage.callers is not None:
        yield f"{path}.callers: the policy of {stage.role!r} runs no program; give it the engine `program`"
    for role, caller in seats.program_caller_by_role(stage, agent).items():
        setup = setup_by_agent[caller]
        if not setup.role.answers_programs:
            yield f"{path}.callers.{role}: role kind {setup.role.kind!r} makes prompts of its own; choices: caller"
        settings = (stage.callers or {})[role]
        if not settings.examples and (who := _what_needs_example_moves(setup)):
            yield (
                f"{path}.callers.{role}.examples: missing: {who}, which has nothing to say where any text is a move; "
                'give examples of moves, such as ["{{ answer }}", "{{ wrong[0] }}"]'
            )


def _missing_check_errors(path: str, scores: Sequence[str], engine: EngineConfig) -> Iterator[str]:
    """Yield an error for each of `scores`, the setting `path`, that is no check of `engine`."""
    if isinstance(engine, Verifiers | RewardModelConfig):
        checks = list(engine.checks) if isinstance(engine, Verifiers) else [engine.name]
        for name in scores:
            if name not in checks:
                yield f"{path}: no check {name!r} in its engine {engine.kind!r}; {choices_hint(name, checks)}"


def role_and_engine_errors(
    steps: Sequence[WorkflowStep], seats: TeamSeats, setup_by_agent: Mapping[str, AgentRoleAndEngine]
) -> Iterator[str]:
    """Yield an error message for each stage that needs something its agents' role or engine lacks.

    `setup_by_agent` maps an agent to its role, engine and model.
    """
    callers = set[str]()
    for path, stage in steps_with_setting_paths("stages", steps):
        if not isinstance(stage, Stage):
            continue
        agent = seats.stage_agents(stage)[0]
        setup = setup_by_agent[agent]
        engine = setup.engine
        if stage.legal is None and not stage.examples and (who := _what_needs_example_moves(setup)):
            yield (
                f"{path}.examples: missing: {who}, which has nothing to say where any text is a move; give examples of "
                'moves, such as ["{{ answer }}", "{{ wrong[0] }}"], or `legal`'
            )
        yield from _program_and_caller_errors(path, stage, seats, setup_by_agent)
        if isinstance(engine, Verifiers) and stage.verifies is None:
            yield (
                f"{path}.verifies: missing: engine {engine.kind!r} of the role at {agent!r} checks the answer of "
                "another role; name this one (verifies: ROLE, scores: [...]), or give the role a policy with a model"
            )
        yield from _missing_check_errors(f"{path}.scores", stage.scores, engine)
        if scoring_agent := seats.agent_scoring_tool_calls(stage, agent):
            yield from _missing_check_errors(
                f"{path}.calls.scores", stage.calls.scores, setup_by_agent[scoring_agent].engine
            )
        if stage.tools:
            callers.add(agent)
            if not setup.role.tools:
                yield (
                    f"{path}.tools: {stage.tools!r} answers calls, but its role knows of no tool to call; give the "
                    "role `tools`"
                )
            answering = setup_by_agent[seats.agent_answering_tool_calls(stage, agent)].engine
            for tool in setup.role.listed_tools:
                if isinstance(answering, Tools) and tool.name not in answering.tools:
                    hint = choices_hint(tool.name, answering.tools)
                    yield f"{path}.tools: {stage.tools!r} has no tool {tool.name!r}; {hint}"
    for agents in seats.agents_of.values():
        if setup_by_agent[agents[0]].role.tools and agents[0] not in callers:
            yield (
                f"stages: the role of {agents[0]!r} has `tools`, but nobody answers its calls; name the role that does "
                "in its stage, as `tools: ROLE`, and give that one the engine `tools`"
            )
