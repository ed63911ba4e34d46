"""Mistakes of a scenario found by a dry run: errors prevent training or learning, warnings do not."""

from __future__ import annotations

from collections.abc import Iterator

from marl.core.config import choices_hint, shorten
from marl.engines.scripted import ScriptedConfig
from marl.evaluation import dry_run as dry_run_module
from marl.evaluation.dry_run import DryRun, count_turns_of_roles
from marl.evaluation.held_out import summarize_episodes
from marl.evaluation.replay_check import replay_errors
from marl.models.q_network import QNetworkModel
from marl.models.tiny import Tiny
from marl.protocols import ModelConfig
from marl.protocols.programs import parse_program_answer
from marl.scenario.credit_checks import credit_rules, roles_credited_by_rule
from marl.scenario.schema import Scenario
from marl.scenario.teacher_checks import vocabulary_problem

_REWARDS_FORM = "rewards: {ROLE: {NAME: EXPRESSION}}"


def scenario_errors(dry_run: DryRun) -> Iterator[str]:
    """Yield an error for each fault of the scenario that would end a run or prevent learning."""
    # A role that may answer with any text needs example answers, for random play and for warm-up.
    for role in sorted(dry_run.free_text_roles):
        policy = dry_run.scenario.policies[dry_run.scenario.roles[role].policy]
        base = _tiny_base(policy.model)
        if base and (base.warm_up or base.vocabulary == "words"):
            reason = "its tiny model learns words and answers from random play"
        elif isinstance(policy.engine, ScriptedConfig):
            reason = f"engine {policy.engine.kind!r} plays"
        elif "random" in dry_run.scenario.evaluate.against:
            reason = "`random` of evaluate.against plays"
        else:
            continue
        yield f"roles.{role}: any text is a move and the game gives no examples of moves, but {reason}"
    for role, cause in _causes_of_failed_programs(dry_run).items():
        yield f"roles.{role}: its program failed in each of {len(dry_run.episodes)} random episodes; the last: {cause}"
    for role, turns in dry_run.turns_by_role.items():
        if role not in dry_run.free_text_roles and not any(turn.action for turn in turns):
            text = turns[0].completion.text
            yield f"roles.{role}: reads no move in what it is to say itself, such as {text!r}"
    if dry_run.episodes and not dry_run.scenario.experience.plays_groups:
        for name, policy in dry_run.scenario.policies.items():
            roles = dry_run.scenario.roles.items()
            learning_roles = [role for role, settings in roles if settings.policy == name and settings.trainable]
            turns_per_episode = max(count_turns_of_roles(episode, learning_roles) for episode in dry_run.episodes)
            episode_count = dry_run.episodes_per_step * policy.update_every
            samples = turns_per_episode * episode_count
            minibatches = dict(policy.learner or ()).get("minibatches", 1)
            if minibatches > max(samples, 1):
                yield (
                    f"policies.{name}.learner.minibatches: {minibatches}, but an update has about {samples} "
                    f"samples: {episode_count} episodes with up to {turns_per_episode} turns each"
                )
    for name, facts in dry_run.model_facts.items():
        if facts.target_error:
            yield f"policies.{name}.model.{facts.target_error}"
    yield from _teacher_vocabulary_errors(dry_run)
    yield from _unlisted_action_errors(dry_run)
    yield from _missing_measure_errors(dry_run)
    yield from _missing_problem_errors(dry_run)
    yield from dry_run.chat_template_errors
    yield from dry_run.rejected_gold_errors
    if dry_run.unfinished_requests is None:
        yield from replay_errors(dry_run.scenario)
    yield from _token_limit_errors(dry_run)
    yield from _constant_reward_errors(dry_run)


def _teacher_vocabulary_errors(dry_run: DryRun) -> Iterator[str]:
    """Yield an error for each teacher that is known to have another vocabulary than its student, and for each setting
    of a student that does not fit its vocabulary."""
    for name, policy in dry_run.scenario.policies.items():
        known = dry_run.model_facts.get(name)
        if policy.learner and policy.learner.taught_by and known and known.vocabulary:
            for error in policy.learner.vocabulary_conflicts(len(known.vocabulary())):
                yield f"policies.{name}.learner.{error}"
        for field, teacher in policy.learner.taught_by.items() if policy.learner else ():
            path, facts = f"policies.{name}.learner.{field}", dry_run.model_facts
            own, taught = facts.get(name), facts.get(teacher)
            tiny = [_tiny_base(dry_run.scenario.policies[each].model) for each in (name, teacher)]
            if tiny[0] and tiny[1] and tiny[0].vocabulary != tiny[1].vocabulary:
                yield (
                    f"{path}: {teacher!r} has a vocabulary of {tiny[1].vocabulary}, {name!r} of {tiny[0].vocabulary}, "
                    "but the two are compared token by token; give both the same"
                )
                continue
            if not own or not taught or not own.vocabulary or not taught.vocabulary:
                continue  # compared when the models are made
            if problem := vocabulary_problem(name, teacher, own.vocabulary(), taught.vocabulary()):
                yield f"{path}: {problem}"


def _unlisted_action_errors(dry_run: DryRun) -> Iterator[str]:
    """Yield an error for each role that chooses by a Q-network from moves that the network does not list."""
    for role, turns in dry_run.turns_by_role.items():
        policy = dry_run.scenario.roles[role].policy
        model = dry_run.scenario.policies[policy].model
        if not isinstance(model, QNetworkModel):
            continue
        moves = dict.fromkeys(move for turn in turns for move in turn.request.options or ())
        if unlisted := [move for move in moves if move not in model.actions]:
            yield (
                f"policies.{policy}.model.actions: {', '.join(model.actions)}, but role {role!r} chooses among "
                f"{', '.join(moves)}; add {', '.join(unlisted)}"
            )


def _missing_measure_errors(dry_run: DryRun) -> Iterator[str]:
    """Yield an error for each training game without the measure that the experience needs."""
    scenario, measure = dry_run.scenario, dry_run.scenario.experience.needed_measure
    for game, episodes in dry_run.episodes_by_game.items() if measure else ():
        is_trained = not game or scenario.games[game].weight > 0
        measures = {name for episode in episodes for name in episode.findings.measures}
        if is_trained and measure not in measures:
            where = f" of game {game!r}" if game else ""
            hint = choices_hint(measure, sorted(measures))
            yield f"experience.success: no random episode{where} had a measure {measure!r}; {hint}"


def _missing_problem_errors(dry_run: DryRun) -> Iterator[str]:
    """Yield an error for each baseline that compares turns on one problem, for a role with turns on none."""
    for field, rule in credit_rules(dry_run.scenario).items():
        roles = roles_credited_by_rule(dry_run.scenario, field) if dict(rule.baseline).get("like") == "problem" else ()
        for role in roles:
            if not all(turn.problem for turn in dry_run.turns_by_role.get(role, ())):
                yield (
                    f"{field}.baseline.like: 'problem', but role {role!r} works on none: its game gives no `problem` "
                    "in `infos`; choices: start, prompt"
                )


def _tiny_base(model: ModelConfig | None) -> Tiny | None:
    """Return the tiny model that `model` is or adapts, or None."""
    base = model and (model.shared_base() or model)
    return base if isinstance(base, Tiny) else None


def _causes_of_failed_programs(dry_run: DryRun) -> dict[str, str]:
    """Return role -> its program's last error message, for the roles whose programs failed in all random episodes."""
    causes: dict[str, str] = {}
    for role, turns in dry_run.turns_by_role.items():
        if dry_run.scenario.policies[dry_run.scenario.roles[role].policy].engine.runs_programs:
            answers = [parse_program_answer(turn.completion.text) for turn in turns]
            if all(answer and answer.failed for answer in answers):
                causes[role] = answers[-1].why if answers[-1] else ""
    return causes


def _constant_reward_errors(dry_run: DryRun) -> Iterator[str]:
    """Yield an error for each learning role whose rewards in its game are constant."""
    learning = _roles_trained_on_rewards(dry_run)
    for game, view in dry_run.scenario.scenario_by_game().items():
        field = f"games.{game}.game" if game else "game"
        constant = view.game.constant_rewards()
        if constant is None and learning:
            yield f"{field}.rewards: empty, so no role is ever paid or learns; write {_REWARDS_FORM}"
        for role, amount in (constant or {}).items():
            if role in learning and amount:
                yield f"{field}.rewards.{role}: {amount:g} whatever the role does, so that it learns nothing"
            elif role in learning:
                yield (
                    f"{field}.rewards.{role}: missing or 0, so that the role learns nothing; pay it, such as "
                    f"{{team: ...}}, or set roles.{role}.trainable: false"
                )


def _roles_trained_on_rewards(dry_run: DryRun) -> list[str]:
    """Return the roles that learn from rewards of the game alone.

    Rules other than `outcome` may assign credit without rewards of the game, and penalties on tokens teach, too.
    """
    roles: list[str] = []
    for role in dry_run.scenario.credited_roles():
        rule = dry_run.scenario.credit.roles.get(role, dry_run.scenario.credit)
        if rule.assign.kind == "outcome" and not (rule.kl or rule.overlong or rule.token_cost):
            roles.append(role)
    return roles


def _token_limit_errors(dry_run: DryRun) -> Iterator[str]:
    """Yield an error for each role whose `max_tokens` or context is too short for every answer or prompt."""
    for role, counts in dry_run.prompt_token_counts.items():
        settings, lengths = dry_run.scenario.roles[role], dry_run.legal_answer_tokens(role)
        (context, limited_by), limit = _context_limit_and_origin(dry_run, settings.policy), settings.sampling.max_tokens
        if context is not None and min(counts) >= context:
            yield (
                f"roles.{role}: its shortest prompt has {min(counts):,} tokens, more than {limited_by} {context:,}, so "
                "that no answer fits"
            )
        text = min(lengths, key=lengths.__getitem__, default="")
        if text and lengths[text] > limit:
            yield (
                f"roles.{role}.sampling.max_tokens: {limit}, but its shortest answer here, {shorten(repr(text))}, "
                f"has {lengths[text]} tokens; give {max(lengths.values())} and what it needs to think"
            )


def scenario_warnings(dry_run: DryRun) -> Iterator[str]:
    """Yield a warning for each likely mistake in the scenario that does not prevent a run."""
    scenario = dry_run.scenario
    if dry_run.unfinished_requests is not None:
        yield _unfinished_episode_warning(dry_run, dry_run.unfinished_requests)
    seated: set[str] = set()
    for view in scenario.scenario_by_game().values():
        seated |= {*view.seats.values()}
    # Roles without a seat here have one only in certain episodes of the experience, such as a league's exploiters.
    for role in scenario.roles:
        if role in seated and role not in dry_run.turns_by_role and dry_run.episodes:
            yield f"roles.{role}: did not speak in {len(dry_run.episodes)} random episodes"
    yield from _update_count_warnings(scenario)
    yield from _cheap_illegal_move_warnings(dry_run)
    yield from _constant_return_warnings(dry_run)
    yield from _leaked_opponent_text_warnings(dry_run)
    # A role that hears another role but never uses its texts or facts may have a faulty prompt template.
    used = set[tuple[str, str]]()
    for episode in dry_run.episodes:
        turns = {turn.id: turn for turn in episode.turns}
        for source, reader, kinds in episode.graph.edges(data="kinds"):
            # A `gated` edge only decides who may speak, so it does not count as using the source's text.
            if {*kinds} - {"gated"}:
                used.add((turns[reader].role, turns[source].role))
    for role, speaker in sorted(dry_run.audible_roles - used) if dry_run.episodes else ():
        yield (
            f"roles.{role}: hears role {speaker!r}, but no prompt in {len(dry_run.episodes)} random episodes used its "
            "words; show them in the `prompt`, as {% for turn in heard %}{{ turn.text }}{% endfor %}, or do not "
            "let it hear them"
        )
    # `best_checkpoint_metric` may name a held-out measure that no random episode reports.
    name, played = scenario.evaluate.best_checkpoint_metric, dry_run.episodes_by_game
    for game, view in scenario.scenario_by_game().items():
        scope = f"eval/{game}/held_out/" if game else "eval/held_out/"
        if name and name.startswith(scope) and view.game.measure_names() is None and game in played:
            measure = name.removeprefix(scope)
            choices = [figure for figure in summarize_episodes(played[game]) if not figure.startswith("role/")]
            if measure not in choices and not measure.startswith("role/"):
                hint = choices_hint(measure, choices)
                yield f"evaluate.keep_best: no random episode had a measure {measure!r}; {hint}"
    for role, counts in dry_run.prompt_token_counts.items():
        settings = scenario.roles[role]
        context, limited_by = _context_limit_and_origin(dry_run, settings.policy)
        if context is not None and max(counts) + settings.sampling.max_tokens > context:
            yield (
                f"roles.{role}: a prompt of {max(counts):,} tokens and an answer of up to "
                f"{settings.sampling.max_tokens:,} are more than {limited_by} {context:,}"
            )


def _update_count_warnings(scenario: Scenario) -> Iterator[str]:
    """Yield the warnings of learners about the number of their updates in the run."""
    for name, policy in scenario.policies.items():
        updates = policy.count_updates(scenario.schedule.steps)
        for warning in policy.learner.update_count_warnings(updates) if policy.learner else ():
            yield f"policies.{name}.learner.{warning}"


def _unfinished_episode_warning(dry_run: DryRun, request_count: int) -> str:
    """Return the warning about the episode that exceeded the time limit after `request_count` requests."""
    role = dry_run.last_role
    questions = f"{request_count:,} question{'s' * (request_count != 1)}"
    took = f"had not ended after {dry_run_module.LIMIT_S:g} s and {questions} of random play"
    policy = role and dry_run.scenario.roles[role].policy
    if policy and dry_run.scenario.policies[policy].engine.runs_programs:
        return (
            f"roles.{role}: its program {took}; a program without end is stopped by "
            f"policies.{policy}.engine.timeout_s, and an episode is left out after engine.attempts such programs"
        )
    return f"an episode {took}; the last went to role {role!r}"


def _context_limit_and_origin(dry_run: DryRun, policy: str) -> tuple[int | None, str]:
    """Return the maximum length of a prompt with its answer [tokens], and a phrase that names the limit's origin."""
    context, limit = (
        dry_run.model_facts[policy].context,
        dict(dry_run.scenario.policies[policy].engine).get("max_context"),
    )
    if limit is not None and (context is None or limit < context):
        return limit, f"policies.{policy}.engine.max_context,"
    return context, f"what the model of policies.{policy} was made for,"


def _leaked_opponent_text_warnings(dry_run: DryRun) -> Iterator[str]:
    """Yield a warning for each role whose prompt shows an opponent's full text, which may reveal hidden facts."""
    games, leaks = dry_run.scenario.scenario_by_game(), dict[tuple[str, str], str]()
    for episode in dry_run.episodes:
        turns = {turn.id: turn for turn in episode.turns}
        game = games[episode.deal.game].game
        # Hidden information can leak only to opponents: team mates are meant to read each other's words.
        if game.has_perfect_information() or not game.is_zero_sum():
            continue
        for turn in episode.turns:
            for span in turn.request.marks:
                source = turns.get(span.source)
                if source is None or span.kind != "heard" or source.agent == turn.agent or not source.request.options:
                    continue
                shown, said = turn.request.messages[span.message].content[span.begin : span.end], source.completion.text
                if said in shown and said != source.action:
                    leaks[turn.role, source.role] = game.kind
    for (role, speaker), game in sorted(leaks.items()):
        yield (
            f"roles.{role}.prompt: `heard` shows all that role {speaker!r} says in game {game!r}, with anything that "
            "it says of what only it can see; show {{ turn.move }} instead of {{ turn.text }}, or leave it out"
        )


def _constant_return_warnings(dry_run: DryRun) -> Iterator[str]:
    """Yield a warning for each role that learns from rewards alone but got the same return in every random episode."""
    # Random play gives readable answers only, so a reward for readable answers is constant here but not in training.
    if any("readable" in str(dict(view.game).get("rewards")) for view in dry_run.scenario.scenario_by_game().values()):
        return
    for role in _roles_trained_on_rewards(dry_run):
        turns, paid = dry_run.turns_by_role.get(role, ()), set[float]()
        for episode in dry_run.episodes:
            paid |= {episode.returns.get(agent, 0.0) for agent, seated in episode.deal.seats.items() if seated == role}
        # Random play tries all moves that a game lists, but only some of all possible answers in a team.
        tries_all = bool(turns) and all(turn.request.options for turn in turns)
        if tries_all and len({turn.action for turn in turns}) > 1 and len(dry_run.episodes) > 1 and len(paid) == 1:
            yield (
                f"roles.{role}: was paid {paid.pop():g} in each of {len(dry_run.episodes)} random episodes; as long as "
                "every move is paid the same, it learns nothing"
            )


def _cheap_illegal_move_warnings(dry_run: DryRun) -> Iterator[str]:
    """Yield a warning for each game in which an illegal move costs less than a loss seen in random play."""
    for name, view in dry_run.scenario.scenario_by_game().items():
        cost = view.game.forfeit_cost()
        losses = [-value for episode in dry_run.episodes_by_game.get(name, ()) for value in episode.returns.values()]
        if losses and cost is not None and cost < max(losses):
            field = f"games.{name}.game" if name else "game"
            yield (
                f"{field}.illegal.penalty: an illegal move costs {cost:g}, but a loss up to "
                f"{max(losses):g} in random play: breaking the rules is the best move in a lost position; give "
                f"{max(losses):g} or more"
            )
