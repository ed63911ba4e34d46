"""Metrics of the trajectories of one step. Names are `scope/...`; the table in marl/README.md lists all metrics."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import groupby
from operator import attrgetter
from statistics import fmean

from marl.core.graph import Trajectory
from marl.core.types import Message, Metrics, Turn, TurnId
from marl.core.usage import RemoteUsage
from marl.host.untrusted_text import parse_json
from marl.metrics.collapse import collapse_metrics, population_standard_deviation
from marl.protocols import RoleConfig
from marl.protocols.tasks import FAULTY, UNKNOWN
from marl.scenario.games import HELD_OUT_SCOPES, SCOPES

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
episode/count | episodes | trajectories of the step
episode/turns | turns | mean number of turns of a trajectory
episode/truncated | share | trajectories that were cut off before the game was over
episode/return/AGENT | reward | mean return of a seat
episode/measure/MEASURE | the game's | mean of a measure that the game reports (`success`, ...) over the episodes
    that have it; nobody is paid by it
game/GAME/... | as the rest of its name | the same of one of several games
role/ROLE/turns | turns | turns of the role in the step
role/ROLE/tokens | tokens | mean completion length of a turn, end token included
role/ROLE/illegal | share of turns | no legal move could be read
role/ROLE/retries | share of turns | asked again after an illegal answer
role/ROLE/cut | share of turns | cut off by `max_tokens`
role/ROLE/overflow | share of turns | prompt longer than the model's context
role/ROLE/faulty, faulty/CHECK | share of verdicts | the code of a check (of this one) raised, hung, exited or gave no
    number
role/ROLE/unknown, unknown/CHECK | share of verdicts | a check (this one) could not show whether the answer is right,
    and rejected it
role/ROLE/spoof | share of turns | imitated the verdict of a critic or judge that read the turn; only of roles that a
    critic or judge reads
role/ROLE/aborted | share of turns | given up by the engine
role/ROLE/edited | share of turns | a program sent the history of the role's own turns with changes, so that the prompt
    could not continue their tokens and is new; of callers with `history: append`
role/ROLE/reward/COMPONENT | reward | sum of a named reward over the role's seats, mean over episodes
role/ROLE/return | reward | mean of the role's returns over seats and episodes
role/ROLE/reward_std | reward | standard deviation (ddof 0) of the role's returns over seats and episodes
policy/POLICY/prompt_tokens, completion_tokens | tokens | counted by an endpoint, for the step's turns
policy/POLICY/cost | currency of its prices | cost of the step's turns
policy/POLICY/tries, failed | requests | attempts, retries included; requests given up
"""


def summarize_trajectories(trajectories: Sequence[Trajectory]) -> Metrics:
    """Return the `episode/`, `role/` and `policy/` metrics of one step, with several games also as `game/NAME/...`."""
    metrics = _metrics_of_one_game(trajectories)
    for game, played in sorted(trajectories_by_game(trajectories).items()):
        if game:
            for name, value in _metrics_of_one_game(played).items():
                metrics[f"game/{game}/{name}"] = value
    return metrics


def trajectories_by_game(trajectories: Iterable[Trajectory]) -> dict[str, list[Trajectory]]:
    """Return game -> its trajectories; the name of a run's only game is ""."""
    by_game: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in trajectories:
        by_game[trajectory.deal.game].append(trajectory)
    return dict(by_game)


def _metrics_of_one_game(trajectories: Sequence[Trajectory]) -> Metrics:
    """Return the metrics of `trajectories`, without a distinction by game."""
    count = len(trajectories)
    metrics: Metrics = {"episode/count": float(count)}
    if not trajectories:
        return metrics
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    truncated = sum([trajectory.end == "truncated" for trajectory in trajectories])
    metrics |= {"episode/turns": len(turns) / count, "episode/truncated": truncated / count}
    for name, values in measure_values_by_name(trajectories).items():
        metrics[f"episode/measure/{name}"] = fmean(values)
    agent_totals: dict[str, float] = defaultdict(float)
    component_totals: dict[tuple[str, str], float] = defaultdict(float)
    role_returns: dict[str, list[float]] = defaultdict(list)
    for trajectory in trajectories:
        seats = trajectory.deal.seats
        # An agent without rewards has the return 0.
        returns = dict.fromkeys(seats, 0.0)
        for reward in trajectory.rewards:
            returns[reward.agent] += reward.value
            component_totals[seats[reward.agent], reward.name] += reward.value
        for agent, agent_return in returns.items():
            agent_totals[agent] += agent_return
            role_returns[seats[agent]].append(agent_return)
    for agent, total in agent_totals.items():
        metrics[f"episode/return/{agent}"] = total / count
    for (role, component), total in component_totals.items():
        metrics[f"role/{role}/reward/{component}"] = total / count
    for role, role_values in role_returns.items():
        # `fmean` raises on infinite returns of both signs, which the update reports with their episode.
        metrics[f"role/{role}/return"] = sum(role_values) / len(role_values)
        metrics[f"role/{role}/reward_std"] = population_standard_deviation(role_values)
    usage: dict[str, RemoteUsage] = {}
    for turn in turns:
        if turn.completion.usage is not None:
            usage[turn.request.policy] = usage.get(turn.request.policy, RemoteUsage()) + turn.completion.usage
    return metrics | role_metrics(trajectories) | usage_metrics(usage)


def measure_values_by_name(trajectories: Iterable[Trajectory]) -> dict[str, list[float]]:
    """Return name of a game's measure -> the measure's values, one for each episode that has the measure."""
    values: dict[str, list[float]] = defaultdict(list)
    for trajectory in trajectories:
        for name, value in trajectory.findings.measures.items():
            values[name].append(value)
    return dict(values)


def role_metrics(trajectories: Iterable[Trajectory]) -> Metrics:
    """Return the number of turns, the shares of failed turns and the collapse indicators of every role."""
    turns_by_role: dict[str, list[Turn]] = defaultdict(list)
    spoofs: set[TurnId] = set()
    judged_roles: set[str] = set()
    for trajectory in trajectories:
        for turn in trajectory.turns:
            turns_by_role[turn.role].append(turn)
            if turn.spoofs is not None:
                spoofs.update(turn.spoofs)
                judged_roles |= _roles_of_turns_read_by(turn, trajectory)
    metrics: Metrics = {}
    for role, turns in sorted(turns_by_role.items()):
        finishes = Counter([turn.completion.finish for turn in turns])
        figures = {
            "turns": float(len(turns)),
            "tokens": sum([len(turn.completion.token_ids) for turn in turns]) / len(turns),
            "illegal": sum([turn.action is None for turn in turns]) / len(turns),
            "retries": sum([turn.attempt > 0 for turn in turns]) / len(turns),
            "cut": finishes["length"] / len(turns),
            "overflow": finishes["overflow"] / len(turns),
            "aborted": finishes["aborted"] / len(turns),
        }
        if role in judged_roles:
            figures["spoof"] = sum(turn.id in spoofs for turn in turns) / len(turns)
        for name, value in (figures | collapse_metrics(turns) | _undecided_verdict_shares(turns)).items():
            metrics[f"role/{role}/{name}"] = value
    return metrics


def edited_history_metrics(trajectories: Iterable[Trajectory], roles: Mapping[str, RoleConfig]) -> Metrics:
    """Return the share of turns whose prompt is new because its history was edited, by role.

    Only the callers with `history: append` among `roles` (name -> settings) have such a share.
    """
    continued = {name for name, role in roles.items() if role.answers_programs and role.history == "append"}
    if not continued:
        return {}
    turns, edited = Counter[str](), Counter[str]()
    for trajectory in trajectories:
        # A prompt continues only calls of the same run of a program, whose own turn follows those of its calls.
        for is_inner, run in groupby(trajectory.turns, attrgetter("inner")):
            calls = [turn for turn in run if is_inner and turn.role in continued]
            prompts = {(turn.agent, turn.request.messages) for turn in calls}
            for turn in calls:
                turns[turn.role] += 1
                edited[turn.role] += _is_edited_history(turn, prompts)
    return {f"role/{role}/edited": edited[role] / count for role, count in sorted(turns.items())}


def _is_edited_history(turn: Turn, prompts: Collection[tuple[str, tuple[Message, ...]]]) -> bool:
    """Return True if the new prompt of `turn` is a changed history of its agent's calls.

    Then an answer in the prompt is the agent's own, or the agent and the messages before the first answer are among
    `prompts`, the program's calls. Examples that a program writes as answers are neither.
    """
    messages = turn.request.messages
    answers = [index for index, message in enumerate(messages) if message.role == "assistant"]
    if turn.request.continues or not answers:
        return False
    shows_own_answer = any(mark.kind == "self" and mark.message in answers for mark in turn.request.marks)
    return shows_own_answer or (turn.agent, messages[: answers[0]]) in prompts


def _roles_of_turns_read_by(verdict_turn: Turn, trajectory: Trajectory) -> set[str]:
    """Return the roles of the other agents whose turns `verdict_turn` read."""
    sources = [trajectory.turns[index] for _, index in trajectory.incoming_edge_kinds(verdict_turn.id)]
    return {source.role for source in sources if source.agent != verdict_turn.agent}


def _undecided_verdict_shares(verifier_turns: Sequence[Turn]) -> Metrics:
    """Return the shares of faulty and unknown verdicts among a verifier's turns, in total and by check.

    The result is {} for other roles.
    """
    verdicts, counts = 0, Counter[str]()
    for turn in verifier_turns:
        # A turn with tokens was sampled by a model, which could imitate a verifier's JSON.
        if not turn.completion.token_ids and turn.completion.text.startswith("{"):
            with suppress(ValueError):  # the text may be no JSON, if a remote model wrote it
                verdict = parse_json(turn.completion.text)
                verdicts += "scores" in verdict
                for kind in (FAULTY, UNKNOWN):
                    names = verdict.get(kind, ())
                    if names and isinstance(names, list):
                        counts.update([kind, *(f"{kind}/{name}" for name in names)])
    if not verdicts:
        return {}
    return {FAULTY: 0.0, UNKNOWN: 0.0} | {name: count / len(verifier_turns) for name, count in sorted(counts.items())}


def usage_metrics(usage_by_policy: Mapping[str, RemoteUsage], name_prefix: str = "") -> Metrics:
    """Return the `policy/NAME/...` metrics of every remote policy's usage, such as its cost."""
    metrics: Metrics = {}
    for policy, policy_usage in usage_by_policy.items():
        for name, value in asdict(policy_usage).items():
            metrics[f"policy/{policy}/{name_prefix}{name}"] = float(value)
    return metrics


def held_out_metric_names(metric_names: Iterable[str]) -> list[str]:
    """Return the metrics among `metric_names` that are means of measures on held-out starts.

    Their names are eval/held_out/MEASURE and, with several games, eval/GAME/held_out/MEASURE.
    """
    held_out: list[str] = []
    for name in metric_names:
        scope, *path = name.split("/")
        # Bounds of confidence intervals and counts of episodes are not means.
        is_mean = not name.endswith(("_low", "_high", "episodes"))
        if scope == "eval" and 1 <= len(path) < 4 and is_mean and name.split("/")[-2] in HELD_OUT_SCOPES:
            held_out.append(name)
    return held_out


def metric_names_in_all_games(names_without_game: Iterable[str], metric_names: Iterable[str]) -> list[str]:
    """Return those of `metric_names` that belong to `names_without_game`, in the order of the latter.

    The name eval/nashconv matches eval/nashconv and, with several games, eval/GAME/nashconv.
    """
    by_figure: dict[str, list[str]] = defaultdict(list)
    for name in metric_names:
        scope, _, subpath = name.partition("/")
        game, _, figure = subpath.partition("/")
        by_figure[name].append(name)
        if figure and game not in SCOPES:
            by_figure[f"{scope}/{figure}"].append(name)
    matching: list[str] = []
    for figure in names_without_game:
        matching += by_figure.get(figure, ())
    return matching
