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
from marl.host.outside import escape_for_terminal
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError
from marl.view.edge_text import describe_sources
from marl.view.verifier_scores import problem_of, readers_by_other_agents, scores_of

_HEAD, _TAIL = 400, 200
"""Lengths of the displayed beginning and end of a long text [characters]."""
_SOURCES = 6
"""Maximum number of source turns named for a turn."""
_LABEL = 10
"""Width of the labels [characters]."""
_CUT = {"length": "cut off at max_tokens", "overflow": "no answer: the prompt is too long", "aborted": "no answer"}
"""Finish reason of a completion -> remark."""


@dataclass(frozen=True, slots=True)
class DialogueSelection:
    """Selection of a run's dialogues for display."""

    step: int | None = None
    """Recorded step (default: the newest)."""
    role: str | None = None
    """Role whose turns are shown and whose rewards order the episodes (None: all roles)."""
    unreadable: bool = False
    """True shows only turns without a parsed legal move."""
    order: Literal["played", "best", "worst"] = "played"
    """Order of episodes: as played, or by the sum of rewards."""
    episodes: int = 3
    """Maximum number of displayed episodes."""
    full: bool = False
    """True shows all prompt messages, the verifiers' own turns, and long texts in full."""

    def turns(self, trajectory: Trajectory) -> list[Turn]:
        """Return the selected turns of an episode."""
        turns = []
        for turn in trajectory.turns:
            if self.role in (None, turn.role) and not (self.unreadable and turn.action is not None):
                turns.append(turn)
        return turns

    def reward(self, trajectory: Trajectory) -> float:
        """Return the sum of an episode's rewards to the selected role, or to all agents."""
        seats = trajectory.deal.seats
        return sum(reward.value for reward in trajectory.rewards if self.role in (None, seats.get(reward.agent)))

    def select(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """Return the episodes with at least one selected turn, in the chosen order."""
        matching = [trajectory for trajectory in trajectories if self.turns(trajectory)]
        if self.order == "played":
            return matching
        return sorted(matching, key=self.reward, reverse=self.order == "best")


def dialogue_lines(run: Path, selection: DialogueSelection) -> Iterator[Text]:
    """Yield the selected dialogues of a recorded step, line by line.

    Raises:
        ScenarioError: if the run, the step or the role does not exist, or no dialogue was recorded.
    """
    home = RunFolder(run)
    step = _chosen_step(home, selection.step)
    trajectories = home.load_trajectories(step)
    _check_role(selection.role, trajectories)
    chains = home.read_credit(step).turns() if home.has_credit(step) else {}
    matching = selection.select(trajectories)
    yield Text(escape_for_terminal(f"{run}: {_title(step, selection, len(trajectories), len(matching))}"), "bold")
    for trajectory in matching[: selection.episodes]:
        yield Text()
        yield from episode_lines(trajectory, selection, chains)
    if matching and chains:
        name = f"{matching[0].id}:{selection.turns(matching[0])[0].id[1]}"
        yield Text(
            escape_for_terminal(f"\nmarl why {run} {name} explains an advantage; --whole shows everything"), "dim"
        )


def select_episodes(run: Path, selection: DialogueSelection) -> list[Trajectory]:
    """Return the selected episodes of a recorded step.

    Raises:
        ScenarioError: as `dialogue_lines`, or if no episode is selected.
    """
    home = RunFolder(run)
    trajectories = home.load_trajectories(_chosen_step(home, selection.step))
    _check_role(selection.role, trajectories)
    if not (chosen := selection.select(trajectories)[: selection.episodes]):
        raise ScenarioError(f"{run}: none of the {len(trajectories)} episodes of this step has such a turn")
    return chosen


def _chosen_step(home: RunFolder, step: int | None) -> int:
    if not (home.path / "scenario.yaml").is_file():
        raise ScenarioError(f"{home.path}: no run here (no scenario.yaml)")
    recorded = home.recorded_steps()
    if not recorded:
        raise ScenarioError(
            f"{home.path}: no dialogues were recorded; the setting checkpoint.trajectories is the share of steps that "
            "are: `marl train SCENARIO checkpoint.trajectories=1` records every step"
        )
    if step is not None and step not in recorded:
        nearest = " and ".join(map(str, sorted(sorted(recorded, key=lambda other: abs(other - step))[:2])))
        raise ScenarioError(
            f"--step {step}: no dialogues of this step were recorded; nearest: {nearest} ({len(recorded)} recorded, "
            f"from {recorded[0]} to {recorded[-1]}; checkpoint.trajectories is their share)"
        )
    return recorded[-1] if step is None else step


def _check_role(role: str | None, trajectories: Sequence[Trajectory]) -> None:
    role_names: set[str] = set()
    for trajectory in trajectories:
        role_names.update(trajectory.deal.seats.values())
        # A role may have a seat without a turn, or a turn without a seat.
        role_names.update(turn.role for turn in trajectory.turns)
    if role is not None and role not in role_names:
        raise ScenarioError(f"--role {role}: no such role in these dialogues; {choices_hint(role, role_names)}")


def _title(step: int, selection: DialogueSelection, episodes: int, matching: int) -> str:
    whose = f" of role {selection.role}" if selection.role else ""
    parts = [f"step {step}, {episodes} episodes"]
    if selection.unreadable:
        parts.append(f"{matching} with unreadable turns{whose}")
    order = "" if selection.order == "played" else f", {selection.order} reward{whose} first"
    return "; ".join([*parts, f"shown: {min(matching, selection.episodes)}{order}"])


def episode_lines(
    trajectory: Trajectory, selection: DialogueSelection, chains: Mapping[TurnId, TurnCreditRecord]
) -> Iterator[Text]:
    """Yield one episode: its problem, the selected turns and its rewards. `chains` maps a turn to its credit."""
    measures = ", ".join(f"{name} {value:.4g}" for name, value in trajectory.findings.measures.items())
    title = (escape_for_terminal(f"episode {trajectory.id}"), "bold cyan")
    game = escape_for_terminal(f" of {trajectory.deal.game}" if trajectory.deal.game else "")
    yield Text.assemble(title, game, escape_for_terminal(f"  {measures}" if measures else ""))
    if trajectory.parent:
        yield _fact("left", f"episode {trajectory.parent[0]} before its turn {trajectory.parent[1]}")
    question, answer = problem_of(trajectory)
    if question or trajectory.start:
        yield _fact("problem" if question else "start", _shorten(question or trajectory.start, selection))
    if answer:
        yield _fact("answer", _shorten(answer, selection))
    for turn in selection.turns(trajectory):
        # A verifier's scores are already shown below the turn it scored.
        if selection.full or not scores_of(turn) or turn.role == selection.role:
            yield from _turn(turn, trajectory, selection, chains)
    yield from _rewards(trajectory, selection)


def _turn(
    turn: Turn, trajectory: Trajectory, selection: DialogueSelection, chains: Mapping[TurnId, TurnCreditRecord]
) -> Iterator[Text]:
    yield Text.assemble(
        (escape_for_terminal(f"  {turn.id[1]} {turn.agent}"), "bold"), escape_for_terminal(f"  {_speaker(turn)}")
    )
    if sources := describe_sources(turn, trajectory, None if selection.full else _SOURCES):
        yield _field("reads", sources, "dim")
    messages = turn.request.messages if selection.full else turn.request.messages[-1:]
    for message in messages:
        yield _field(message.role if selection.full else "asked", _shorten(message.content, selection), "dim")
    remark = _CUT.get(turn.completion.finish, "")
    text = _shorten(turn.completion.text, selection)
    yield _field("said", f"{text} [{remark}]" if remark else text, "cyan")
    if turn.action is None:
        yield _field("read as", "nothing: no legal move could be read", "red")
    else:
        yield _field("read as", _shorten(turn.action, selection))
    for reader in readers_by_other_agents(turn, trajectory):
        for score in scores_of(reader):
            reason = f": {_shorten(score.why, selection)}" if score.why else ""
            yield _field("scored", f"{score.name} = {score.value:g} by {reader.agent}{reason}", "yellow")
    if chain := chains.get(turn.id):
        yield _field("earned", f"{chain.earned:+.4g}, advantage {chain.advantage:+.4g}", _colour(chain.advantage))


def _speaker(turn: Turn) -> str:
    """Return the turn's role, policy and weights version."""
    first, last = turn.completion.versions
    version = f"version {first}" if first == last else f"versions {first} to {last}"
    weights = f", {version}" if turn.completion.token_ids else ""
    again = f", after {turn.attempt} refused" if turn.attempt else ""
    return f"role {turn.role}, policy {turn.request.policy}{weights}{again}"


def _rewards(trajectory: Trajectory, selection: DialogueSelection) -> Iterator[Text]:
    """Yield the rewards of each agent, summed by component and cause."""
    totals: dict[tuple[str, str, str], float] = defaultdict(float)
    for reward in trajectory.rewards:
        if selection.role in (None, trajectory.deal.seats.get(reward.agent)):
            totals[reward.agent, reward.name, reward.cause] += reward.value
    for (agent, name, cause), value in totals.items():
        yield _fact("reward", f"{value:+.4g} {name} to {agent}{f': {cause}' if cause else ''}", _colour(value))
    if not totals:
        yield _fact("reward", "none was paid")


def _colour(value: float) -> str:
    return "green" if value > 0 else "red" if value < 0 else ""


def _shorten(text: str, selection: DialogueSelection) -> str:
    """Return `text`, shortened in the middle unless the selection asks for full texts."""
    left_out = len(text) - _HEAD - _TAIL
    if selection.full or left_out <= 0:
        return text
    return f"{text[:_HEAD]} [... {left_out:,} characters ...] {text[-_TAIL:]}"


def _fact(label: str, text: str, style: str = "") -> Text:
    """Return a line about the episode."""
    return _labelled(f"  {label:<{_LABEL + 2}} ", text, style)


def _field(label: str, text: str, style: str = "") -> Text:
    """Return a line about a turn."""
    return _labelled(f"    {label:<{_LABEL}} ", text, style)


def _labelled(label: str, text: str, style: str) -> Text:
    """Return `text` after a label, with later lines indented so that recorded text cannot imitate a label."""
    return Text.assemble((label, "dim"), (escape_for_terminal(text).replace("\n", f"\n{' ' * len(label)}"), style))
