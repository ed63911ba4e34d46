"""Recorded dialogues as text (`marl show`): each turn's prompt, answer, parsed move and credit.

Everything comes from the run's folder. Colours mark our own labels; control characters in recorded text are escaped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.text import Text

from marl.core.config import choices_hint
from marl.core.graph import Trajectory
from marl.core.types import Turn, TurnId
from marl.credit_stage.records import TurnCreditRecord
from marl.host.untrusted_text import escape_for_terminal
from marl.rollout.inner_turns import CallRecognitionAndLatency
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError
from marl.text.tool_calls import join_tool_calls
from marl.view.edge_text import describe_source_turns
from marl.view.verifier_scores import question_and_right_answer, turns_of_other_agents_reading, verifier_scores_in_turn

_HEAD, _TAIL = 400, 200
"""Lengths of the displayed beginning and end of a long text [characters]."""
_SOURCES = 6
"""Maximum number of source turns named for a turn."""
_LABEL = 12
"""Width of a label, which is indented by two spaces for a line about a turn [characters]."""
_CUT = {"length": "cut off at max_tokens", "overflow": "no answer: the prompt is too long", "aborted": "no answer"}
"""Finish reason of a completion -> remark."""


@dataclass(frozen=True, slots=True)
class DialogueSelection:
    """Selection of a run's dialogues for display."""

    step: int | None = None
    """Recorded step (default: the newest)."""
    role: str | None = None
    """Role of the shown turns, and of the rewards by which episodes are ordered (None: all roles)."""
    unreadable: bool = False
    """True shows only turns without a parsed legal move."""
    order: Literal["played", "best", "worst"] = "played"
    """Order of episodes: as played, or by the sum of rewards."""
    episodes: int = 3
    """Maximum number of displayed episodes."""
    full: bool = False
    """True shows all prompt messages, the verifiers' own turns, and long texts in full."""

    def turns_in_selection(self, trajectory: Trajectory) -> list[Turn]:
        """Return the selected turns of an episode."""
        turns = []
        for turn in trajectory.turns:
            if self.role in (None, turn.role) and not (self.unreadable and turn.action is not None):
                turns.append(turn)
        return turns

    def sum_selected_rewards(self, trajectory: Trajectory) -> float:
        """Return the sum of an episode's rewards to the selected role, or to all agents."""
        seats = trajectory.deal.seats
        return sum(reward.value for reward in trajectory.rewards if self.role in (None, seats.get(reward.agent)))


def dialogue_lines(run: Path, selection: DialogueSelection) -> Iterator[Text]:
    """Yield the selected dialogues of a recorded step, line by line.

    Raises:
        ScenarioError: if the run, the step or the role does not exist, or no dialogue was recorded.
    """
    home = RunFolder(run)
    step = _recorded_step_or_newest(home, selection.step)
    trajectories = home.load_trajectories(step)
    matching = _matching_episodes(trajectories, selection)
    credit_of = home.read_credit_of_step(step).turns() if home.has_credit_record(step) else {}
    whose = f" of role {selection.role}" if selection.role else ""
    title = f"{run}: step {step}, {len(trajectories)} episodes; "
    if selection.unreadable:
        title += f"{len(matching)} with unreadable turns{whose}; "
    order = "" if selection.order == "played" else f", {selection.order} reward{whose} first"
    title += f"shown: {min(len(matching), selection.episodes)}{order}"
    yield Text(escape_for_terminal(title), "bold")
    for trajectory in matching[: selection.episodes]:
        yield Text()
        yield from episode_lines(trajectory, selection, credit_of)
    if matching and credit_of:
        name = f"{matching[0].id}:{selection.turns_in_selection(matching[0])[0].id[1]}"
        hint = f"\nmarl why {run} {name} explains an advantage; --whole shows everything"
        yield Text(escape_for_terminal(hint), "dim")


def select_episodes(run: Path, selection: DialogueSelection) -> tuple[list[Trajectory], dict[TurnId, float] | None]:
    """Return the selected episodes of a recorded step, and turn -> advantage (None: no credit was recorded).

    Raises:
        ScenarioError: as `dialogue_lines`, or if no episode is selected.
    """
    home = RunFolder(run)
    step = _recorded_step_or_newest(home, selection.step)
    trajectories = home.load_trajectories(step)
    if not (chosen := _matching_episodes(trajectories, selection)[: selection.episodes]):
        raise ScenarioError(f"{run}: none of the {len(trajectories)} episodes of this step has such a turn")
    if not home.has_credit_record(step):
        return chosen, None
    return chosen, {turn: credit.advantage for turn, credit in home.read_credit_of_step(step).turns().items()}


def _recorded_step_or_newest(run_folder: RunFolder, step: int | None) -> int:
    """Return `step` (default: the newest recorded step), or raise ScenarioError if it was not recorded."""
    if not (run_folder.path / "scenario.yaml").is_file():
        raise ScenarioError(f"{run_folder.path}: no run here (no scenario.yaml)")
    recorded = run_folder.recorded_steps()
    if not recorded:
        raise ScenarioError(
            f"{run_folder.path}: no dialogues were recorded; the setting checkpoint.trajectories is the share of "
            "steps that are: `marl train SCENARIO checkpoint.trajectories=1` records every step"
        )
    if step is not None and step not in recorded:
        nearest_steps = sorted(recorded, key=lambda other: abs(other - step))[:2]
        nearest = " and ".join(map(str, sorted(nearest_steps)))
        raise ScenarioError(
            f"--step {step}: no dialogues of this step were recorded; nearest: {nearest} ({len(recorded)} recorded, "
            f"from {recorded[0]} to {recorded[-1]}; checkpoint.trajectories is their share)"
        )
    return recorded[-1] if step is None else step


def _matching_episodes(trajectories: Sequence[Trajectory], selection: DialogueSelection) -> list[Trajectory]:
    """Return the selected episodes in order, or raise ScenarioError if no episode has the selected role."""
    role_names: set[str] = set()
    for trajectory in trajectories:
        role_names.update(trajectory.deal.seats.values())
        # Seats and turns are both read, because a role may have a seat without turns, or turns without a seat.
        role_names.update(turn.role for turn in trajectory.turns)
    role = selection.role
    if role is not None and role not in role_names:
        raise ScenarioError(f"--role {role}: no such role in these dialogues; {choices_hint(role, role_names)}")
    matching = [trajectory for trajectory in trajectories if selection.turns_in_selection(trajectory)]
    if selection.order == "played":
        return matching
    return sorted(matching, key=selection.sum_selected_rewards, reverse=selection.order == "best")


def episode_lines(
    trajectory: Trajectory,
    selection: DialogueSelection,
    credit_by_turn: Mapping[TurnId, TurnCreditRecord],
    call_notes: Mapping[TurnId, CallRecognitionAndLatency] | None = None,
) -> Iterator[Text]:
    """Yield one episode: its problem, the selected turns and its rewards.

    Args:
        trajectory: the episode.
        selection: selection of its turns.
        credit_by_turn: id of a turn -> its credit.
        call_notes: id of an inner turn -> fact about its call, or None for a recorded episode.
    """
    measures = ", ".join(f"{name} {value:.4g}" for name, value in trajectory.findings.measures.items())
    title = (escape_for_terminal(f"episode {trajectory.id}"), "bold cyan")
    game = escape_for_terminal(f" of {trajectory.deal.game}" if trajectory.deal.game else "")
    yield Text.assemble(title, game, escape_for_terminal(f"  {measures}" if measures else ""))
    if trajectory.parent:
        yield _labelled_line("left", f"episode {trajectory.parent[0]} before its turn {trajectory.parent[1]}")
    question, answer = question_and_right_answer(trajectory)
    if question or trajectory.start:
        yield _labelled_line(
            "problem" if question else "start", _shorten_in_middle(question or trajectory.start, selection)
        )
    if answer:
        yield _labelled_line("answer", _shorten_in_middle(answer, selection))
    for turn in selection.turns_in_selection(trajectory):
        # Verifiers' turns are skipped, because their scores are shown below the turns that they scored.
        if selection.full or not verifier_scores_in_turn(turn) or turn.role == selection.role:
            yield from _turn_lines(turn, trajectory, selection, credit_by_turn, (call_notes or {}).get(turn.id))
    # `totals` sums rewards by agent, component and cause.
    totals: dict[tuple[str, str, str], float] = defaultdict(float)
    for reward in trajectory.rewards:
        if selection.role in (None, trajectory.deal.seats.get(reward.agent)):
            totals[reward.agent, reward.name, reward.cause] += reward.value
    for (agent, name, cause), value in totals.items():
        reason = f": {cause}" if cause else ""
        yield _labelled_line("reward", f"{value:+.4g} {name} to {agent}{reason}", _colour_of_sign(value))
    if not totals:
        yield _labelled_line("reward", "none was paid")


def _turn_lines(
    turn: Turn,
    trajectory: Trajectory,
    selection: DialogueSelection,
    credit_by_turn: Mapping[TurnId, TurnCreditRecord],
    program_call_note: CallRecognitionAndLatency | None,
) -> Iterator[Text]:
    """Yield one turn: its agent, role, policy and weights, sources, prompt, answer, move, scores and credit."""
    first, last = turn.completion.versions
    version = f"version {first}" if first == last else f"versions {first} to {last}"
    if runs := turn.completion.version_runs:
        version = "versions " + ", ".join([f"{number} ({count} tokens)" for number, count in runs])
    weights = f", {version}" if turn.completion.token_ids else ""
    retry = f", after {turn.attempt} refused" if turn.attempt else ""
    speaker = f"  role {turn.role}, policy {turn.request.policy}{weights}{retry}"
    agent = escape_for_terminal(f"  {turn.id[1]} {turn.agent}")
    yield Text.assemble((agent, "bold"), escape_for_terminal(speaker))
    if turn.inner:
        yield _labelled_line("  called", _describe_program_call(turn, program_call_note), "dim")
    if sources := describe_source_turns(turn, trajectory, None if selection.full else _SOURCES):
        yield _labelled_line("  reads", sources, "dim")
    messages = turn.request.messages if selection.full else turn.request.messages[-1:]
    for message in messages:
        label = message.role if selection.full else "asked"
        text = join_tool_calls(message.content, message.calls)
        yield _labelled_line(f"  {label}", _shorten_in_middle(text, selection), "dim")
    remark = _CUT.get(turn.completion.finish, "")
    text = _shorten_in_middle(turn.completion.text, selection)
    yield _labelled_line("  said", f"{text} [{remark}]" if remark else text, "cyan")
    if turn.action is None:
        yield _labelled_line("  read as", "nothing: no legal move could be read", "red")
    else:
        yield _labelled_line("  read as", _shorten_in_middle(turn.action, selection))
    for reader in turns_of_other_agents_reading(turn, trajectory):
        for score in verifier_scores_in_turn(reader):
            reason = f": {_shorten_in_middle(score.why, selection)}" if score.why else ""
            yield _labelled_line("  scored", f"{score.name} = {score.value:g} by {reader.agent}{reason}", "yellow")
    if credit := credit_by_turn.get(turn.id):
        figures = f"{credit.earned:+.4g}, advantage {credit.advantage:+.4g}"
        yield _labelled_line("  earned", figures, _colour_of_sign(credit.advantage))


def _describe_program_call(called_turn: Turn, program_call_note: CallRecognitionAndLatency | None) -> str:
    """Return a line about a program's call: its recognition, whether it continued its agent's tokens, and its time."""
    tokens = len(called_turn.request.continues)
    history = f"continues {tokens:,} own tokens" if tokens else "new prompt"
    if program_call_note is None:
        return history
    return f"agent known by {program_call_note.recognised_by}; {history}; {program_call_note.milliseconds:.1f} ms"


def _colour_of_sign(value: float) -> str:
    """Return the colour of a reward or advantage: green if positive, red if negative."""
    return "green" if value > 0 else "red" if value < 0 else ""


def _shorten_in_middle(text: str, selection: DialogueSelection) -> str:
    """Return `text`, shortened in the middle unless the selection asks for full texts."""
    left_out = len(text) - _HEAD - _TAIL
    if selection.full or left_out <= 0:
        return text
    return f"{text[:_HEAD]} [... {left_out:,} characters ...] {text[-_TAIL:]}"


def _labelled_line(label: str, text: str, style: str = "") -> Text:
    """Return `text` after a label, with later lines indented so that recorded text cannot imitate a label."""
    label = f"  {label:<{_LABEL}} "
    return Text.assemble((label, "dim"), (escape_for_terminal(text).replace("\n", f"\n{' ' * len(label)}"), style))
