"""Facts that recorded turns hold as JSON: scores of verifiers and raters, and the problem that was worked on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from marl.graph import Trajectory
from marl.text import read_json
from marl.types import Turn
from marl.view.edges import IN_PROMPT


@dataclass(frozen=True, slots=True)
class Score:
    """One score of a verifier or rater, with its reason."""

    name: str
    value: float
    why: str = ""


def scores_of(turn: Turn) -> list[Score]:
    """Return the scores that a verifier or rater gave in `turn`; [] for any other turn."""
    answer = {} if turn.completion.token_ids else _object(turn.completion.text)
    scores, reasons = answer.get("scores"), answer.get("why")
    if not isinstance(scores, dict):
        return []
    reasons = reasons if isinstance(reasons, dict) else {}
    numbers = {name: score for name, score in scores.items() if isinstance(score, float) or type(score) is int}
    return [Score(name, score, str(reasons.get(name, ""))) for name, score in numbers.items()]


def readers_of(turn: Turn, trajectory: Trajectory) -> list[Turn]:
    """Return the turns of other agents that read `turn`, in the order of play."""
    turns = [trajectory.graph.nodes[reader]["turn"] for reader in trajectory.readers(turn.id, IN_PROMPT)]
    return [reader for reader in turns if reader.agent != turn.agent]


def problem_of(trajectory: Trajectory) -> tuple[str, str]:
    """Return the question that an episode is about and its right answer, as verifiers were told; "" if none was."""
    for turn in trajectory.turns:
        problem = _object(turn.request.state).get("problem")
        if isinstance(problem, dict):
            return str(problem.get("question", "")), str(problem.get("answer", ""))
    return "", ""


def answers_of(trajectory: Trajectory) -> dict[str, str]:
    """Return key of a problem -> its right answer, as verifiers were told; problems that none read are left out."""
    answers: dict[str, str] = {}
    for turn in trajectory.turns:
        problem = _object(turn.request.state).get("problem")
        if isinstance(problem, dict) and problem.get("answer"):
            answers.setdefault(str(problem.get("key", "")), str(problem["answer"]))
    return answers


def _object(text: str) -> dict[str, Any]:
    """Return a JSON object; {} for any other text, as a model behind an endpoint may say anything."""
    if not text.startswith("{"):
        return {}
    try:
        value = read_json(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
