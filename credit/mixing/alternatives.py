"""What agents could have said instead, and how likely that was."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from marl.seeds import seed_of
from marl.types import Completion

if TYPE_CHECKING:
    from marl.protocols import Simulator
    from marl.types import Request, Turn, TurnId

Texts = Mapping["TurnId", Mapping[str, float]]
"""Turn -> text -> its probability. The probabilities of a turn sum to 1; a turn that is missing has no alternative."""
Siblings = Mapping["TurnId", Sequence["TurnId"]]


def listed(turns: Iterable[Turn], simulator: Simulator) -> Texts:
    """Of turns whose moves are listed: the text of each move, as likely as the policy that speaks now is to say it and
    no other of them. Equal questions are scored once."""
    questions: dict[Hashable, tuple[Request, list[Turn]]] = {}
    for turn in turns:
        request = simulator.address(turn)
        asked = (request.policy, request.sampling, request.messages, request.continues, tuple(_texts(turn)))
        questions.setdefault((*asked, request.state), (request, []))[1].append(turn)
    wanted = [replace(request, forced=text) for request, asked in questions.values() for text in _texts(asked[0])]
    scored = iter(simulator.score(wanted))
    found: dict[TurnId, Mapping[str, float]] = {}
    for _, asked in questions.values():
        chances = _normal({text: _logprob(next(scored)) for text in _texts(asked[0])})
        found.update((turn.id, chances) for turn in asked if chances)
    return found


def _texts(turn: Turn) -> Iterable[str]:
    return dict.fromkeys((turn.request.options or {}).values())


def _logprob(said: object) -> float:
    return math.fsum(said.logprobs) if isinstance(said, Completion) else -math.inf


def _normal(logprobs: Mapping[str, float]) -> dict[str, float]:
    """Probabilities; nothing if none of them can be said."""
    best = max(logprobs.values())
    if best == -math.inf:
        return {}
    weights = {text: math.exp(value - best) for text, value in logprobs.items()}
    total = math.fsum(weights.values())
    return {text: weight / total for text, weight in weights.items()}


def resampled(turns: Sequence[Turn], simulator: Simulator, count: int, seed: int) -> Texts:
    """`count` new answers of the policies that speak now to what each turn was asked; equal ones add up."""
    requests = [
        replace(simulator.address(turn), seed=seed_of(seed, "coma", *turn.id, nth))
        for turn in turns
        for nth in range(count)
    ]
    answers = iter(simulator.score(requests))
    found: dict[TurnId, Mapping[str, float]] = {}
    for turn in turns:
        texts = [said.text for said in (next(answers) for _ in range(count)) if isinstance(said, Completion)]
        if texts:
            found[turn.id] = {text: texts.count(text) / len(texts) for text in dict.fromkeys(texts)}
    return found


def siblings(turns: Iterable[Turn], count: int) -> Siblings:
    """Turn -> others of the same agent and role that were asked the same, at most `count`: those that follow it in the
    order of play, the first following the last. Each turn is an alternative as often as it has some itself."""
    groups: dict[Hashable, dict[TurnId, None]] = defaultdict(dict)
    for turn in turns:
        asked = turn.completion.prompt_ids or (turn.request.messages, turn.request.continues)
        groups[turn.agent, turn.role, asked][turn.id] = None
    found: dict[TurnId, Sequence[TurnId]] = {}
    for group in map(list, groups.values()):
        around = [*group, *group]
        for place, turn in enumerate(group):
            found[turn] = around[place + 1 : place + 1 + min(count, len(group) - 1)]
    return found
