"""Requests for new instructions: judged turns and present instructions as text, and the answer read back."""

from __future__ import annotations

from collections.abc import Sequence

from marl.core.config import Sampling
from marl.core.types import Message, Request, Sample
from marl.text.answers import find_tagged_spans, remove_thoughts_and_strip

_TAG = "instructions"
_EXAMPLES = 2
"""Number of the best turns, and of the worst turns, that the proposer reads."""
_MAX_TEXT = 4000
"""Maximum length of a prompt, an answer or a score that the proposer reads, in characters."""
_SYSTEM = f"""You improve the instructions of a language model that takes part in a team or a game.
You read its present instructions, and turns that it took with them: what it was asked, what it answered, and how the \
answer was scored. Find out why the worst turns failed and what the best ones have in common. Then write instructions \
that would have led to better answers and still fit all other cases. They are a jinja2 template of the system message; \
they may use the variables of the present ones. State facts and rules, no examples copied from the turns.
Answer with the complete new instructions between <{_TAG}> and </{_TAG}>."""


def proposal_request(
    proposer: str, role: str, instructions: str, turns: Sequence[Sample], sampling: Sampling, seed: int
) -> Request:
    """Return the request to the policy `proposer` for new instructions of `role`.

    Args:
        proposer: policy that answers.
        role: role whose instructions are rewritten.
        instructions: present instructions of the role.
        turns: judged turns of the role, in any order.
        sampling: settings of sampling.
        seed: seed of sampling.
    """
    ranked = sorted(turns, key=lambda sample: (sample.advantage.value, sample.paid), reverse=True)
    best, worst = ranked[:_EXAMPLES], ranked[_EXAMPLES:][-_EXAMPLES:]
    parts = [f"Role: {role}", f"<present>\n{instructions}\n</present>"]
    parts += [_turn_text("best", sample) for sample in best]
    parts += [_turn_text("worst", sample) for sample in reversed(worst)]
    messages = Message("system", _SYSTEM), Message("user", "\n\n".join(parts))
    return Request(proposer, messages, sampling, seed, purpose="credit")


def _turn_text(rank: str, sample: Sample) -> str:
    """Return a turn as the proposer reads it. The system message is left out, as it holds the instructions."""
    judged = sample.judged
    assert judged is not None, "samples of a learner that trains no weights hold texts"
    asked = [_shortened(message.content) for message in judged.messages if message.role != "system"]
    scores = [f"- {_shortened(score)}" for score in judged.scores]
    lines = ["Prompt:", *asked, "Answer:", _shortened(judged.answer), "Scores:", *scores]
    lines.append(f"Advantage: {sample.advantage.value:+.3g}")
    return f"<turn rank={rank}>\n" + "\n".join(lines) + "\n</turn>"


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]} ..."


def read_proposal(answer: str) -> str | None:
    """Return the instructions in an answer of the proposer, or None if it has no pair of tags, or nothing between."""
    spans = find_tagged_spans(remove_thoughts_and_strip(answer), _TAG)
    return (spans[-1].content.strip() or None) if spans else None
