"""Plan of a scenario's run as text: roles, prompts, and the amounts of episodes, tokens and memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from statistics import fmean
from textwrap import wrap

from marl.core.config import shorten
from marl.core.types import Turn
from marl.evaluation.dry_run import DryRun
from marl.memory.estimate import estimate, measure_sizes

_LINES, _WIDTH, _CHOICES = 8, 100, 6
"""Maximum lines per message, characters per line, and possible answers."""
_UNITS = ("B", "kB", "MB", "GB", "TB")


def render_plan(run: DryRun, *, full_prompts: bool = False) -> str:
    """Return the plan of a run: a table of roles, the amounts per step, and each role's first prompt."""
    parts = ["\n".join(_table(run)), "\n".join(_amounts(run))]
    by_rule = {name for name, policy in run.scenario.policies.items() if policy.engine.is_rule_based}
    reading = [role for role in run.turns if run.scenario.roles[role].policy not in by_rule]
    parts += ["\n".join(_first_turn(run, role, full_prompt=full_prompts)) for role in reading]
    return "\n\n".join(parts)


# --- who -------------------------------------------------------------------------------------------------------------


def _table(run: DryRun) -> Iterator[str]:
    heads = ("role", "seats", "policy", "speaks by", "learns by", "turns", "reads", "writes")
    rows = [_row(run, role) for role in run.scenario.roles]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    for row in (heads, *rows):
        texts = [text.ljust(width) for text, width in zip(row[:-3], widths, strict=False)]
        figures = [text.rjust(width) for text, width in zip(row[-3:], widths[-3:], strict=True)]
        yield "  ".join((*texts, *figures)).rstrip()
    yield "turns: in a step, if roles speak as often as in random play"
    yield "reads, writes: tokens of a prompt, on average, and of an answer, at most"


def _row(run: DryRun, role: str) -> tuple[str, ...]:
    scenario, settings = run.scenario, run.scenario.roles[role]
    policy = scenario.policies[settings.policy]
    games = scenario.by_game()
    seats = []
    for game, view in games.items():
        for agent, seat_role in view.seats.items():
            if seat_role == role:
                seats.append(f"{game}/{agent}" if game else agent)
    listed_seats = ", ".join(seats) if len(seats) < 3 else f"{seats[0]} ... {seats[-1]} ({len(seats)})"
    learns = "frozen" if policy.model else "-"
    if policy.learner:
        learns = policy.learner.kind + ("" if settings.trainable else ", from others")
    turns = f"{run.per_episode(role) * run.episodes_a_step:,.0f}"
    counts = run.prompt_tokens.get(role)
    tokens = (f"{fmean(counts):,.0f}", f"{settings.sampling.max_tokens:,}") if counts else ("", "")
    return (role, listed_seats, settings.policy, _speaks_by(run, settings.policy), learns, turns, *tokens)


def _speaks_by(run: DryRun, policy: str) -> str:
    facts = run.models.get(policy)
    if facts is None:
        return run.scenario.policies[policy].engine.kind
    size = "" if facts.weights is None else f", {_count(facts.weights)} weights"
    shared = f" ({_count(facts.shared)})" if facts.shared else ""
    return f"{shorten(facts.description, 60)}{shared}{size}"


# --- how much --------------------------------------------------------------------------------------------------------


def _amounts(run: DryRun) -> Iterator[str]:
    schedule, evaluate = run.scenario.schedule, run.scenario.evaluate
    lengths = [len(episode.turns) for episode in run.episodes]
    turns = f" of {_range(lengths)}" if lengths else ""
    starts = f"{_plural(schedule.groups, 'start')}, {schedule.group_size:,} from each"
    kind = run.scenario.experience.kind
    gathered = "" if kind == "rollouts" else f"; experience {kind!r} may play more, or others"
    yield f"step    {_plural(run.episodes_a_step, 'episode')}{turns}: {starts}{gathered}"
    read_tokens, written_tokens = _tokens(run)
    if read_tokens:
        yield f"        about {_count(read_tokens)} tokens read and up to {_count(written_tokens)} written"
    yield f"run     {_plural(schedule.steps, 'step')}: {_count(schedule.steps * run.episodes_a_step)} episodes"
    for game, view in run.scenario.by_game().items():
        whose = f" of {game}" if game else ""
        if held_out := view.evaluate.held_out:
            yield f"        every {_plural(evaluate.every, 'step')}: {held_out:,} held-out episodes{whose}"
    yield from _memory(run)


def _tokens(run: DryRun) -> tuple[float, float]:
    """Return the expected number of tokens read in a step, and the maximum number of tokens written."""
    turns = {role: run.per_episode(role) * run.episodes_a_step for role in run.prompt_tokens}
    read_tokens = sum(turns[role] * fmean(counts) for role, counts in run.prompt_tokens.items())
    return read_tokens, sum(turns[role] * run.scenario.roles[role].sampling.max_tokens for role in turns)


def _memory(run: DryRun) -> Iterator[str]:
    needed = estimate(run.scenario, measure_sizes(run))
    if needed.items:
        yield f"memory  about {format_bytes(needed.peak_bytes())} (marl check --device cpu|cuda:0|80GiB says more)"
    for policies in dict.fromkeys(item.policies for item in needed.items):
        resident = [item for item in needed.items if item.policies == policies and item.stage == "always"]
        if resident:
            contents = [f"{item.content} {format_bytes(item.bytes)}" for item in resident]
            yield f"        {' + '.join(policies)}: {', '.join(contents)}"
    if needed.unknown_policies:
        names = ", ".join(needed.unknown_policies)
        yield f"        {names}: unknown: not on this machine, or of a kind that does not say"


# --- what is read ----------------------------------------------------------------------------------------------------


def _first_turn(run: DryRun, role: str, *, full_prompt: bool) -> Iterator[str]:
    turn, counts = run.turns[role][0], run.prompt_tokens.get(role)
    yield f"{role} reads first" + (f" ({_plural(counts[0], 'token')})" if counts else "")
    for message in turn.request.messages:
        lines = message.content.strip("\n").split("\n")
        if not full_prompt:
            lines = [piece for line in lines for piece in wrap(line, _WIDTH) or [""]]
        shown = lines if full_prompt else lines[:_LINES]
        for label, line in zip_longest((message.role,), shown, fillvalue=""):
            yield f"  {label:<11}{line}".rstrip()
        if len(shown) < len(lines):
            yield f"  {'':<11}... {_plural(len(lines) - len(shown), 'line')} more; --prompts shows them"
    yield f"  {'says':<11}{_answers(run, turn)}"
    if expected := run.expected(turn):
        yield f"  {'is to say':<11}{expected}"


def _answers(run: DryRun, turn: Turn) -> str:
    """Return the answers from which random play chose."""
    if turn.role in run.free_text_roles:
        return "any text"
    texts = list(dict.fromkeys((turn.request.options or {}).values() or turn.request.examples)) or [
        turn.completion.text
    ]
    listed_answers = ", ".join(shorten(text.replace("\n", "\\n"), _WIDTH // 2) for text in texts[:_CHOICES])
    return listed_answers + (f", ... ({len(texts)})" if len(texts) > _CHOICES else "")


# --- numbers ---------------------------------------------------------------------------------------------------------


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _range(turns: Sequence[int]) -> str:
    return f"{min(turns):,} to {max(turns):,} turns" if min(turns) < max(turns) else _plural(turns[0], "turn")


def _count(number: float) -> str:
    """Return a number with about two digits: 84k, 1.2M."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.2g}{letter}" if number < 100 * size else f"{number / size:.0f}{letter}"
    return f"{number:.0f}"


def format_bytes(size: float) -> str:
    """Return `size` [bytes] with about two digits: 84 MB, 1.2 GB."""
    unit = 0
    while size >= 1000 and unit < len(_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.2g} {_UNITS[unit]}" if size < 100 else f"{size:.0f} {_UNITS[unit]}"
