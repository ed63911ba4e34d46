"""Checks of a scenario before any weight is loaded. Every message names the field, the value and the choices."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

from marl.core.config import FIELD_PREFIX, choices_hint, refuse_repeated_values
from marl.core.plugins import plugins_by_kind
from marl.protocols import AgentRoleAndEngine, EngineConfig, LearnerConfig, LearnerSurroundings, ScenarioSummary
from marl.scenario.alarm_checks import alarm_errors
from marl.scenario.credit_checks import credit_errors, credit_rules, every_group_has_one_episode, zero_sum_errors
from marl.scenario.evaluation_checks import (
    best_checkpoint_errors,
    evaluation_errors,
    evaluation_metrics,
    held_out_errors,
    is_evaluation_metric,
    proxy_errors,
)
from marl.scenario.games import MIN_GAME_SHARE, SCOPES, game_shares
from marl.scenario.placement_checks import placement_errors
from marl.scenario.segment_checks import segment_errors
from marl.scenario.teacher_checks import students_by_teacher, teacher_errors

if TYPE_CHECKING:
    from marl.core.config import PluginConfig
    from marl.scenario.schema import Scenario

ErrorFinder = Callable[["Scenario"], Iterable[str]]
"""Function that yields an error message for each mistake of one kind in a scenario."""


def check_game_or_games_given(scenario: Scenario) -> None:
    """Check that a scenario has either `game` with `seats`, or `games`.

    Raises:
        ValueError: if neither is given, or both.
    """
    if scenario.game and scenario.games:
        problem = f"game {scenario.game.kind!r} is given as well; give `game` and `seats`, or `games` alone"
        raise ValueError(f"games: {problem}")
    if not scenario.game and not scenario.games:
        raise ValueError("game: missing; it must be given, or `games` for several")
    if scenario.games and scenario.seats:
        problem = f"{scenario.seats}, but each of several games has seats of its own; give them as games.NAME.seats"
        raise ValueError(f"seats: {problem}")


def check(scenario: Scenario, *, to_train: bool = True) -> None:
    """Check that the sections of a scenario fit together.

    Args:
        scenario: scenario to check.
        to_train: also check that some policy learns.

    Raises:
        ValueError: with one line for each mistake.
    """
    play = (
        _role_and_policy_name_errors,
        *map(_errors_of_each_game_with_field_prefix, (_seat_errors, _agent_role_errors)),
    )
    sampling = (
        _policy_errors,
        _structured_sampling_errors,
        segment_errors,
        _context_errors,
        _errors_of_each_game_with_field_prefix(_remote_engine_errors),
    )
    updates = (_learner_and_experience_errors, _update_schedule_errors, teacher_errors)
    credit = (_schedule_errors, *updates, credit_errors, _errors_of_each_game_with_field_prefix(zero_sum_errors))
    training = (placement_errors,) if to_train else ()
    evaluation = (
        *map(_errors_of_each_game_with_field_prefix, (evaluation_errors, held_out_errors)),
        best_checkpoint_errors,
        alarm_errors,
        proxy_errors,
    )
    # `errors` is a dict used as an ordered set, because several games may cause the same message.
    errors: dict[str, None] = {}
    for find_errors in (*play, *sampling, *credit, *training, *evaluation):
        errors |= dict.fromkeys(find_errors(scenario))
    if errors:
        raise ValueError("\n".join(errors))


def _errors_of_each_game_with_field_prefix(find_errors: ErrorFinder) -> ErrorFinder:
    """Return a function that applies `find_errors` to each game alone, and prefixes a game's fields by `games.NAME`."""

    def find_errors_of_games(scenario: Scenario) -> Iterator[str]:
        for name, view in scenario.scenario_by_game().items():
            game_fields = ["game.", "game:", "seats.", "seats:"]
            # A game without its own `evaluate` is measured by the scenario's, whose field its errors name.
            if name and scenario.games[name].evaluate:
                game_fields += ["evaluate.", "evaluate:"]
            for error in find_errors(view):
                is_of_game = name and error.startswith(tuple(game_fields))
                yield f"games.{name}.{error}" if is_of_game else error

    return find_errors_of_games


def missing_requirements(scenario: Scenario, *, random_play: bool = False) -> list[str]:
    """Return a message for each missing file, folder and package of a scenario.

    Args:
        scenario: scenario to check.
        random_play: check only requirements of play in which random players replace all policies but rule-based ones.
    """
    plugins: dict[str, PluginConfig] = {"game": scenario.game} if scenario.game else {}
    plugins |= {f"games.{name}.game": played.game for name, played in scenario.games.items()}
    plugins |= {f"roles.{name}": role for name, role in scenario.roles.items()}
    for name, policy in scenario.policies.items():
        if policy.engine.is_rule_based or not random_play:
            plugins[f"policies.{name}.engine"] = policy.engine
    if not random_play:
        plugins["experience"] = scenario.experience
        for field, rule in credit_rules(scenario).items():
            plugins |= {f"{field}.assign": rule.assign, f"{field}.baseline": rule.baseline}
        for name, policy in scenario.policies.items():
            if policy.model:
                plugins[f"policies.{name}.model"] = policy.model
            if policy.learner:
                plugins[f"policies.{name}.learner"] = policy.learner
    missing: list[str] = []
    for field, plugin in plugins.items():
        missing += [f"{field}{'.' if FIELD_PREFIX.match(text) else ': '}{text}" for text in plugin.unmet_requirements()]
    if random_play:
        return missing
    if scenario.cluster:
        missing += [f"cluster.{problem}" for problem in scenario.cluster.ray_requirement_errors()]
    for name in scenario.track:
        if find_spec(name) is None:
            missing.append(f"track: {name!r} is not installed; pip install 'marl-llm[tracking]', or remove it")
    return missing


def _unknown_name_error(field: str, name: str, noun: str, choices: Iterable[str]) -> str:
    """Return the error message for a setting `field` with an unknown `name`; `noun` is `role` or the like."""
    return f"{field}: no {noun} {name!r}; {choices_hint(name, choices)}"


def _role_and_policy_name_errors(scenario: Scenario) -> Iterator[str]:
    """Yield an error for each unknown or unused role or policy."""
    seats = _role_by_seat_field(scenario)
    seated = {*seats.values()}
    for seating in scenario.experience.seatings(seats):
        seated |= {*seating.values()}
    for field, role in seats.items():
        if role not in scenario.roles:
            yield _unknown_name_error(field, role, "role", scenario.roles)
    for name, role in scenario.roles.items():
        if role.policy not in scenario.policies:
            yield _unknown_name_error(f"roles.{name}.policy", role.policy, "policy", scenario.policies)
        if name not in seated:
            yield f"roles.{name}: no seat uses this role; seats: {dict(scenario.seats or seats)}"
    used = scenario.sampling_policies | students_by_teacher(scenario).keys()
    for name in scenario.policies:
        if name not in used:
            yield f"policies.{name}: no role speaks with this policy; roles: {', '.join(scenario.roles)}"
    for name in scenario.credit.roles:
        if name not in scenario.roles:
            yield _unknown_name_error(f"credit.roles.{name}", name, "role", scenario.roles)


def _role_by_seat_field(scenario: Scenario) -> dict[str, str]:
    """Return the field of each seat (`seats.AGENT` or `games.NAME.seats.AGENT`) -> role, for all games."""
    roles: dict[str, str] = {}
    for name, view in scenario.scenario_by_game().items():
        prefix = f"games.{name}.seats" if name else "seats"
        roles |= {f"{prefix}.{agent}": role for agent, role in view.seats.items()}
    return roles


def _seat_errors(scenario: Scenario) -> Iterator[str]:
    """Yield an error for each agent without a seat and for each seat without an agent."""
    try:
        agents = list(scenario.game.build().possible_agents)
    except ValueError as error:
        yield f"game: {error}"
        return
    for agent in agents:
        if agent not in scenario.seats:
            yield f"seats.{agent}: missing: game {scenario.game.kind!r} has the agents {', '.join(agents)}"
    for agent in scenario.seats:
        if agent not in agents:
            yield f"seats.{agent}: game {scenario.game.kind!r} has no such agent; {choices_hint(agent, agents)}"


def _schedule_errors(scenario: Scenario) -> Iterator[str]:
    """Yield an error for each problem of seat rotation and of the division of a step's groups among games."""
    has_different_roles = any(len(set(view.seats.values())) > 1 for view in scenario.scenario_by_game().values())
    if scenario.schedule.rotate_seats and not has_different_roles:
        yield "schedule.rotate_seats: true, but all seats have the same role; give them different ones or drop it"
    mix, games = scenario.schedule.mix, scenario.games
    if mix.by != "weights" and not games:
        yield f"schedule.mix: {mix.by!r} divides starts among several games; give `games`, or leave it out"
    trained_games = {name: played for name, played in games.items() if played.weight}
    if games and not trained_games:
        yield f"games.{next(iter(games))}.weight: 0, like those of all games, so training has none to play; raise one"
        return
    for name, share in game_shares(games).items():
        if 0 < share < MIN_GAME_SHARE:
            weight = games[name].weight
            yield f"games.{name}.weight: {weight:g} is less than {MIN_GAME_SHARE:g} of all weights; give more"
    trained_roles = {role for played in trained_games.values() for role in played.seats.values()}
    trained_policies = {role.policy for name, role in scenario.roles.items() if name in trained_roles}
    for name, policy in scenario.policies.items() if games else ():
        if policy.learner and name in scenario.sampling_policies and name not in trained_policies:
            yield f"policies.{name}.learner: all its roles are in games of weight 0; raise one, or drop the learner"
    for name in games:
        if name in SCOPES:
            yield f"games.{name}: {name!r} is a part of metrics' names (eval/{name}/...); choose another"
    for name, played in trained_games.items() if mix.by == "learning_progress" else ():
        field, metric = f"games.{name}.progress", played.progress
        metrics = list(evaluation_metrics(scenario.scenario_by_game()[name]))
        choices = choices_hint(metric or "", metrics)
        if metric is None:
            yield f"{field}: missing; schedule.mix asks for it, such as episode/measure/success; evaluated {choices}"
        elif not metric.startswith("episode/") and not is_evaluation_metric(metric, metrics):
            yield f"{field}: nothing measures {metric!r} of this game; episode/..., or {choices}"


def _agent_role_errors(scenario: Scenario) -> Iterator[str]:
    """Yield an error for each empty or repeated stop text, and for each conflict of the game with its agents."""
    for name, role in scenario.roles.items():
        if "" in role.sampling.stop:
            yield f"roles.{name}.sampling.stop: '' ends every answer before its first token; remove it"
        # `Sampling` itself takes repeated texts, because calls of programs and recorded requests may hold them.
        try:
            refuse_repeated_values(role.sampling.stop)
        except ValueError as error:
            yield f"roles.{name}.sampling.stop: {error}"
    setups: dict[str, AgentRoleAndEngine] = {}
    for agent, name in scenario.seats.items():
        role = scenario.roles.get(name)
        policy = role and scenario.policies.get(role.policy)
        if not role or not policy:
            return  # `_role_and_policy_name_errors` reports missing roles and policies
        setups[agent] = AgentRoleAndEngine(role, policy.engine, policy.model)
    for conflict in scenario.game.seating_conflicts(setups):
        yield f"game.{conflict}"
    roles = list(setups.values())
    for shift in range(1, len(roles)) if scenario.schedule.rotate_seats else ():
        rotated = dict(zip(setups, roles[shift:] + roles[:shift], strict=True))
        if conflict := next(iter(scenario.game.seating_conflicts(rotated)), None):
            yield f"schedule.rotate_seats: true, but with the roles of other seats, game.{conflict}"
            return


def _policy_errors(scenario: Scenario) -> Iterator[str]:
    """Yield an error for each engine, model and learner of a policy that do not fit together."""
    for name, policy in scenario.policies.items():
        engine, model, learner = policy.engine, policy.model, policy.learner
        if not engine.needs_model:
            if model is not None:
                yield f"policies.{name}.model: engine {engine.kind!r} has no use for a model; remove it"
            if learner is not None and learner.trains_weights:
                yield (
                    f"policies.{name}.learner: {learner.kind!r} on a policy that cannot learn: engine {engine.kind!r} "
                    "has no weights; remove the learner, or use an engine with a model (transformers)"
                )
            continue
        if model is None:
            yield f"policies.{name}.model: engine {engine.kind!r} needs a model: a folder, a hub name or {{kind: tiny}}"
            continue
        plugins = {"engine": engine, "learner": learner} if learner else {"engine": engine}
        for field, plugin in plugins.items():
            if plugin.family != model.family:
                if field == "engine":
                    engines = plugins_by_kind("engines", EngineConfig).items()
                    families = {kind: engine.family for kind, engine in engines if engine.needs_model}
                else:
                    learners = plugins_by_kind("trainers", LearnerConfig).items()
                    families = {kind: learner.family for kind, learner in learners}
                fitting = [kind for kind, family in families.items() if family == model.family]
                yield (
                    f"policies.{name}.{field}: {plugin.kind!r} works with {plugin.family}, but model {model.kind!r} is "
                    f"{model.family}; choices: {', '.join(fitting)}"
                )
        for problem in engine.model_conflict_messages(model):
            yield f"policies.{name}.engine: {problem}"


def _remote_engine_errors(scenario: Scenario) -> Iterator[str]:
    """Yield an error for each setting that an engine's time limit or its lack of token ids rules out."""
    deadline_s, evaluate = scenario.schedule.deadline_s, scenario.evaluate
    for name, policy in scenario.policies.items():
        engine = policy.engine
        if engine.request_time_limit_s > deadline_s:
            yield (
                f"schedule.deadline_s: {deadline_s:g} s, but policies.{name}.engine may take "
                f"{engine.request_time_limit_s:g} s with all its retries; give more, or the engine a smaller timeout_s "
                "or fewer retries"
            )
        if not engine.token_level and (evaluate.nashconv or evaluate.optimal):
            yield (
                f"evaluate.{'nashconv' if evaluate.nashconv else 'optimal'}: engine {engine.kind!r} of policies.{name} "
                "cannot say how likely a move is; measure `against` instead"
            )
    for name, role in scenario.roles.items():
        speaker = scenario.policies.get(role.policy)
        if speaker and not speaker.engine.token_level and role.sampling.thinking_tokens is not None:
            yield (
                f"roles.{name}.sampling.thinking_tokens: {role.sampling.thinking_tokens}, but engine "
                f"{speaker.engine.kind!r} of policies.{role.policy} cannot limit thoughts; remove it: fields of the "
                "endpoint's own, such as reasoning_effort, stand in engine.extra"
            )
        if speaker and not speaker.engine.token_level and role.history != "fresh":
            yield (
                f"roles.{name}.history: {role.history!r}, but engine {speaker.engine.kind!r} of "
                f"policies.{role.policy} cannot continue token ids; use 'fresh'"
            )


def _context_errors(scenario: Scenario) -> Iterator[str]:
    """Yield an error for each `context` of a role that has no effect."""
    for name, role in scenario.roles.items():
        speaker, context = scenario.policies.get(role.policy), role.context
        if context is None or speaker is None:
            continue
        field = f"roles.{name}.context"
        if role.answers_programs:
            yield f"{field}: a program makes the prompts of this role and decides what they hold; remove it"
        elif not speaker.engine.token_level:
            yield (
                f"{field}: engine {speaker.engine.kind!r} of policies.{role.policy} counts no tokens of prompts; "
                "remove it"
            )
        elif context.when_full == "overflow":
            if context.limit is None:
                yield f"{field}: without `limit` and `when_full` it changes nothing; give one of them, or remove it"
        elif role.history != "append":
            yield (
                f"{field}.when_full: {context.when_full!r} shortens a conversation, but with history: {role.history} "
                "every prompt is new; choose history: append, or when_full: overflow"
            )
        elif context.when_full == "drop_tool_results" and not role.listed_tools:
            yield (
                f"{field}.when_full: 'drop_tool_results', but the role has no `tools`; choices: truncate, summarize, "
                "overflow"
            )


def _structured_sampling_errors(scenario: Scenario) -> Iterator[str]:
    """Yield an error for each use of `sampling.structured` that engine, learner or evaluation rules out."""
    trained_roles = {name: learner for name, _, learner in scenario.learning_roles()}
    exact_measures = {"nashconv": scenario.evaluate.nashconv, "optimal": scenario.evaluate.optimal}
    for name, role in scenario.roles.items():
        speaker, structured = scenario.policies.get(role.policy), role.sampling.structured
        if not structured or not speaker:
            continue
        field = f"roles.{name}.sampling.structured: {structured!r}, but"
        if not speaker.engine.supports_structured:
            engines = plugins_by_kind("engines", EngineConfig).items()
            choices = ", ".join([kind for kind, engine in engines if engine.supports_structured])
            engine = speaker.engine.kind
            yield f"{field} engine {engine!r} of policies.{role.policy} limits no answers; choices: {choices}"
        if name in trained_roles and trained_roles[name].trains_weights:
            yield (
                f"{field} its turns are learned from, and a learner knows no limits of what could be sampled; remove "
                "it, or set trainable: false"
            )
        for measure, is_on in exact_measures.items():
            if is_on:
                yield f"{field} evaluate.{measure} scores given texts, which cannot be done under such a limit"


def _learner_and_experience_errors(scenario: Scenario) -> Iterator[str]:
    """Yield an error for each learner whose roles, sampling or groups do not fit, and for each experience conflict."""
    for name, policy in scenario.policies.items():
        trainable = [role.trainable for role in scenario.roles.values() if role.policy == name]
        if policy.learner and trainable and not any(trainable):
            yield f"policies.{name}.learner: no role with `trainable: true` speaks with this policy"
    trained_roles: dict[str, str] = {}
    readable: dict[str, Collection[str]] = {}
    for name, role, learner in scenario.learning_roles():
        trained_roles[name], readable[role.policy] = role.policy, learner.computable_reading_fields
        field, sampling = f"roles.{name}.sampling", role.sampling
        if learner.trains_weights and learner.trains_on_advantages and sampling.temperature == 0:
            yield f"{field}.temperature: 0 always says the same, so there is nothing to learn from; use more, such as 1"
        elif not learner.supports(sampling):
            yield (
                f"{field}: top_p {sampling.top_p:g} and top_k {sampling.top_k} cut tokens off, and "
                f"policies.{role.policy}.learner would see other probabilities; set its `truncated: recompute`, "
                "or top_p: 1 and top_k: 0"
            )
        if learner.needs_groups and every_group_has_one_episode(scenario):
            yield (
                f"schedule.group_size: 1, but policies.{role.policy}.learner {learner.kind!r} compares episodes with "
                "the same start; use 2 or more"
            )
    yield from _learner_conflicts(scenario)
    all_seats, experience = _role_by_seat_field(scenario), scenario.experience
    seats = all_seats if scenario.games else scenario.seats
    has_weights = {name: policy.engine.needs_model for name, policy in scenario.policies.items()}
    schedule = scenario.schedule
    summary = ScenarioSummary(
        scenario.game, seats, trained_roles, has_weights, schedule.groups, readable, scenario.roles
    )
    conflicts = experience.seating_conflicts(all_seats, schedule.group_size)
    for conflict in (*conflicts, *experience.scenario_conflicts(summary)):
        yield f"experience.{conflict}"


def _learner_conflicts(scenario: Scenario) -> Iterator[str]:
    """Yield an error for each setting of a learner that the learner itself finds to contradict the scenario."""
    learners = {name: policy.learner for name, policy in scenario.policies.items() if policy.learner}
    engines = {name: policy.engine for name, policy in scenario.policies.items()}
    exact = [f"evaluate.{name}" for name in ("nashconv", "optimal") if getattr(scenario.evaluate, name)]
    experience = scenario.experience
    group_size = None if experience.plays_groups or experience.off_policy else scenario.schedule.group_size
    for name, learner in learners.items():
        roles = {role: config for role, config, _ in scenario.learning_roles() if config.policy == name}
        surroundings = LearnerSurroundings(
            name, roles, engines, learners, scenario.cluster is not None, tuple(exact), group_size
        )
        for conflict in learner.scenario_conflicts(surroundings):
            yield f"policies.{name}.learner.{conflict}"


def _update_schedule_errors(scenario: Scenario) -> Iterator[str]:
    """Yield an error for each policy that never learns in the run's steps, or has an update schedule but no learner."""
    steps = scenario.schedule.steps
    for name, policy in scenario.policies.items():
        if policy.learner and not policy.count_updates(steps):
            yield (
                f"policies.{name}: never learns in schedule.steps {steps}: update_every {policy.update_every}, "
                f"alternate {policy.alternate or 'null'}; choose fewer steps an update, or an earlier start"
            )
        if policy.learner is None and (policy.update_every > 1 or policy.alternate):
            field = "update_every" if policy.update_every > 1 else "alternate"
            yield f"policies.{name}.{field}: a policy without a learner has no updates; give it one, or remove this"
