"""Facts stored as JSON in recorded turns: scores of verifiers and raters, and the current problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from marl.core.graph import Trajectory
from marl.core.types import Turn
from marl.host.outside import parse_json
from marl.view.edge_text import PROMPT_EDGE_KINDS


@dataclass(frozen=True, slots=True)
class Score:
    """Score from a verifier or rater, with its reason."""

    name: str
    value: float
    why: str = ""


def scores_of(turn: Turn) -> list[Score]:
    """Return the scores in `turn`, the answer of a verifier or rater, or [] for any other turn."""
    # Verifiers sample no tokens; a model could imitate their format to fake a score.
    answer = {} if turn.completion.token_ids else _object(turn.completion.text)
    scores, reasons = answer.get("scores"), answer.get("why")
    if not isinstance(scores, dict):
        return []
    reasons = reasons if isinstance(reasons, dict) else {}
    parsed = []
    for name, score in scores.items():
        # `type(…) is int` excludes booleans, which are instances of int.
        if isinstance(score, float) or type(score) is int:
            parsed.append(Score(name, score, str(reasons.get(name, ""))))
    return parsed


def readers_by_other_agents(turn: Turn, trajectory: Trajectory) -> list[Turn]:
    """Return the turns of other agents that read `turn`, in order of play."""
    turns = [trajectory.graph.nodes[reader]["turn"] for reader in trajectory.readers(turn.id, PROMPT_EDGE_KINDS)]
    return [reader for reader in turns if reader.agent != turn.agent]


def problem_of(trajectory: Trajectory) -> tuple[str, str]:
    """Return the episode's question and right answer from a verifier's request, or "" for each if unknown."""
    for turn in trajectory.turns:
        problem = _object(turn.request.state).get("problem")
        if isinstance(problem, dict):
            return str(problem.get("question", "")), str(problem.get("answer", ""))
    return "", ""


def answers_of(trajectory: Trajectory) -> dict[str, str]:
    """Return problem key -> right answer from the verifiers' requests."""
    answers: dict[str, str] = {}
    for turn in trajectory.turns:
        problem = _object(turn.request.state).get("problem")
        if isinstance(problem, dict) and problem.get("answer"):
            answers.setdefault(str(problem.get("key", "")), str(problem["answer"]))
    return answers


def _object(text: str) -> dict[str, Any]:
    """Return a JSON object, or {} for any other text: an endpoint's model may answer with arbitrary text."""
    if not text.startswith("{"):
        return {}
    try:
        value = parse_json(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
