"""Defaults of roles that depend on their models: prompts, and the tags of verdicts; and the task of engines.

The tag of a verdict is new in each request (a nonce), or always the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from marl.protocols import JudgingRoleConfig, RoleConfig, Tool
from marl.protocols.roles import RoleTemplateError

if TYPE_CHECKING:
    from marl.scenario.schema import Scenario


def role_with_defaults(scenario: Scenario, name: str, role: RoleConfig) -> RoleConfig:
    """Return `role` with default texts for omitted prompts and, if it judges, with a default for an omitted tag.

    The tag is a nonce unless something speaks against it. A role that a program asks is by default not trainable if its
    policy has no learner.
    """
    policy = scenario.policies.get(role.policy)
    if policy and policy.model:
        understands_instructions = policy.model.understands_instructions
    else:
        # A policy without a model follows instructions only if its engine asks an endpoint.
        understands_instructions = policy is not None and not policy.engine.token_level
    role = role.with_default_prompts(understands_instructions)
    if role.answers_programs and policy and policy.learner is None and "trainable" not in role.model_fields_set:
        # The role is not trained here, so the program's own sampling settings apply, as at deployment.
        role = role.model_copy(update={"trainable": False})
    if not isinstance(role, JudgingRoleConfig):
        return role
    try:
        return role.with_default_verdict_tag(
            "fixed" if _reason_for_fixed_verdict_tag(scenario, name, role) else "nonce"
        )
    except RoleTemplateError as error:
        raise error.of_role(name) from error


def complete_engines_and_tools(scenario: Scenario) -> None:
    """Complete the engines of `scenario` by the task of its only game, and replace `tools: auto` of its roles.

    Roles that answer calls of tools with a state show the engine the earlier calls of the episode.

    Raises:
        ValueError: if agents that answer the calls of a role with `tools: auto` have different tools.
    """
    tasks = [view.game.dealt_task() for view in scenario.scenario_by_game().values()]
    if len(tasks) == 1 and tasks[0]:
        for name, policy in scenario.policies.items():
            scenario.policies[name] = policy.model_copy(update={"engine": policy.engine.with_task(tasks[0])})
    for name, tools in _automatic_tools(scenario).items():
        scenario.roles[name] = scenario.roles[name].model_copy(update={"tools": tools})
    for name, role in scenario.roles.items():
        policy = scenario.policies.get(role.policy)
        if role.answers_calls and policy and policy.engine.needs_earlier_calls:
            scenario.roles[name] = role.model_copy(update={"shows_earlier_calls": True})


def _automatic_tools(scenario: Scenario) -> dict[str, tuple[Tool, ...]]:
    """Return role -> its tools, for each role with `tools: auto` whose calls are answered in one of the games.

    Raises:
        ValueError: if agents that answer the role's calls have different tools.
    """
    tools_by_role: dict[str, tuple[Tool, ...]] = {}
    for view in scenario.scenario_by_game().values():
        for agent, answering_agent in view.game.agent_answering_tool_calls_of_each_agent().items():
            name, toolbox = view.seats.get(agent, ""), scenario.roles.get(view.seats.get(answering_agent, ""))
            policy = toolbox and scenario.policies.get(toolbox.policy)
            if policy is None or name not in scenario.roles or scenario.roles[name].tools != "auto":
                continue
            tools = policy.engine.describe_tools()
            if tools_by_role.setdefault(name, tools) != tools:
                raise ValueError(f"roles.{name}.tools: auto, but its calls are answered by different tools; list them")
    return tools_by_role


def verdict_tag_notes(scenario: Scenario) -> Iterator[str]:
    """Yield a note for each judging role: whether its tag is a nonce, and why not."""
    for name, role in scenario.roles.items():
        if not isinstance(role, JudgingRoleConfig):
            continue
        reason = _reason_for_fixed_verdict_tag(scenario, name, role)
        if role.verdict_tag == "nonce":
            doubt = f" (although {reason})" if reason else ""
            yield (
                f"roles.{name}.verdict.tag: nonce{doubt}: each request has a tag of its own for the verdict, which no "
                "solver can know"
            )
        else:
            yield (
                f"roles.{name}.verdict.tag: fixed ({reason or 'as the scenario says'}); a solver can write such a "
                "verdict, which role/ROLE/spoof reports and verdict.spoof_penalty charges"
            )


def _reason_for_fixed_verdict_tag(scenario: Scenario, name: str, role: JudgingRoleConfig) -> str:
    """Return the reason for a fixed verdict tag of a role, or "" if the tag should be a nonce."""
    policy = scenario.policies.get(role.policy)
    if role.reason_random_tag_is_impossible:
        return role.reason_random_tag_is_impossible
    if policy is None or (policy.model is None and policy.engine.token_level):
        return "no language model judges"
    if policy.model and not policy.model.understands_instructions:
        return "its tiny model writes the words of its warm-up alone"
    if policy.model and policy.model.kind == "trained":
        return "its model may have learned the format in an earlier run"
    if policy.learner and role.trainable:
        if not policy.learner.trains_on_advantages:
            return "its model learns the format from examples"
        rule = scenario.credit.roles.get(name, scenario.credit)
        if dict(rule.baseline).get("like") == "prompt":
            return "its baseline compares turns with equal prompts"
    return ""
