"""Checks of segments: that engines can mark them, and that plug-ins which work with segments find some."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from marl.core.plugins import plugins_by_kind
from marl.protocols import EngineConfig, JudgingRoleConfig
from marl.protocols.models import LANGUAGE_MODEL
from marl.scenario.credit_checks import credit_rules, roles_credited_by_rule

if TYPE_CHECKING:
    from marl.scenario.schema import Scenario

_HINT = "give it `segments: {by: line}` (or sentence, tag, tokens)"


def segment_errors(scenario: Scenario) -> Iterator[str]:
    """Yield an error for each role whose engine cannot mark its `segments`, and for each use of segments that are not
    marked."""
    for name, role in scenario.roles.items():
        speaker = scenario.policies.get(role.policy)
        if role.segments and speaker and not _samples_tokens(speaker.engine):
            engines = plugins_by_kind("engines", EngineConfig).items()
            choices = ", ".join([kind for kind, engine in engines if _samples_tokens(engine)])
            yield (
                f"roles.{name}.segments: by: {role.segments.by}, but engine {speaker.engine.kind!r} of "
                f"policies.{role.policy} generates no tokens that could be divided; remove it; choices of engines: "
                f"{choices}"
            )
    yield from _credit_errors(scenario)
    for name, role, learner in scenario.learning_roles():
        field = f"policies.{role.policy}.learner.level: 'segment'"
        if learner.needs_segments and role.segments is None:
            yield f"{field} learns from segments, but roles.{name} has none; {_HINT}, or choose level: turn"
    for name, policy in scenario.policies.items():
        if policy.engine.needs_segments and not any(role.segments for role in scenario.roles.values()):
            roles = ", ".join(scenario.roles)
            yield (
                f"policies.{name}.engine.level: 'segment' scores segments, but no role has any; give one of the roles "
                f"({roles}) `segments: {{by: line}}`, or choose level: turn"
            )


def _credit_errors(scenario: Scenario) -> Iterator[str]:
    """Yield an error for each credit rule at the level of segments whose roles mark none, or do not fit."""
    learners = scenario.credited_roles()
    for field, rule in credit_rules(scenario).items():
        assign, restricted = rule.assign, dict(rule.assign).get("roles") or ()
        for name in roles_credited_by_rule(scenario, field):
            role, learner = scenario.roles[name], learners[name]
            if assign.needs_segments and role.segments is None and (not restricted or name in restricted):
                yield (
                    f"{field}.assign.level: {dict(assign)['level']!r} credits segments of answers, but roles.{name} "
                    f"has none; {_HINT}, or choose level: turn"
                )
            has_nonce = isinstance(role, JudgingRoleConfig) and role.verdict_tag == "nonce"
            if assign.needs_segments and assign.plays and has_nonce:
                yield (
                    f"roles.{name}.verdict.tag: 'nonce' is new in each request, but {field}.assign {assign.kind!r} "
                    "goes on with recorded answers; choose fixed"
                )
            if learner.needs_segments and not field.startswith("credit.compare."):
                where = f"policies.{role.policy}.learner.level: 'segment' labels segments by their credit, but {field}"
                if not assign.needs_segments:
                    yield f"{where}.assign {assign.kind!r} credits none; choices: replay, process, gae (level: segment)"
                if rule.baseline.kind != "none":
                    yield f"{where}.baseline {rule.baseline.kind!r} changes it; choices: none"


def _samples_tokens(engine: EngineConfig | type[EngineConfig]) -> bool:
    """Return True if the engine's answers are tokens of a language model."""
    return engine.token_level and engine.needs_model and engine.family == LANGUAGE_MODEL
