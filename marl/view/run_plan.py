"""Plan of a scenario's run as text: roles, prompts, and the amounts of episodes, tokens and memory."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice, zip_longest
from statistics import fmean
from textwrap import wrap

from marl.core.config import shorten
from marl.evaluation.dry_run import DryRun
from marl.memory.device import device_memory
from marl.memory.estimate import estimate_memory, measure_model_sizes_and_workloads
from marl.view.number_format import count_with_noun

_LINES, _WIDTH, _CHOICES = 8, 100, 6
"""Maximum numbers of displayed lines per message, characters per line, and possible answers per prompt."""
_STAGE_TEXTS = {
    "always": "always",
    "awake": "while any policy plays",
    "play": "while it plays",
    "learn": "while it learns",
}
"""Stage of a step -> description of the time in which its memory is held."""
_UNITS = ("B", "kB", "MB", "GB", "TB")


def render_plan(dry_run: DryRun, *, full_prompts: bool = False) -> str:
    """Return the plan of a run: a table of roles, the amounts per step, and each role's first prompt."""
    heads = ("role", "seats", "policy", "speaks by", "learns by", "turns", "reads", "writes")
    rows = [_role_table_row(dry_run, role) for role in dry_run.scenario.roles]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    table: list[str] = []
    for row in (heads, *rows):
        cells = list(map(str.ljust, row[:-3], widths[:-3]))
        # Numbers (the last three columns) are aligned on the right.
        cells += map(str.rjust, row[-3:], widths[-3:])
        table.append("  ".join(cells).rstrip())
    table.append("turns: in a step, if roles speak as often as in random play")
    table.append("reads, writes: tokens of a prompt, on average, and of an answer, at most")
    parts = ["\n".join(table), "\n".join(_episodes_tokens_and_memory_lines(dry_run))]
    for role in dry_run.turns_by_role:
        policy = dry_run.scenario.policies[dry_run.scenario.roles[role].policy]
        if not policy.engine.is_rule_based:
            parts.append("\n".join(_first_prompt_lines(dry_run, role, full_prompt=full_prompts)))
    return "\n\n".join(parts)


def memory_warnings(dry_run: DryRun) -> Iterator[str]:
    """Yield a warning if the run needs more memory than this machine has."""
    needed, machine = (
        estimate_memory(dry_run.scenario, measure_model_sizes_and_workloads(dry_run)),
        device_memory("cpu").bytes,
    )
    if needed.items and needed.peak_bytes() > machine:
        yield (
            f"memory: about {format_bytes(needed.peak_bytes())}, more than the {format_bytes(machine)} of this "
            "machine; marl check --device cpu says how to save it, --device 80GiB compares with another one"
        )


# --- lines about roles ------------------------------------------------------------------------------------------------


def _role_table_row(dry_run: DryRun, role: str) -> tuple[str, ...]:
    """Return a role's seats, policy, source of answers, learner, turns in a step, and tokens of prompt and answer."""
    scenario, settings = dry_run.scenario, dry_run.scenario.roles[role]
    policy = scenario.policies[settings.policy]
    seats: list[str] = []
    for game, view in scenario.scenario_by_game().items():
        for agent, seat_role in view.seats.items():
            if seat_role == role:
                seats.append(f"{game}/{agent}" if game else agent)
    listed_seats = ", ".join(seats) if len(seats) < 3 else f"{seats[0]} ... {seats[-1]} ({len(seats)})"
    learns = "frozen" if policy.model else "-"
    if policy.learner:
        learns = policy.learner.kind + ("" if settings.trainable else ", from others")
    turns = f"{dry_run.role_turns_per_episode(role) * dry_run.episodes_per_step:,.0f}"
    counts = dry_run.prompt_token_counts.get(role)
    tokens = (f"{fmean(counts):,.0f}", f"{settings.sampling.max_tokens:,}") if counts else ("", "")
    speaks_by = policy.engine.kind
    if facts := dry_run.model_facts.get(settings.policy):
        size = "" if facts.weights is None else f", {_abbreviate_number(facts.weights)} weights"
        shared = f" ({_abbreviate_number(facts.base_weights)})" if facts.base_weights else ""
        speaks_by = f"{shorten(facts.description, 60)}{shared}{size}"
    return (role, listed_seats, settings.policy, speaks_by, learns, turns, *tokens)


# --- lines about the workload: episodes, tokens, memory ---------------------------------------------------------------


def _episodes_tokens_and_memory_lines(dry_run: DryRun) -> Iterator[str]:
    """Yield the numbers of episodes and tokens of a step and of the run, and the memory of the run."""
    schedule, evaluate = dry_run.scenario.schedule, dry_run.scenario.evaluate
    lengths = sorted(len(episode.turns) for episode in dry_run.episodes)
    turns = ""
    if lengths:
        shortest, longest = lengths[0], lengths[-1]
        turns = f" of {count_with_noun(longest, 'turn')}"
        if shortest < longest:
            turns = f" of {shortest:,} to {longest:,} turns"
    starts = f"{count_with_noun(schedule.groups, 'start')}, {schedule.group_size:,} from each"
    kind = dry_run.scenario.experience.kind
    gathered = "" if kind == "rollouts" else f"; experience {kind!r} may play more, or others"
    yield f"step    {count_with_noun(dry_run.episodes_per_step, 'episode')}{turns}: {starts}{gathered}"
    # Prompts count by their mean length in random play, answers by their maximum length.
    read_tokens = written_tokens = 0
    for role, counts in dry_run.prompt_token_counts.items():
        role_turns = dry_run.role_turns_per_episode(role) * dry_run.episodes_per_step
        read_tokens += role_turns * fmean(counts)
        written_tokens += role_turns * dry_run.scenario.roles[role].sampling.max_tokens
    if read_tokens:
        read, written = _abbreviate_number(read_tokens), _abbreviate_number(written_tokens)
        yield f"        about {read} tokens read and up to {written} written"
    episodes = _abbreviate_number(schedule.steps * dry_run.episodes_per_step)
    yield f"run     {count_with_noun(schedule.steps, 'step')}: {episodes} episodes"
    for game, view in dry_run.scenario.scenario_by_game().items():
        whose = f" of {game}" if game else ""
        if held_out := view.evaluate.held_out:
            yield f"        every {count_with_noun(evaluate.every, 'step')}: {held_out:,} held-out episodes{whose}"
    needed = estimate_memory(dry_run.scenario, measure_model_sizes_and_workloads(dry_run))
    if needed.items:
        peak, machine = needed.peak_bytes(), device_memory("cpu").bytes
        more = "marl check --device cpu|cuda:0|80GiB says more"
        if peak > machine:
            more = f"more than the {format_bytes(machine)} of this machine; marl check --device cpu says how to save it"
        yield f"memory  about {format_bytes(peak)} ({more})"
    # The peak is the memory that is always held plus the larger of the needs of playing and learning.
    stage_bytes: dict[tuple[str, ...], dict[str, float]] = {}
    for item in needed.items:
        if item.stage != "save":
            by_stage = stage_bytes.setdefault(tuple(item.policies), {})
            by_stage[item.stage] = by_stage.get(item.stage, 0.0) + item.bytes
    for policies, by_stage in stage_bytes.items():
        texts = [f"{format_bytes(count)} {_STAGE_TEXTS[stage]}" for stage, count in by_stage.items()]
        yield f"        {' + '.join(policies)}: {', '.join(texts)}"
    if len(stage_bytes) > 1:
        yield "        in all: what is always held, and the most that is held while one plays or learns"
    if needed.unknown_policies:
        names = ", ".join(needed.unknown_policies)
        yield f"        {names}: unknown: not on this machine, or of a kind that does not say"


# --- lines about prompts ----------------------------------------------------------------------------------------------


def _first_prompt_lines(dry_run: DryRun, role: str, *, full_prompt: bool) -> Iterator[str]:
    """Yield the prompt of a role's first turn, and the answers from which random play chose."""
    turn, counts = dry_run.turns_by_role[role][0], dry_run.prompt_token_counts.get(role)
    yield f"{role} reads first" + (f" ({count_with_noun(counts[0], 'token')})" if counts else "")
    for message in turn.request.messages:
        lines = message.content.strip("\n").split("\n")
        if not full_prompt:
            lines = list(chain.from_iterable(wrap(line, _WIDTH) or [""] for line in lines))
        shown = lines if full_prompt else lines[:_LINES]
        for label, line in zip_longest((message.role,), shown, fillvalue=""):
            yield f"  {label:<11}{line}".rstrip()
        if len(shown) < len(lines):
            yield f"  {'':<11}... {count_with_noun(len(lines) - len(shown), 'line')} more; --prompts shows them"
    answers = "any text"
    if turn.role not in dry_run.free_text_roles:
        texts = dict.fromkeys((turn.request.options or {}).values() or turn.request.examples) or [turn.completion.text]
        answers = ", ".join(shorten(text.replace("\n", "\\n"), _WIDTH // 2) for text in islice(texts, _CHOICES))
        answers += f", ... ({len(texts)})" if len(texts) > _CHOICES else ""
    yield f"  {'says':<11}{answers}"
    game = next(episode.deal.game for episode in dry_run.episodes if episode.id == turn.id[0])
    if hint := dry_run.scenario.scenario_by_game()[game].game.answer_format_by_agent().get(turn.agent):
        yield f"  {'is to say':<11}{hint}"


def _abbreviate_number(number: float) -> str:
    """Return a number with about two digits: 84k, 1.2M."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.2g}{letter}" if number < 100 * size else f"{number / size:.0f}{letter}"
    return f"{number:.0f}"


def format_bytes(byte_count: float) -> str:
    """Return `byte_count` [bytes] with about two digits: 84 MB, 1.2 GB."""
    unit = 0
    while byte_count >= 1000 and unit < len(_UNITS) - 1:
        byte_count, unit = byte_count / 1000, unit + 1
    return f"{byte_count:.2g} {_UNITS[unit]}" if byte_count < 100 else f"{byte_count:.0f} {_UNITS[unit]}"
