"""Checks of the policies that teach others by distillation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from marl.core.config import choices_hint

if TYPE_CHECKING:
    from marl.scenario.schema import Scenario


def students_by_teacher(scenario: Scenario) -> dict[str, list[str]]:
    """Return policy that teaches -> policies whose learners it teaches."""
    students: dict[str, list[str]] = {}
    for name, policy in scenario.policies.items():
        for teacher in dict.fromkeys(policy.learner.taught_by.values() if policy.learner else ()):
            students.setdefault(teacher, []).append(name)
    return students


def teacher_errors(scenario: Scenario) -> Iterator[str]:
    """Yield an error for each teacher that is unknown, learns itself or has no fitting model, and for each role without
    a teacher."""
    for name, policy in scenario.policies.items():
        if policy.learner is None:
            continue
        path = f"policies.{name}.learner"
        for field, teacher in policy.learner.taught_by.items():
            if problem := _problem_of_teacher(scenario, name, teacher):
                yield f"{path}.{field}: {problem}"
        roles = [role for role, settings in scenario.roles.items() if settings.policy == name and settings.trainable]
        for error in policy.learner.role_conflicts(roles):
            yield f"{path}.{error}"


def vocabulary_problem(student: str, teacher: str, own: Mapping[str, int], taught: Mapping[str, int]) -> str:
    """Return the reason why policy `teacher` cannot teach policy `student`, or "" if their vocabularies are equal.

    `own` and `taught` map the tokens of the student and of the teacher to their ids.
    """
    if own == taught:
        return ""
    token = min(token for token in own.keys() | taught.keys() if own.get(token) != taught.get(token))
    ids = f"{own.get(token, 'missing')} for {student!r} and {taught.get(token, 'missing')} for {teacher!r}"
    return (
        f"{teacher!r} has another vocabulary ({len(taught)} tokens, {student!r} has {len(own)}; the id of {token!r} is "
        f"{ids}), but the two are compared token by token; choose a teacher with the student's tokenizer (tiny models: "
        "vocabulary: bytes, or equal words)"
    )


def _problem_of_teacher(scenario: Scenario, student: str, teacher: str) -> str:
    """Return the reason why policy `teacher` cannot teach policy `student`, or "" if it can."""
    learner, frozen = scenario.policies[student].learner, list[str]()
    family = learner.family if learner else ""
    for name, policy in scenario.policies.items():
        if policy.model and policy.learner is None and policy.model.family == family:
            frozen.append(name)
    choices = f"frozen policies with a model: {', '.join(frozen) or 'none'}"
    if teacher not in scenario.policies:
        return f"no policy {teacher!r}; {choices_hint(teacher, frozen) if frozen else choices}"
    policy = scenario.policies[teacher]
    if teacher == student:
        return f"{teacher!r} would teach itself; name another policy ({choices}), or use reference for its own start"
    if policy.learner:
        return (
            f"{teacher!r} has a learner ({policy.learner.kind}) and would change while it teaches; remove "
            f"policies.{teacher}.learner, or choose one of the {choices}"
        )
    if policy.model is None:
        return (
            f"engine {policy.engine.kind!r} of {teacher!r} has no weights whose probabilities could be read; {choices}"
        )
    if teacher not in frozen:
        return f"model {policy.model.kind!r} of {teacher!r} is {policy.model.family}; {choices}"
    return ""
