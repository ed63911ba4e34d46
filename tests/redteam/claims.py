"""What an answer claims, and the independent judgement: is it a right statement of the answer?

The rules are those of `games/README.md`: one statement counts, thoughts and withdrawn statements do not, doubt is no
statement, two different statements are none.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction
from typing import Any, Literal

Judgement = Literal["right", "wrong", "open"]
"""`open`: the conventions leave it open, so acceptance proves nothing by itself."""


ANYTHING = "anything"
"""Value of a text that may be read in several ways, such as an option that is another option's letter."""


class Mark(Enum):
    """Events in a text apart from its claims."""

    OPENS, CLOSES, WITHDRAWS = range(3)


@dataclass(frozen=True, slots=True)
class Claim:
    """One statement of an answer."""

    value: Hashable
    """What is stated; None if it is right for no gold: a formula to be worked out, a denial, a range."""
    mark: str = "bare"
    """`boxed`, `tag`, `prose`, `bold` or `bare`: how the statement is marked."""
    sure: bool = True
    """False if the conventions leave open whether such a notation is accepted."""


Events = list[Claim | Mark]


def judge(events: Sequence[Claim | Mark], gold: Hashable, channel: str) -> Judgement:
    """Return the judgement of a text for a reader of `channel`: a mark, or `all` if it sees every statement."""
    claims = active(events)
    if any(claim.value == ANYTHING for claim in claims):
        return "open"
    if not any(claim.value == gold for claim in claims):
        return "wrong"
    if any(claim.value is None or not claim.sure for claim in claims):
        return "open"
    if len({claim.value for claim in claims}) == 1:
        return "right" if channel in ("all", claims[-1].mark) else "open"
    # Bold face is emphasis as well as a mark, so it does not contradict a stronger one.
    strong = [claim for claim in claims if claim.mark != "bold"] or claims
    seen = {claim.value for claim in strong if channel in ("all", claim.mark)}
    return "wrong" if len(seen) > 1 else "open"


def active(events: Sequence[Claim | Mark]) -> list[Claim]:
    """Return the claims that are no thoughts and were not withdrawn."""
    outside: Events = []
    thinking = False
    for event in events:
        if event is Mark.CLOSES and not thinking:
            outside.clear()
        thinking = event is Mark.OPENS or (thinking and event is not Mark.CLOSES)
        if not thinking and event not in (Mark.OPENS, Mark.CLOSES):
            outside.append(event)
    last = max((i for i, event in enumerate(outside) if event is Mark.WITHDRAWS), default=-1)
    return [event for event in outside[last + 1 :] if isinstance(event, Claim)]


# --- effects of rules ------------------------------------------------------------------------------------------------


def same(parts: list[Events]) -> Events:
    """Return all that the parts claim, in order."""
    return [event for part in parts for event in part]


def mention(parts: list[Events]) -> Events:
    """Return nothing: naming a number in prose claims nothing."""
    return []


def unsure(parts: list[Events]) -> Events:
    return _each(parts, lambda claim: replace(claim, sure=False))


def doubt(parts: list[Events]) -> Events:
    """Return claims of nothing: denied, hedged, or changed into something else."""
    return _each(parts, lambda claim: replace(claim, value=None)) or [Claim(None)]


def spoil(parts: list[Events]) -> Events:
    """Return one claim of nothing, whatever the parts claim: a formula to be worked out, a range, a list."""
    return [Claim(None)]


def anything(parts: list[Events]) -> Events:
    """Return a claim of anything: a text that may be read in several ways."""
    return [Claim(ANYTHING)]


def opens(parts: list[Events]) -> Events:
    """Return what the first part claims; a thought that is never closed begins after it."""
    return [*parts[0], Mark.OPENS, *same(parts[1:])]


def thought(parts: list[Events]) -> Events:
    return [Mark.OPENS, *same(parts), Mark.CLOSES]


def closes(parts: list[Events]) -> Events:
    return [*same(parts), Mark.CLOSES]


def withdraws(parts: list[Events]) -> Events:
    return [*same(parts), Mark.WITHDRAWS]


def boxed(parts: list[Events]) -> Events:
    return _marked(parts, "boxed")


def tagged(parts: list[Events]) -> Events:
    return _marked(parts, "tag")


def prose(parts: list[Events]) -> Events:
    return _marked(parts, "prose")


def bold(parts: list[Events]) -> Events:
    return _marked(parts, "bold")


def either(parts: list[Events]) -> Events:
    """Return a claim of nothing if the parts differ; the same thing twice is left open."""
    values = {claim.value for claim in _claims(parts)}
    if ANYTHING in values:
        return [Claim(ANYTHING)]
    return [Claim(values.pop(), sure=False)] if len(values) == 1 else [Claim(None)]


def negative(parts: list[Events]) -> Events:
    return _number(parts, lambda value: -value)


def percent(parts: list[Events]) -> Events:
    return _number(parts, lambda value: value / 100)


def thousandfold(parts: list[Events]) -> Events:
    return _number(parts, lambda value: value * 1000)


def product(parts: list[Events]) -> Events:
    """Return a number times a unit, or a number times a power of ten."""
    sure = all(claim.sure for claim in _claims(parts))
    number, unit = (claim.value for claim in _claims(parts))
    value = number * unit if isinstance(number, Fraction) and isinstance(unit, Fraction) else None
    return [Claim(value, sure=sure)]


def ratio(parts: list[Events]) -> Events:
    """Return p/q: a closed form, unless it was copied from the question, which is left open here."""
    above, below = (claim.value for claim in _claims(parts))
    if not isinstance(above, Fraction) or not isinstance(below, Fraction) or not below:
        return [Claim(None)]
    return [Claim(above / below, sure=False)]


def power(parts: list[Events]) -> Events:
    base, exponent = (claim.value for claim in _claims(parts))
    if not isinstance(base, Fraction) or not isinstance(exponent, Fraction) or exponent.denominator > 1 or not base:
        return [Claim(None)]
    return [Claim(base ** int(exponent) if abs(exponent) < 60 else None, sure=False)]


def collection(parts: list[Events]) -> Events:
    """Return the set of what the parts claim."""
    values = frozenset(_values(parts))
    return [Claim(ANYTHING if ANYTHING in values else values)]


def ordered(parts: list[Events]) -> Events:
    """Return the tuple of what the parts claim."""
    return [Claim(tuple(_values(parts)))]


def _values(parts: list[Events]) -> list[Any]:
    """Return the values of the parts, with those of lists within them taken out of their lists."""
    values: list[Any] = []
    for claim in _claims(parts):
        values.extend(claim.value if isinstance(claim.value, tuple | frozenset) else [claim.value])
    return values


def _claims(parts: list[Events]) -> list[Claim]:
    return [event for event in same(parts) if isinstance(event, Claim)]


def _each(parts: list[Events], change: Callable[[Claim], Claim]) -> Events:
    return [change(event) if isinstance(event, Claim) else event for event in same(parts)]


def _marked(parts: list[Events], mark: str) -> Events:
    return _each(parts, lambda claim: replace(claim, mark=mark))


def _number(parts: list[Events], change: Callable[[Fraction], Fraction]) -> Events:
    return _each(
        parts,
        lambda claim: replace(claim, value=change(claim.value) if isinstance(claim.value, Fraction) else None),
    )
