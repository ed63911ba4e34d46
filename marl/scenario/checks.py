"""Checks of what must fit together in a scenario, made before a weight is loaded.

Every message names the field, the value and the choices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

from marl.config import nearest
from marl.parts import choices
from marl.protocols import Cast, EngineConfig, LearnerConfig, Speaker
from marl.scenario.credit_checks import credit_problems, credit_rules, lacks_peers, zero_sum_problems
from marl.scenario.games import LEAST_SHARE, SCOPES, shares

if TYPE_CHECKING:
    from marl.config import Component
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
    """Check that the parts of a scenario fit together, and, if it is `to_train`, that something learns.

    Raises:
        ValueError: naming everything that does not fit, a line each.
    """
    about_parts = (_references, *map(_of_each_game, (_seats, _speakers)), _weights, _structured, _of_each_game(_remote))
    about_credit = (_rotation, _mix, _learning, _updates, credit_problems, _of_each_game(zero_sum_problems))
    about_learning = (_something_learns, _learner_processes) if to_train else ()
    about_measuring = (*map(_of_each_game, (_evaluation, _held_out)), _best, _alarms)
    finds = (*about_parts, *about_credit, *about_learning, *about_measuring)
    # What is wrong for several games in the same words is told once.
    if problems := dict.fromkeys(problem for find in finds for problem in find(scenario)):
        raise ValueError("\n".join(problems))


def _learner_processes(scenario: Scenario) -> Iterator[str]:
    """Yield why processes of their own cannot teach a policy."""
    learners = {name: policy.learner for name, policy in scenario.policies.items() if policy.learner}
    cluster = scenario.cluster
    for name in cluster.learners if cluster else ():
        if name not in learners:
            yield f"cluster.learners: {name!r} is no policy with a learner; {nearest(name, learners)}"
        elif cluster and (obstacle := learners[name].parallel_obstacle(cluster.data_parallel)):
            yield f"cluster.learners.{name}: {obstacle}"


def _of_each_game(find: Find) -> Find:
    """Return a search that looks at each game of a scenario alone, and names the fields below `games`."""

    def find_in_each(scenario: Scenario) -> Iterator[str]:
        for name, view in scenario.by_game().items():
            below = ("game", "seats", *(["evaluate"] if name and scenario.games[name].evaluate else []))
            for problem in find(view):
                inside = name and problem.startswith(tuple(f"{field}{end}" for field in below for end in ".:"))
                yield f"games.{name}.{problem}" if inside else problem

    return find_in_each


def absent(scenario: Scenario, *, random_play: bool = False) -> list[str]:
    """Return a message for each file, folder and package that the scenario needs and that is not there.

    `random_play`: only those that the game needs if random players take all seats but those that answer by rule.
    """
    parts: dict[str, Component] = {"game": scenario.game} if scenario.game else {}
    parts |= {f"games.{name}.game": played.game for name, played in scenario.games.items()}
    parts |= {f"roles.{name}": role for name, role in scenario.roles.items()}
    for name, policy in scenario.policies.items():
        if policy.engine.rule_bound or not random_play:
            parts[f"policies.{name}.engine"] = policy.engine
    if not random_play:
        parts |= _parts_of_training(scenario)
    lacking = [f"{field}.{problem}" for field, part in parts.items() for problem in part.missing()]
    if scenario.cluster and not random_play:
        lacking += [f"cluster.{problem}" for problem in scenario.cluster.missing()]
    return lacking + [
        f"track: {name!r} is not installed; pip install 'marl-llm[tracking]', or remove it"
        for name in scenario.track
        if not random_play and find_spec(name) is None
    ]


def _parts_of_training(scenario: Scenario) -> Iterator[tuple[str, Component]]:
    """Yield field and part of what random play can do without: weights, learners, credit, experience."""
    yield "experience", scenario.experience
    for field, rule in credit_rules(scenario).items():
        yield from ((f"{field}.assign", rule.assign), (f"{field}.baseline", rule.baseline))
    for name, policy in scenario.policies.items():
        yield from [(f"policies.{name}.model", policy.model)] if policy.model else ()
        yield from [(f"policies.{name}.learner", policy.learner)] if policy.learner else ()


def _unknown(field: str, name: str, noun: str, choices: Iterable[str]) -> str:
    return f"{field}: no {noun} {name!r}; {nearest(name, choices)}"


def _references(scenario: Scenario) -> Iterator[str]:
    seats = _all_seats(scenario)
    seated = {*seats.values(), *(role for way in scenario.experience.seatings(seats) for role in way.values())}
    for agent, role in seats.items():
        if role not in scenario.roles:
            yield _unknown(agent, role, "role", scenario.roles)
    for name, role in scenario.roles.items():
        if role.policy not in scenario.policies:
            yield _unknown(f"roles.{name}.policy", role.policy, "policy", scenario.policies)
        if name not in seated:
            yield f"roles.{name}: no seat uses this role; seats: {dict(scenario.seats or seats)}"
    used = {role.policy for role in scenario.roles.values()} | {*scenario.experience.speakers()}
    for name in (name for name in scenario.policies if name not in used):
        yield f"policies.{name}: no role speaks with this policy; roles: {', '.join(scenario.roles)}"
    for name in (name for name in scenario.credit.roles if name not in scenario.roles):
        yield _unknown(f"credit.roles.{name}", name, "role", scenario.roles)


def _all_seats(scenario: Scenario) -> dict[str, str]:
    """Return field of a seat -> its role, in all games."""
    places = {f"games.{name}.seats" if name else "seats": view.seats for name, view in scenario.by_game().items()}
    return {f"{place}.{agent}": role for place, seats in places.items() for agent, role in seats.items()}


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
            yield f"seats.{agent}: game {scenario.game.kind!r} has no such agent; {nearest(agent, agents)}"


def _rotation(scenario: Scenario) -> Iterator[str]:
    different = any(len(set(view.seats.values())) > 1 for view in scenario.by_game().values())
    if scenario.schedule.rotate_seats and not different:
        yield "schedule.rotate_seats: true, but all seats have the same role; give them different ones or drop it"


def _mix(scenario: Scenario) -> Iterator[str]:
    mix, games = scenario.schedule.mix, scenario.games
    if mix.by != "weights" and not games:
        yield f"schedule.mix: {mix.by!r} divides starts among several games; give `games`, or leave it out"
    for name in (name for name, share in shares(games).items() if share < LEAST_SHARE):
        yield f"games.{name}.weight: {games[name].weight:g} is less than {LEAST_SHARE:g} of all weights; give more"
    for name in (name for name in games if name in SCOPES):
        yield f"games.{name}: {name!r} is a part of metrics' names (eval/{name}/...); choose another"
    for name, played in games.items() if mix.by == "learning_progress" else ():
        field, figure = f"games.{name}.progress", played.progress
        known = list(_measured(scenario.by_game()[name]))
        choices = nearest(figure or "", known)
        if figure is None:
            yield f"{field}: missing; schedule.mix asks for it, such as episode/measure/success; evaluated {choices}"
        elif not figure.startswith("episode/") and not _is_one_of(figure, known):
            yield f"{field}: nothing measures {figure!r} of this game; episode/..., or {choices}"


def _speakers(scenario: Scenario) -> Iterator[str]:
    for name, role in scenario.roles.items():
        if "" in role.sampling.stop:
            yield f"roles.{name}.sampling.stop: '' ends every answer before its first token; remove it"
    speakers = {
        agent: Speaker(role, policy.engine, policy.model)
        for agent, name in scenario.seats.items()
        if (role := scenario.roles.get(name)) and (policy := scenario.policies.get(role.policy))
    }
    if speakers.keys() == scenario.seats.keys():  # else `_references` names those who are missing
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
            yield from (f"policies.{name}.engine: {problem}" for problem in engine.unfit(policy.model))


def _families(name: str, policy: PolicyConfig) -> Iterator[str]:
    """Yield a message for each part of a policy that works with another sort of weights than its model has."""
    model, users = policy.model, {"engine": policy.engine, "learner": policy.learner}
    for field, part in users.items():
        if model and part and part.family != model.family:
            base = EngineConfig if field == "engine" else LearnerConfig
            fitting = [kind for kind, each in choices(part.group, base).items() if _family(each) == model.family]
            yield (
                f"policies.{name}.{field}: {part.kind!r} works with {part.family}, but model {model.kind!r} is "
                f"{model.family}; choices: {', '.join(fitting)}"
            )


def _family(part: type[Component]) -> str | None:
    """Return the sort of weights that an engine or learner works with; None if it needs none."""
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
        speaker, wanted = scenario.policies.get(role.policy), role.sampling.structured
        if not wanted or not speaker:
            continue
        where = f"roles.{name}.sampling.structured: {wanted!r}, but"
        if not speaker.engine.structures:
            able = [kind for kind, each in choices("engines", EngineConfig).items() if _structures(each)]
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


def _structures(part: type[Component]) -> bool:
    return issubclass(part, EngineConfig) and part.structures


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
        if learner.compares and lacks_peers(scenario):
            yield (
                f"schedule.group_size: 1, but policies.{role.policy}.learner {learner.kind!r} compares episodes with "
                "the same start; use 2 or more"
            )
    conflicts = scenario.experience.conflicts(_all_seats(scenario), scenario.schedule.group_size)
    yield from (f"experience.{message}" for message in conflicts)
    yield from (f"experience.{message}" for message in scenario.experience.miscast(_cast(scenario)))


def _cast(scenario: Scenario) -> Cast:
    learning = {name: role.policy for name, role, _ in scenario.learning_roles()}
    weights = {name: policy.engine.needs_model for name, policy in scenario.policies.items()}
    readable = {role.policy: learner.readable for _, role, learner in scenario.learning_roles()}
    return Cast(scenario.game, _all_seats(scenario) if scenario.games else scenario.seats, learning, weights, readable)


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
            yield f"evaluate.against.{name}: no such opponent in game {game.kind!r}; {nearest(name, opponents)}"


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
    known = [figure for game, view in scenario.by_game().items() for figure in _measured_of(game, view)]
    if not _is_one_of(name, known):
        shown = [f"{figure}..." if figure.endswith("/") else figure for figure in known]
        choices = nearest(name, shown) if shown else "nothing is evaluated; give evaluate.held_out"
        yield f"evaluate.keep_best: nothing measures {name!r}; {choices}"


def _is_one_of(name: str, known: Iterable[str]) -> bool:
    return any(name == figure or (figure.endswith("/") and name.startswith(figure)) for figure in known)


def _measured_of(game: str, view: Scenario) -> list[str]:
    """Return the names of what is evaluated of one game; `game`: its name among several, or ""."""
    return [figure.replace("eval/", f"eval/{game}/", 1) if game else figure for figure in _measured(view)]


def _measured(scenario: Scenario) -> Iterator[str]:
    """Yield the names of what is evaluated; one that ends with a slash stands for all that begin with it."""
    evaluate, agents = scenario.evaluate, tuple(scenario.seats)
    measures = scenario.game.measured()
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
        places = (f"eval/{opponent}", *(f"eval/{opponent}/{agent}" for agent in agents))
        yield from (f"{place}/{figure}" for place in places for figure in ("mean", "win", "draw", "loss"))


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
