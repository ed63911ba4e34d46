"""Scenarios of a run under another credit rule: the named fields are replaced, every other setting stays the run's."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from marl.scenario.load import ScenarioError, validate
from marl.scenario.schema import Scenario
from marl.scenario.yaml_text import read_yaml
from marl.view.credit_explanation import format_plugin_settings

_HALVES = ("assign", "baseline")


def scenario_with_credit_rule(scenario: Scenario, rule: str) -> Scenario:
    """Return `scenario` with the credit rule that the text `rule` stands for, or `scenario` itself if it is the same.

    A kind that the scenario names already keeps its settings, so that a run's own rule has the run's own numbers.
    `credit.compare` is left out of a different rule: these rules are only reported, and may need weights.

    Args:
        scenario: scenario of a run.
        rule: a kind of `assign` (`shapley`), one with a baseline (`flow/role_average`), a baseline alone (`/none`), or
            YAML as under `assign:` or `credit:`, whose fields replace those of the run.

    Raises:
        ScenarioError: if there is no such rule, or the rule does not fit the scenario.
    """
    data = scenario.model_dump(mode="json")
    own = data["credit"]
    changes = _parse_credit_rule_text(rule)
    for half in _HALVES:
        if changes.get(half) == own[half]["kind"]:
            del changes[half]
    replaced = validate({**data, "credit": own | {"compare": {}} | changes}, f"--with {rule}")
    if "compare" not in changes and _advantage_settings(replaced) == _advantage_settings(scenario):
        return scenario
    return replaced


def credit_differences(replaced_scenario: Scenario, run_scenario: Scenario) -> tuple[str, ...]:
    """Return a line for each setting of `credit` in which `replaced_scenario` differs from the run's `run_scenario`."""
    replaced, kept = _advantage_settings(replaced_scenario), _advantage_settings(run_scenario)
    lines = list(_rule_differences("credit", replaced, kept))
    for role in {**kept["roles"], **replaced["roles"]}:
        field, rule, own_rule = f"credit.roles.{role}", replaced["roles"].get(role), kept["roles"].get(role)
        if rule is None or own_rule is None:
            lines.append(f"{field}: {'the rule of all roles' if rule is None else 'a rule of its own'}")
        else:
            lines += _rule_differences(field, rule, own_rule)
    return tuple(lines)


def reason_credit_rules_need_weights(scenario: Scenario) -> str:
    """Return the reason why the credit rules of `scenario` need the policies' weights, or "" if they need none."""
    for rule in (scenario.credit, *scenario.credit.roles.values()):
        for plugin in (rule.assign, rule.baseline):
            if plugin.plays:
                return f"{plugin.kind} plays or samples"
            if plugin.needed_reading_fields:
                return f"{plugin.kind} reads {', '.join(sorted(plugin.needed_reading_fields))}"
        if rule.kl and rule.kl.needed_reading_fields:
            return f"the run's kl penalty reads {', '.join(sorted(rule.kl.needed_reading_fields))}"
    return ""


def _advantage_settings(scenario: Scenario) -> dict[str, Any]:
    """Return the settings of `credit` on which advantages depend: all but the rules that are only compared."""
    return scenario.credit.model_dump(mode="json", exclude={"compare"})


def _rule_differences(field: str, replaced_rule: Mapping[str, Any], run_rule: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each field of one credit rule in which it differs from the run's `run_rule`."""
    for name, value in replaced_rule.items():
        if name == "roles" or value == run_rule[name]:
            continue
        if name in _HALVES:
            texts = [format_plugin_settings(value), format_plugin_settings(run_rule[name])]
        else:
            texts = [json.dumps(each) for each in (value, run_rule[name])]
        yield f"{field}.{name}: {texts[0]} instead of {texts[1]}"


def _parse_credit_rule_text(rule: str) -> dict[str, Any]:
    """Return the fields of a scenario's section `credit` that the text `rule` names.

    Raises:
        ScenarioError: if the text names none.
    """
    parsed = read_yaml(rule, f"--with {rule}")
    if isinstance(parsed, str):
        assign, slash, baseline = parsed.partition("/")
        halves: Sequence[tuple[str, str]] = [("assign", assign)] if assign or not slash else []
        return dict(halves) | ({"baseline": baseline} if slash else {})
    if not isinstance(parsed, dict):
        raise ScenarioError(
            f"--with {rule}: no rule; give a kind of assign (shapley), one with settings ({{kind: flow, decay: 0.5}}), "
            "one with a baseline (flow/role_average), or YAML as under `credit:` ({assign: flow, baseline: none})"
        )
    return {"assign": parsed} if "kind" in parsed else parsed
