"""Facts stored as JSON in recorded turns: scores of verifiers and raters, and the current problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from marl.core.graph import Trajectory
from marl.core.types import Turn
from marl.host.untrusted_text import parse_json
from marl.view.edge_text import PROMPT_EDGE_KINDS


@dataclass(frozen=True, slots=True)
class VerifierScore:
    """Score from a verifier or rater, with its reason."""

    name: str
    """Name of the check or of the rater's score."""
    value: float
    why: str = ""
    """Reason, or "" if none was given."""


def verifier_scores_in_turn(verifier_turn: Turn) -> list[VerifierScore]:
    """Return the scores in `verifier_turn`, the answer of a verifier or rater, or [] for any other turn."""
    # A turn with sampled tokens is a model's, which may imitate a verifier's format to fake a score.
    answer = {} if verifier_turn.completion.token_ids else _parse_json_object_or_empty(verifier_turn.completion.text)
    scores, reasons = answer.get("scores"), answer.get("why")
    if not isinstance(scores, dict):
        return []
    reasons = reasons if isinstance(reasons, dict) else {}
    parsed = []
    for name, score in scores.items():
        # A list has one score for each segment, counted from 1.
        named = {f"{name} {index}": s for index, s in enumerate(score, 1)} if isinstance(score, list) else {name: score}
        for label, number in named.items():
            # `type(…) is int` excludes booleans, which `isinstance` would accept.
            if isinstance(number, float) or type(number) is int:
                parsed.append(VerifierScore(label, number, str(reasons.get(name, ""))))
    return parsed


def turns_of_other_agents_reading(read_turn: Turn, trajectory: Trajectory) -> list[Turn]:
    """Return the turns of other agents that read `read_turn`, in order of play."""
    turns: list[Turn] = []
    for reader_id in trajectory.readers(read_turn.id, PROMPT_EDGE_KINDS):
        reader = trajectory.graph.nodes[reader_id]["turn"]
        if reader.agent != read_turn.agent:
            turns.append(reader)
    return turns


def question_and_right_answer(trajectory: Trajectory) -> tuple[str, str]:
    """Return the episode's question and right answer from a verifier's request, or "" for each if unknown."""
    for turn in trajectory.turns:
        problem = _parse_json_object_or_empty(turn.request.state).get("problem")
        if isinstance(problem, dict):
            return str(problem.get("question", "")), str(problem.get("answer", ""))
    return "", ""


def right_answers_by_problem_key(trajectory: Trajectory) -> dict[str, str]:
    """Return problem key -> right answer, from the requests to verifiers in an episode."""
    answers: dict[str, str] = {}
    for turn in trajectory.turns:
        problem = _parse_json_object_or_empty(turn.request.state).get("problem")
        if isinstance(problem, dict) and problem.get("answer"):
            answers.setdefault(str(problem.get("key", "")), str(problem["answer"]))
    return answers


def _parse_json_object_or_empty(text: str) -> dict[str, Any]:
    """Return a JSON object, or {} for any other text: an endpoint's model may answer with arbitrary text."""
    if not text.startswith("{"):
        return {}
    try:
        value = parse_json(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
