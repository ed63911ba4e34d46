"""Recorded dialogues as text (`marl show`): what each turn was asked, said, was read as and earned.

From a run's folder alone. Colours are of our own marks; what others wrote is shown as it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.text import Text

from marl.config import nearest
from marl.graph import Trajectory
from marl.judging.records import TurnRecord
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError
from marl.text import for_terminal
from marl.types import Turn, TurnId
from marl.view.edges import sources_in_words
from marl.view.verdicts import problem_of, readers_of, scores_of

_HEAD, _TAIL = 400, 200
"""Characters of a long text that are shown of its beginning and of its end."""
_SOURCES = 6
"""Most earlier turns that are named as those that led to a turn."""
_LABEL = 10
"""Width of the labels, in characters."""
_CUT = {"length": "cut off at max_tokens", "overflow": "no answer: the prompt is too long", "aborted": "no answer"}
"""Finish of a completion -> remark."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Dialogues of a run that are to be shown."""

    step: int | None = None
    """Recorded step; None: the newest."""
    role: str | None = None
    """Only this role's turns; episodes are ordered by its rewards. None: every role."""
    unreadable: bool = False
    """Only turns in which no legal move could be read."""
    order: Literal["played", "best", "worst"] = "played"
    """Order of episodes: as they were played, or by the sum of rewards."""
    episodes: int = 3
    """Most episodes that are shown."""
    whole: bool = False
    """Show all messages of the prompts, verifiers' own turns, and long texts uncut."""

    def turns(self, trajectory: Trajectory) -> list[Turn]:
        """Return the selected turns of an episode."""
        return [
            turn
            for turn in trajectory.turns
            if self.role in (None, turn.role) and not (self.unreadable and turn.action is not None)
        ]

    def reward(self, trajectory: Trajectory) -> float:
        """Return the sum of an episode's rewards, of the role or of all."""
        seats = trajectory.deal.seats
        return sum(reward.value for reward in trajectory.rewards if self.role in (None, seats.get(reward.agent)))

    def pick(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """Return every episode with a selected turn, in order."""
        matching = [trajectory for trajectory in trajectories if self.turns(trajectory)]
        if self.order == "played":
            return matching
        return sorted(matching, key=self.reward, reverse=self.order == "best")


def dialogues(run: Path, selection: Selection) -> Iterator[Text]:
    """Yield the selected dialogues of a recorded step, line by line.

    Raises:
        ScenarioError: if there is no run, nothing was recorded, or there is no such step or role.
    """
    home = RunFolder(run)
    step = _chosen_step(home, selection.step)
    trajectories = home.episodes(step)
    _check_role(selection.role, trajectories)
    chains = home.judgement(step).turns() if home.has_judgement(step) else {}
    matching = selection.pick(trajectories)
    yield Text(for_terminal(f"{run}: {_title(step, selection, len(trajectories), len(matching))}"), "bold")
    for trajectory in matching[: selection.episodes]:
        yield Text()
        yield from dialogue(trajectory, selection, chains)
    if matching and chains:
        name = f"{matching[0].id}:{selection.turns(matching[0])[0].id[1]}"
        yield Text(for_terminal(f"\nmarl why {run} {name} explains an advantage; --whole shows everything"), "dim")


def chosen_episodes(run: Path, selection: Selection) -> list[Trajectory]:
    """Return the selected episodes of a recorded step.

    Raises:
        ScenarioError: as `dialogues`, and if no episode is selected.
    """
    home = RunFolder(run)
    trajectories = home.episodes(_chosen_step(home, selection.step))
    _check_role(selection.role, trajectories)
    if not (chosen := selection.pick(trajectories)[: selection.episodes]):
        raise ScenarioError(f"{run}: none of the {len(trajectories)} episodes of this step has such a turn")
    return chosen


def _chosen_step(home: RunFolder, step: int | None) -> int:
    if not (home.path / "scenario.yaml").is_file():
        raise ScenarioError(f"{home.path}: no run here (no scenario.yaml)")
    recorded = home.recorded()
    if not recorded:
        raise ScenarioError(
            f"{home.path}: no dialogues were recorded; the setting checkpoint.trajectories is the share of steps that "
            "are: `marl train SCENARIO checkpoint.trajectories=1` records every step"
        )
    if step is not None and step not in recorded:
        near = " and ".join(map(str, sorted(sorted(recorded, key=lambda other: abs(other - step))[:2])))
        raise ScenarioError(
            f"--step {step}: no dialogues of this step were recorded; nearest: {near} ({len(recorded)} recorded, from "
            f"{recorded[0]} to {recorded[-1]}; checkpoint.trajectories is their share)"
        )
    return recorded[-1] if step is None else step


def _check_role(role: str | None, trajectories: Sequence[Trajectory]) -> None:
    known = {name for trajectory in trajectories for name in trajectory.deal.seats.values()}
    known |= {turn.role for trajectory in trajectories for turn in trajectory.turns}
    if role is not None and role not in known:
        raise ScenarioError(f"--role {role}: no such role in these dialogues; {nearest(role, known)}")


def _title(step: int, selection: Selection, episodes: int, matching: int) -> str:
    whose = f" of role {selection.role}" if selection.role else ""
    parts = [f"step {step}, {episodes} episodes"]
    if selection.unreadable:
        parts.append(f"{matching} with unreadable turns{whose}")
    order = "" if selection.order == "played" else f", {selection.order} reward{whose} first"
    return "; ".join([*parts, f"shown: {min(matching, selection.episodes)}{order}"])


def dialogue(trajectory: Trajectory, selection: Selection, chains: Mapping[TurnId, TurnRecord]) -> Iterator[Text]:
    """Yield one episode: its problem, the selected turns and its rewards; `chains`: the turns that were judged."""
    measures = ", ".join(f"{name} {value:.4g}" for name, value in trajectory.findings.measures.items())
    title = (for_terminal(f"episode {trajectory.id}"), "bold cyan")
    game = for_terminal(f" of {trajectory.deal.game}" if trajectory.deal.game else "")
    yield Text.assemble(title, game, for_terminal(f"  {measures}" if measures else ""))
    if trajectory.parent:
        yield _fact("left", f"episode {trajectory.parent[0]} before its turn {trajectory.parent[1]}")
    question, answer = problem_of(trajectory)
    if question or trajectory.start:
        yield _fact("problem" if question else "start", _shorten(question or trajectory.start, selection))
    if answer:
        yield _fact("answer", _shorten(answer, selection))
    for turn in selection.turns(trajectory):
        # A verifier's scores stand below the turn that it read.
        if selection.whole or not scores_of(turn) or turn.role == selection.role:
            yield from _turn(turn, trajectory, selection, chains)
    yield from _rewards(trajectory, selection)


def _turn(
    turn: Turn, trajectory: Trajectory, selection: Selection, chains: Mapping[TurnId, TurnRecord]
) -> Iterator[Text]:
    yield Text.assemble((for_terminal(f"  {turn.id[1]} {turn.agent}"), "bold"), for_terminal(f"  {_speaker(turn)}"))
    if sources := sources_in_words(turn, trajectory, None if selection.whole else _SOURCES):
        yield _field("reads", sources, "dim")
    messages = turn.request.messages if selection.whole else turn.request.messages[-1:]
    for message in messages:
        yield _field(message.role if selection.whole else "asked", _shorten(message.content, selection), "dim")
    remark = _CUT.get(turn.completion.finish, "")
    text = _shorten(turn.completion.text, selection)
    yield _field("said", f"{text} [{remark}]" if remark else text, "cyan")
    if turn.action is None:
        yield _field("read as", "nothing: no legal move could be read", "red")
    else:
        yield _field("read as", _shorten(turn.action, selection))
    for reader in readers_of(turn, trajectory):
        for score in scores_of(reader):
            reason = f": {_shorten(score.why, selection)}" if score.why else ""
            yield _field("scored", f"{score.name} = {score.value:g} by {reader.agent}{reason}", "yellow")
    if chain := chains.get(turn.id):
        yield _field("earned", f"{chain.earned:+.4g}, advantage {chain.advantage:+.4g}", _colour(chain.advantage))


def _speaker(turn: Turn) -> str:
    """Return the role, the policy and the version of its weights."""
    first, last = turn.completion.versions
    version = f"version {first}" if first == last else f"versions {first} to {last}"
    weights = f", {version}" if turn.completion.token_ids else ""
    again = f", after {turn.attempt} refused" if turn.attempt else ""
    return f"role {turn.role}, policy {turn.request.policy}{weights}{again}"


def _rewards(trajectory: Trajectory, selection: Selection) -> Iterator[Text]:
    """Yield what each agent was paid, by component."""
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


def _shorten(text: str, selection: Selection) -> str:
    """Return `text`, or its beginning and its end where it is long."""
    left_out = len(text) - _HEAD - _TAIL
    if selection.whole or left_out <= 0:
        return text
    return f"{text[:_HEAD]} [... {left_out:,} characters ...] {text[-_TAIL:]}"


def _fact(label: str, text: str, style: str = "") -> Text:
    """Return a line about the whole episode."""
    return _labelled(f"  {label:<{_LABEL + 2}} ", text, style)


def _field(label: str, text: str, style: str = "") -> Text:
    """Return a line about a turn."""
    return _labelled(f"    {label:<{_LABEL}} ", text, style)


def _labelled(label: str, text: str, style: str) -> Text:
    """Return a text whose further lines stand as far to the right as its first, so that none passes for a label."""
    return Text.assemble((label, "dim"), (for_terminal(text).replace("\n", f"\n{' ' * len(label)}"), style))
