"""A prompt that depends on an earlier turn has an edge from this turn, whatever the template does with its words."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from jinja2 import TemplateError

from marl.text.origins import (
    NO_ORIGINS,
    OriginRecordingDict,
    OriginRecordingList,
    TextOrigin,
    TextWithOrigins,
    origins_of,
)
from marl.text.templates import BoundedEnvironment, CompiledTemplate

ENVIRONMENT = BoundedEnvironment()
EARLIER = frozenset([TextOrigin(("e", 0), "heard")])
MOVES: tuple[tuple[str, float, bool, list[str]], ...] = (
    ("5 2", 0.0, True, ["a", "b"]),
    ("7", 1.0, False, ["b"]),
    ("", 3.0, True, []),
    ("yes", -1.0, False, ["c", "a", "5"]),
)
"""Move, score, verdict and words of the earlier turn: the facts on which a prompt may depend."""
TEXTS = ("question", "turn.move", "'5'", "'yes'", "heard[0].move", "heard[1].move", "turn.agent")
NUMBERS = ("1", "turn.score", "turn.ok", "heard[1].score", "turn.scores[0]", "turn.scores | sum")
LISTS = ("letters", "turn.words", "heard | map(attribute='move') | list", "[turn.move, question]")
TEXT_FORMS = (
    *(
        "(T).strip(T)",
        "(T).removeprefix(T)",
        "(T).partition(T)[0]",
        "(T).rpartition(T) | join('|')",
        "T ~ T",
        "(T) + (T)",
    ),
    *(
        "(T) if N else (T)",
        "(T) | replace(T, 'x')",
        "(T) | upper",
        "[T, T] | string",
        "{'k': T} | string",
        "(L) | join(T)",
    ),
    *(
        "(L) | first | default(T)",
        "(L) | last | default(T)",
        "(L) | string",
        "(N) | string",
        "(T)[:2]",
        "(T)[0] | default(T)",
    ),
    *(
        "(T)[-1] | default(T)",
        "names.get(T, 'no')",
        "names[T] | default(T)",
        "(T) | title",
        "(T) | tojson",
        "(T).lower()",
    ),
    *(
        "(L) | sort | join",
        "(L) | map('upper') | join('-')",
        "(L)[1:] | join",
        "(L)[1] | default(T)",
        "(L) | unique | join",
    ),
)
NUMBER_FORMS = (
    *(
        "(T).count(T)",
        "(T).find(T)",
        "(T).startswith(T)",
        "(T) in (T)",
        "(T) == (T)",
        "(T) | length",
        "(N) + (N)",
        "(N) > (N)",
    ),
    *(
        "not N",
        "(N) and (N)",
        "(L) | length",
        "(L).count(T)",
        "(T) in (L)",
        "(T) | int",
        "(T) | wordcount",
        "(T) < (T)",
    ),
)
LIST_FORMS = (
    *("(T).split(T)", "(T).split()", "(T) | list", "[T, T]", "(L) | sort", "(L) | reverse | list", "(L) + (L)"),
    *("heard | selectattr('ok') | map(attribute='agent') | list", "(T).splitlines()", "(L) | select('in', T) | list"),
    "heard | sort(attribute='score') | map(attribute='agent') | list",
)
TEMPLATES = (
    *("{{ T }}", "{{ N }}", "{{ L }}", "{% if N %}x{% else %}y{% endif %}", "{% for x in L %}.{% endfor %}"),
    *("{% for x in L %}{{ loop.index }}{{ x }}{% endfor %}", "{% set v = T %}{{ v }}", "{% set v = N %}{{ 'a' if v }}"),
    *("{% macro f(x) %}{{ x }}!{% endmacro %}{{ f(T) }}", "{% filter upper %}{{ T }}{% endfilter %}"),
    *(
        "{% for x in letters %}{% if x in T %}{{ x }}{% endif %}{% endfor %}",
        "{% set v %}{{ T }}{% endset %}{{ v | length }}",
    ),
)


def filled_in(form: str, depth: int, draw: Callable[[tuple[str, ...]], str]) -> str:
    """Replace each T, N and L of `form` by a random expression for a text, a number or a list."""
    forms = {"T": (TEXTS, TEXT_FORMS), "N": (NUMBERS, NUMBER_FORMS), "L": (LISTS, LIST_FORMS)}
    pieces = [filled_in(draw(forms[sign][depth > 0]), depth - 1, draw) if sign in forms else sign for sign in form]
    return "".join(pieces)


def facts(move: str, score: float, ok: bool, words: list[str]) -> dict[str, Any]:
    def marked(text: str) -> TextWithOrigins:
        return TextWithOrigins(text, tuple([(0, len(text), origin) for origin in EARLIER]))

    turn = OriginRecordingDict(
        {
            **{"move": marked(move), "score": score, "ok": ok, "agent": "ann"},
            "words": OriginRecordingList(map(marked, words), [EARLIER] * len(words), EARLIER),
            "scores": OriginRecordingList([score, 2.0], [EARLIER, NO_ORIGINS]),
        },
        dict.fromkeys(("move", "score", "ok", "words", "scores"), EARLIER),
    )
    other = {"move": "none", "score": 0.5, "ok": True, "agent": "bob"}
    names = {"5 2": "five", "7": "seven", "": "empty"}
    return {"question": "2 + 5 is 5 yes", "turn": turn, "heard": [turn, other], "names": names, "letters": ["a", "b"]}


@pytest.mark.parametrize("seed", range(4))
def test_a_prompt_that_changes_with_the_words_of_a_turn_has_its_edge(seed: int) -> None:
    rng, compared = random.Random(seed), 0
    for _ in range(200):
        source = filled_in(rng.choice(TEMPLATES), rng.randrange(3), rng.choice)
        prompts: dict[str, bool] = {}
        for move in MOVES:
            try:
                prompt = CompiledTemplate(ENVIRONMENT.from_string(source)).render(facts(*move))
            except TemplateError:
                continue
            prompts[str.__str__(prompt)] = origins_of(prompt) == EARLIER
        compared += len(prompts) > 1
        assert len(prompts) < 2 or all(prompts.values()), (source, prompts)
    assert compared > 40
