"""Checks of a scenario's consistency, made before any weight is loaded.

Every message names the field, the value and the choices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

from marl.core.config import choices_hint
from marl.core.plugins import plugins_by_kind
from marl.protocols import AgentSetup, EngineConfig, LearnerConfig, ScenarioSummary
from marl.scenario.credit_checks import credit_problems, credit_rules, lacks_peers, zero_sum_problems
from marl.scenario.games import MIN_GAME_SHARE, SCOPES, game_shares

if TYPE_CHECKING:
    from marl.core.config import PluginConfig
    from marl.protocols import RoleConfig
    from marl.scenario.schema import PolicyConfig, Scenario

Find = Callable[["Scenario"], Iterable[str]]


def check_games(scenario: Scenario) -> None:
    """Check that a scenario has one game, or several.

    Raises:
        ValueError: if it has none, or both.
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
        ValueError: with one line for each problem.
    """
    parts = (_references, *map(_of_each_game, (_seats, _speakers)), _weights, _structured, _of_each_game(_remote))
    credit = (_rotation, _mix, _learning, _updates, credit_problems, _of_each_game(zero_sum_problems))
    learning = (_something_learns, _learner_processes) if to_train else ()
    measuring = (*map(_of_each_game, (_evaluation, _held_out)), _best, _alarms)
    # A dict: several games may cause the same message, which is shown once.
    problems: dict[str, None] = {}
    for find_problems in (*parts, *credit, *learning, *measuring):
        problems |= dict.fromkeys(find_problems(scenario))
    if problems:
        raise ValueError("\n".join(problems))


def _learner_processes(scenario: Scenario) -> Iterator[str]:
    """Yield a message for each policy that cannot be trained in separate processes."""
    learners = {name: policy.learner for name, policy in scenario.policies.items() if policy.learner}
    cluster = scenario.cluster
    for name in cluster.learners if cluster else ():
        if name not in learners:
            yield f"cluster.learners: {name!r} is no policy with a learner; {choices_hint(name, learners)}"
        elif cluster and (obstacle := learners[name].parallel_obstacle(cluster.data_parallel)):
            yield f"cluster.learners.{name}: {obstacle}"


def _of_each_game(find: Find) -> Find:
    """Wrap `find`: it is applied to each game alone, and a game's fields get the prefix `games.NAME`."""

    def find_in_each(scenario: Scenario) -> Iterator[str]:
        for name, view in scenario.by_game().items():
            game_fields = ["game.", "game:", "seats.", "seats:"]
            # Without its own `evaluate`, a game is measured by the scenario's, and the message names that field.
            if name and scenario.games[name].evaluate:
                game_fields += ["evaluate.", "evaluate:"]
            for problem in find(view):
                is_of_game = name and problem.startswith(tuple(game_fields))
                yield f"games.{name}.{problem}" if is_of_game else problem

    return find_in_each


def missing_requirements(scenario: Scenario, *, random_play: bool = False) -> list[str]:
    """Return a message for each missing file, folder and package of a scenario.

    Args:
        scenario: scenario to check.
        random_play: check only requirements of play in which random players replace all policies but rule-based ones.
    """
    parts: dict[str, PluginConfig] = {"game": scenario.game} if scenario.game else {}
    parts |= {f"games.{name}.game": played.game for name, played in scenario.games.items()}
    parts |= {f"roles.{name}": role for name, role in scenario.roles.items()}
    for name, policy in scenario.policies.items():
        if policy.engine.is_rule_based or not random_play:
            parts[f"policies.{name}.engine"] = policy.engine
    if not random_play:
        parts |= _parts_of_training(scenario)
    missing: list[str] = []
    for field, part in parts.items():
        missing += [f"{field}.{problem}" for problem in part.unmet_requirements()]
    if random_play:
        return missing
    if scenario.cluster:
        missing += [f"cluster.{problem}" for problem in scenario.cluster.missing()]
    for name in scenario.track:
        if find_spec(name) is None:
            missing.append(f"track: {name!r} is not installed; pip install 'marl-llm[tracking]', or remove it")
    return missing


def _parts_of_training(scenario: Scenario) -> Iterator[tuple[str, PluginConfig]]:
    """Yield (field, plug-in) of experience, credit, models and learners, which random play does not use."""
    yield "experience", scenario.experience
    for field, rule in credit_rules(scenario).items():
        yield from ((f"{field}.assign", rule.assign), (f"{field}.baseline", rule.baseline))
    for name, policy in scenario.policies.items():
        yield from [(f"policies.{name}.model", policy.model)] if policy.model else ()
        yield from [(f"policies.{name}.learner", policy.learner)] if policy.learner else ()


def _unknown(field: str, name: str, noun: str, choices: Iterable[str]) -> str:
    return f"{field}: no {noun} {name!r}; {choices_hint(name, choices)}"


def _references(scenario: Scenario) -> Iterator[str]:
    seats = _all_seats(scenario)
    seated = {*seats.values()}
    for seating in scenario.experience.seatings(seats):
        seated |= {*seating.values()}
    for agent, role in seats.items():
        if role not in scenario.roles:
            yield _unknown(agent, role, "role", scenario.roles)
    for name, role in scenario.roles.items():
        if role.policy not in scenario.policies:
            yield _unknown(f"roles.{name}.policy", role.policy, "policy", scenario.policies)
        if name not in seated:
            yield f"roles.{name}: no seat uses this role; seats: {dict(scenario.seats or seats)}"
    used = {role.policy for role in scenario.roles.values()} | {*scenario.experience.extra_policies()}
    for name in [name for name in scenario.policies if name not in used]:
        yield f"policies.{name}: no role speaks with this policy; roles: {', '.join(scenario.roles)}"
    for name in scenario.credit.roles:
        if name not in scenario.roles:
            yield _unknown(f"credit.roles.{name}", name, "role", scenario.roles)


def _all_seats(scenario: Scenario) -> dict[str, str]:
    """Return field of a seat (`games.NAME.seats.AGENT` or `seats.AGENT`) -> role, in all games."""
    seats: dict[str, str] = {}
    for name, view in scenario.by_game().items():
        field = f"games.{name}.seats" if name else "seats"
        seats |= {f"{field}.{agent}": role for agent, role in view.seats.items()}
    return seats


def _seats(scenario: Scenario) -> Iterator[str]:
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


def _rotation(scenario: Scenario) -> Iterator[str]:
    different = any(len(set(view.seats.values())) > 1 for view in scenario.by_game().values())
    if scenario.schedule.rotate_seats and not different:
        yield "schedule.rotate_seats: true, but all seats have the same role; give them different ones or drop it"


def _mix(scenario: Scenario) -> Iterator[str]:
    mix, games = scenario.schedule.mix, scenario.games
    if mix.by != "weights" and not games:
        yield f"schedule.mix: {mix.by!r} divides starts among several games; give `games`, or leave it out"
    for name, share in game_shares(games).items():
        if share < MIN_GAME_SHARE:
            weight = games[name].weight
            yield f"games.{name}.weight: {weight:g} is less than {MIN_GAME_SHARE:g} of all weights; give more"
    for name in games:
        if name in SCOPES:
            yield f"games.{name}: {name!r} is a part of metrics' names (eval/{name}/...); choose another"
    for name, played in games.items() if mix.by == "learning_progress" else ():
        field, figure = f"games.{name}.progress", played.progress
        metrics = list(_measured(scenario.by_game()[name]))
        choices = choices_hint(figure or "", metrics)
        if figure is None:
            yield f"{field}: missing; schedule.mix asks for it, such as episode/measure/success; evaluated {choices}"
        elif not figure.startswith("episode/") and not _is_one_of(figure, metrics):
            yield f"{field}: nothing measures {figure!r} of this game; episode/..., or {choices}"


def _speakers(scenario: Scenario) -> Iterator[str]:
    for name, role in scenario.roles.items():
        if "" in role.sampling.stop:
            yield f"roles.{name}.sampling.stop: '' ends every answer before its first token; remove it"
    speakers = {
        agent: AgentSetup(role, policy.engine, policy.model)
        for agent, name in scenario.seats.items()
        if (role := scenario.roles.get(name)) and (policy := scenario.policies.get(role.policy))
    }
    if speakers.keys() == scenario.seats.keys():  # else `_references` and `_seats` name the missing ones
        yield from (f"game.{problem}" for problem in scenario.game.conflicts(speakers))


def _weights(scenario: Scenario) -> Iterator[str]:
    for name, policy in scenario.policies.items():
        engine = policy.engine
        if engine.needs_model and policy.model is None:
            yield f"policies.{name}.model: engine {engine.kind!r} needs a model: a folder, a hub name or {{kind: tiny}}"
        if not engine.needs_model and policy.model is not None:
            yield f"policies.{name}.model: engine {engine.kind!r} has no use for a model; remove it"
        if not engine.needs_model and policy.learner is not None:
            yield (
                f"policies.{name}.learner: {policy.learner.kind!r} on a policy that cannot learn: engine "
                f"{engine.kind!r} has no weights; remove the learner, or use an engine with a model (transformers)"
            )
        if engine.needs_model and policy.model is not None:
            yield from _families(name, policy)
            yield from (f"policies.{name}.engine: {problem}" for problem in engine.model_conflicts(policy.model))


def _families(name: str, policy: PolicyConfig) -> Iterator[str]:
    """Yield a message if the engine or the learner of a policy works with another family of weights than its model."""
    model, users = policy.model, {"engine": policy.engine, "learner": policy.learner}
    for field, part in users.items():
        if model and part and part.family != model.family:
            base = EngineConfig if field == "engine" else LearnerConfig
            plugins = plugins_by_kind(part.group, base)
            fitting = [kind for kind, plugin in plugins.items() if _family(plugin) == model.family]
            yield (
                f"policies.{name}.{field}: {part.kind!r} works with {part.family}, but model {model.kind!r} is "
                f"{model.family}; choices: {', '.join(fitting)}"
            )


def _family(part: type[PluginConfig]) -> str | None:
    """Return the family of weights that an engine or learner works with, or None if it works without weights."""
    if issubclass(part, EngineConfig):
        return part.family if part.needs_model else None
    return part.family if issubclass(part, LearnerConfig) else None


def _remote(scenario: Scenario) -> Iterator[str]:
    deadline_s, evaluate = scenario.schedule.deadline_s, scenario.evaluate
    for name, policy in scenario.policies.items():
        engine = policy.engine
        if engine.max_wait_s > deadline_s:
            yield (
                f"schedule.deadline_s: {deadline_s:g} s, but policies.{name}.engine may take {engine.max_wait_s:g} s "
                "with all its retries; give more, or the engine a smaller timeout_s or fewer retries"
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


def _structured(scenario: Scenario) -> Iterator[str]:
    learning = {name for name, _, _ in scenario.learning_roles()}
    exact = [name for name in ("nashconv", "optimal") if getattr(scenario.evaluate, name)]
    for name, role in scenario.roles.items():
        speaker, structured = scenario.policies.get(role.policy), role.sampling.structured
        if not structured or not speaker:
            continue
        where = f"roles.{name}.sampling.structured: {structured!r}, but"
        if not speaker.engine.supports_structured:
            engines = plugins_by_kind("engines", EngineConfig).items()
            able = [kind for kind, engine in engines if issubclass(engine, EngineConfig) and engine.supports_structured]
            yield (
                f"{where} engine {speaker.engine.kind!r} of policies.{role.policy} limits no answers; choices: "
                f"{', '.join(able)}"
            )
        if name in learning:
            yield (
                f"{where} its turns are learned from, and a learner knows no limits of what could be sampled; remove "
                "it, or set trainable: false"
            )
        for measure in exact:
            yield f"{where} evaluate.{measure} scores given texts, which cannot be done under such a limit"


def _something_learns(scenario: Scenario) -> Iterator[str]:
    if not any(policy.learner for policy in scenario.policies.values()):
        yield f"policies: nothing to train: give one of {', '.join(scenario.policies)} a learner"


def _learning(scenario: Scenario) -> Iterator[str]:
    for name, policy in scenario.policies.items():
        roles = [role for role in scenario.roles.values() if role.policy == name]
        if policy.learner and roles and not any(role.trainable for role in roles):
            yield f"policies.{name}.learner: no role with `trainable: true` speaks with this policy"
    for name, role, learner in scenario.learning_roles():
        yield from _sampling(f"roles.{name}.sampling", role, learner)
        if learner.needs_groups and lacks_peers(scenario):
            yield (
                f"schedule.group_size: 1, but policies.{role.policy}.learner {learner.kind!r} compares episodes with "
                "the same start; use 2 or more"
            )
    conflicts = scenario.experience.conflicts(_all_seats(scenario), scenario.schedule.group_size)
    yield from (f"experience.{message}" for message in conflicts)
    yield from (f"experience.{message}" for message in scenario.experience.scenario_conflicts(_cast(scenario)))


def _cast(scenario: Scenario) -> ScenarioSummary:
    learning = {name: role.policy for name, role, _ in scenario.learning_roles()}
    weights = {name: policy.engine.needs_model for name, policy in scenario.policies.items()}
    readable = {role.policy: learner.readable for _, role, learner in scenario.learning_roles()}
    return ScenarioSummary(
        scenario.game, _all_seats(scenario) if scenario.games else scenario.seats, learning, weights, readable
    )


def _updates(scenario: Scenario) -> Iterator[str]:
    steps = scenario.schedule.steps
    for name, policy in scenario.policies.items():
        if policy.learner and not policy.updates(steps):
            yield (
                f"policies.{name}: never learns in schedule.steps {steps}: update_every {policy.update_every}, "
                f"alternate {policy.alternate or 'null'}; choose fewer steps an update, or an earlier start"
            )
        if policy.learner is None and (policy.update_every > 1 or policy.alternate):
            field = "update_every" if policy.update_every > 1 else "alternate"
            yield f"policies.{name}.{field}: a policy without a learner has no updates; give it one, or remove this"


def _sampling(field: str, role: RoleConfig, learner: LearnerConfig) -> Iterator[str]:
    sampling = role.sampling
    if learner.uses_credit and sampling.temperature == 0:
        yield f"{field}.temperature: 0 always says the same, so there is nothing to learn from; use more, such as 1"
    elif not learner.supports(sampling):
        yield (
            f"{field}: top_p {sampling.top_p:g} and top_k {sampling.top_k} cut tokens off, and "
            f"policies.{role.policy}.learner would see other probabilities; set its `truncated: recompute`, "
            "or top_p: 1 and top_k: 0"
        )


def _evaluation(scenario: Scenario) -> Iterator[str]:
    game, evaluate = scenario.game, scenario.evaluate
    if evaluate.nashconv and game.starts() is None:
        yield f"evaluate.nashconv: game {game.kind!r} does not export its deals; measure `against` instead"
    for name, role in scenario.roles.items():
        if (evaluate.nashconv or evaluate.optimal) and role.history != "fresh":
            yield f"roles.{name}.history: {role.history!r}, but exact evaluation asks each question alone; use 'fresh'"
    if evaluate.optimal and not game.positions():
        yield f"evaluate.optimal: game {game.kind!r} does not know its optimal moves; measure `against` instead"
    opponents = {"random", *game.opponents()}
    for name in evaluate.against:
        if name not in opponents:
            yield f"evaluate.against.{name}: no such opponent in game {game.kind!r}; {choices_hint(name, opponents)}"


def _held_out(scenario: Scenario) -> Iterator[str]:
    game, evaluate = scenario.game, scenario.evaluate
    if evaluate.held_out:
        try:
            count = len(game.held_out(evaluate.held_out))
        except ValueError:
            return  # `_seats` reports a game that cannot be built
        if count < evaluate.held_out:
            starts = f"{count} starts" if count else "no starts"
            yield f"evaluate.held_out: {evaluate.held_out}, but game {game.kind!r} holds {starts} out of training"
    elif evaluate.greedy:
        yield "evaluate.greedy: true, but nothing is held out to be played so; give evaluate.held_out"


def _best(scenario: Scenario) -> Iterator[str]:
    evaluate, name = scenario.evaluate, scenario.evaluate.best_by
    if name is None:
        if evaluate.patience:
            yield f"evaluate.patience: {evaluate.patience}, but nothing says what is best; give evaluate.keep_best"
        return
    metrics: list[str] = []
    for game, view in scenario.by_game().items():
        metrics += [metric.replace("eval/", f"eval/{game}/", 1) if game else metric for metric in _measured(view)]
    if not _is_one_of(name, metrics):
        shown = [f"{metric}..." if metric.endswith("/") else metric for metric in metrics]
        choices = choices_hint(name, shown) if shown else "nothing is evaluated; give evaluate.held_out"
        yield f"evaluate.keep_best: nothing measures {name!r}; {choices}"


def _is_one_of(name: str, metrics: Iterable[str]) -> bool:
    """Return True if `name` is in `metrics`, or starts with a metric that ends with a slash."""
    return any(name == metric or (metric.endswith("/") and name.startswith(metric)) for metric in metrics)


def _measured(scenario: Scenario) -> Iterator[str]:
    """Yield the names of evaluation metrics. A name that ends with a slash stands for all names with this prefix."""
    evaluate, agents = scenario.evaluate, tuple(scenario.seats)
    measures = scenario.game.measure_names()
    scopes = {"held_out": evaluate.held_out, "held_out_greedy": evaluate.greedy}
    below = [*(measures or ()), *(f"return/{agent}" for agent in agents), *(f"role/{role}/" for role in scenario.roles)]
    for scope in (f"eval/{name}/" for name, enabled in scopes.items() if enabled):
        yield from [scope] if measures is None else (f"{scope}{name}" for name in below)
    if evaluate.optimal:
        yield "eval/optimal"
    if evaluate.nashconv:
        yield from ("eval/nashconv", *(f"eval/value/{agent}" for agent in agents))
    if evaluate.average:
        yield "eval/average/nashconv"
    if evaluate.optimal or evaluate.nashconv:
        yield "eval/legal_mass"
    for opponent in evaluate.against:
        for prefix in (f"eval/{opponent}", *(f"eval/{opponent}/{agent}" for agent in agents)):
            yield from (f"{prefix}/mean", f"{prefix}/win", f"{prefix}/draw", f"{prefix}/loss")


def _alarms(scenario: Scenario) -> Iterator[str]:
    alarms = scenario.alarms
    if alarms is None:
        return
    for name in alarms.roles:
        if name not in scenario.roles:
            yield _unknown(f"alarms.roles.{name}", name, "role", scenario.roles)
    thresholds = [limits for role in scenario.roles if (limits := alarms.of_role(role))]
    for kind in alarms.stop:
        if all(limits.limit(kind) is None for limits in thresholds):
            field = "reward" if kind == "credit" else kind
            yield f"alarms.stop: {kind!r}, but this alarm is off for every role; give alarms.{field} a threshold"
