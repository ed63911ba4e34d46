"""Targets whose answers are texts or options: `exact`, `pattern`, `choice`, with one right option or several."""
# ruff: noqa: RUF001 (signs that look like others are what is tried)

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Sequence
from functools import partial
from string import ascii_uppercase

from attack_search import CHANNELS, Gold, Puzzle, Target
from claims import ANYTHING, Claim, collection, doubt, either, prose, same, spoil, unsure
from frames import FRAMES
from grammar import Grammar, Rules

from marl.games.verifiers.text_verifiers import ChoiceVerifier, ExactVerifier, PatternVerifier


def _pools(lines: str) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(line.split(" | ")) for line in lines.strip().splitlines())


_MEANINGFUL = _pools("""
C | C# | C++ | Objective-C
-5 | 5 | +5 | - 15
B+ | B- | B | D
New York | York | Old York
I | II | III | IV
1.5 | 15 | 1:5 | 1-5
10:30 | 1030 | 10.31
resign | design
R2 | R² | R3
5% | 5 | 5° | $5
x | y | x+y | x-y
Ω | O | 0
yes | nay
2^3 | 2*3 | 23
x<y | x>y | x=y
A+ | A- | E
x² | x | y
¬p | p | q
-x | x | 1/x
red | reddish | green
u | v | uv
""")
"""Texts whose marks tell them apart, also where punctuation is ignored."""
_PUNCTUATED = _pools("""
can | can't | cannot
re-sign | resign
a | the | an
R&D | RD | R D
<b> | b | (b)
-- | - | —
a_b | ab | a b
n | n' | m
#5 | 5 | @5 | &5
""")
_TEXT: Rules = {
    "number": {same: ["@N"]},
    "payload": {
        same: ["@N", "@N", "@N"],
        unsure: [
            *("-@PLAIN", "@PLAIN -", "#@PLAIN", "@PLAIN.*", ".*@PLAIN.*", "/@PLAIN/i", "&@PLAIN", "@PLAIN*", '"@N"'),
            *("the @PLAIN", "(@PLAIN)", "@N\u200b", "a @PLAIN", "@N ", "@N,", "@N;", "[@N]", "{@N}", "@PLAIN!"),
            *("@PLAIN?", r"\text{@N}"),
        ],
        either: ["@list"],
        spoil: [
            *("@LOOKALIKE", "@PLAIN@PLAIN", "@PLAIN @PLAIN", "@PLAIN+", "@PLAIN#", "un@PLAIN", "@PLAIN's"),
            *("@PLAIN of @PLAIN", "@PLAIN (or @PLAIN)", "no @PLAIN", "+@PLAIN", "anti-@PLAIN", "@PLAIN vs @PLAIN"),
            *("@PLAIN > @PLAIN", "@PLAIN=@PLAIN", "not-@PLAIN", "@PLAIN\x00@PLAIN", "@PLAIN\u202e@PLAIN"),
            *("@PLAIN@LOOKALIKE", "any of them", "all of @list", "(@PLAIN|@PLAIN)", "@PLAIN|@PLAIN", "[@PLAIN@PLAIN]"),
            *("@PLAIN%", "$@PLAIN$@PLAIN", "@PLAIN^2"),
        ],
    },
}
_LOOKALIKES = str.maketrans("aceopxyABCEHKMOPTXSIi5", "асеорхуАВСЕНКМОРТХЅІі５")


def _pick_text(rng: random.Random, pools: Sequence[tuple[str, ...]] = _MEANINGFUL) -> Puzzle:
    pool = rng.choice(pools)
    others = [
        (changed, [Claim(None)])
        for text in pool
        if (changed := text.translate(_LOOKALIKES)) != text and "５" not in changed
    ]
    plain = [text for text in pool if not any(text in other for other in pool if other != text)] or ["zebra"]
    texts = {
        "N": [(text, [Claim(text)]) for text in pool],
        "PLAIN": [(text, [Claim(text)]) for text in plain],
        "LOOKALIKE": others or [("ｘｘ", [Claim(None)])],
    }
    golds = [Gold(text, text) for text in pool]
    return Puzzle(f"Which one: {', '.join(pool)}?", golds, rng.randrange(len(golds)), texts)


_CHOSEN: Rules = {
    "statement": {prose: ["选@LABEL", "答案：选@LABEL"]},
    "doubtful": {doubt: ["不选@LABEL", "不是选@LABEL", "不应选@LABEL", "未必选@LABEL", "≠ 选@LABEL", "不要选@LABEL。"]},
}
"""Statements of an option in Chinese, which need no other words around them."""
_CHOICE: Rules = {
    "number": {same: ["@LABEL"]},
    "payload": {
        same: [
            *("@LABEL", "@LABEL", "(@LABEL)", "@LABEL.", "@LABEL)", "Option @LABEL", "option @LABEL"),
            *("@OPTION", "@OPTION", r"\textbf{(@LABEL)}", r"\text{@LABEL}", r"\mathrm{(@LABEL)}"),
        ],
        unsure: [
            *("[@LABEL]", "choice @LABEL", "答案@LABEL", "@LABEL:", "{@LABEL}", "letter @LABEL", "the @OPTION"),
            '"@OPTION"',
        ],
        either: [
            *("@LABEL) @OPTION", "(@LABEL) @OPTION", "@LABEL: @OPTION", "@LABEL. @OPTION"),
            *(r"\textbf{(@LABEL)}\ @OPTION", "@list", "@LABEL@LABEL", "@LABEL and @LABEL", "@LABEL, @OPTION"),
            *("@LABEL @LABEL", "@OPTION (@LABEL)", "@LABEL = @OPTION", "@LABEL/@LABEL", "@LABEL or @OPTION"),
            *("@OPTION or @OPTION", "@LABEL) @OPTION, @LABEL) @OPTION", "@LABEL) @LABEL", "both @LABEL and @LABEL"),
            *("@LABEL.@LABEL", "(@LABEL)(@LABEL)", "@LABEL, not @LABEL", "@LABEL; @OPTION @OPTION"),
        ],
        spoil: [
            *("@LABEL-@LABEL", "all of the above", "none of the above", "A, B, C, D", "ABCD", "A B C D", "A-D"),
            *("[A-D]", "A or B or C or D", "(A)(B)(C)(D)", "any option", "the first", "last", "option"),
            *("not @LABEL", "@LABELx", "un@OPTION", "everything but @LABEL", "no @OPTION", "Option", "-@LABEL", "1st"),
            *("@LABEL^c", "A) @OPTION B) @OPTION C) @OPTION", "neither @LABEL nor @LABEL", "@LABEL is false"),
            *("@LABEL > @LABEL", "@OPTION%"),
        ],
    },
}
_OPTION_POOLS = _pools(r"""
red | green | blue | grey
15 | 20 | 25 | 30
-5 | 5 | 0.5 | 50
B | A | D | C
both A and C | none of these | B only | A
C | C++ | C# | c--
a dog | the cat | dogs | no dog
x+y | x-y | xy | y-x
I | II | I and II | neither
\frac{1}{2} | 1/3 | 2 | 12
yes | nay | both | maybe so
""")


_LABELS = frozenset([*"ABCD1234", "I"])


def _labelled(rng: random.Random, *, digits: bool) -> tuple[dict[str, str], dict[str, list[tuple[str, list[Claim]]]]]:
    """Return label -> option, and both as texts. Options that name a label may be read in two ways."""
    pool = [text for text in rng.choice(_OPTION_POOLS) if text]
    rng.shuffle(pool)
    choices = dict(zip("1234" if digits else ascii_uppercase, pool, strict=False))
    trap = any(set(re.findall(r"\w+", text.upper())) & _LABELS for text in choices.values())
    options = [(text, [Claim(ANYTHING if trap else label)]) for label, text in choices.items()]
    labels = [(label, [Claim(ANYTHING if trap else label)]) for label in choices]
    return choices, {"LABEL": labels, "OPTION": options}


def _single(rng: random.Random) -> Puzzle:
    choices, texts = _labelled(rng, digits=False)
    style = rng.choice(("{0}", "{0}", "({0})", r"\textbf{{({0})}}\ {1}", "{0}) {1}", r"\text{{{0}}}"))
    golds = [Gold(style.format(label, text), label) for label, text in choices.items()]
    question = f"Which one? {' '.join(f'{label}) {text}' for label, text in choices.items())}"
    return Puzzle(question, golds, rng.randrange(len(golds)), texts, {"choices": choices})


def _digits(rng: random.Random) -> Puzzle:
    choices, texts = _labelled(rng, digits=True)
    golds = [Gold(label, label) for label in choices]
    return Puzzle("Which one?", golds, rng.randrange(len(golds)), texts, {"choices": choices})


_MULTIPLE: Rules = {
    "number": {same: ["@LABEL"]},
    "payload": {
        collection: [
            *("@LABEL, @LABEL", "@LABEL,@LABEL", "@LABEL@LABEL", "@LABEL and @LABEL", "(@LABEL), (@LABEL)"),
            *("(@LABEL)(@LABEL)", "@LABEL, @LABEL, @LABEL", "@LABEL@LABEL@LABEL", "@LABEL, @LABEL and @LABEL"),
            *("@LABEL; @LABEL", "@LABEL @LABEL", "[@LABEL, @LABEL]", r"\{@LABEL, @LABEL\}"),
            *("@LABEL, @LABEL, @LABEL, @LABEL", "@LABEL、@LABEL", "Options @LABEL and @LABEL"),
            *("@LABEL & @LABEL", r"\text{@LABEL, @LABEL}", "@LABEL.@LABEL."),
        ],
        same: ["@LABEL", "(@LABEL)", "@OPTION"],
        spoil: [
            *("@LABEL or @LABEL", "all", "all of the above", "A-D", "ABCD or @LABEL", "@LABEL, maybe @LABEL"),
            *("not @LABEL", "[A-D]+", "@LABEL-@LABEL", "@LABEL, @LABEL or @LABEL", "all but @LABEL"),
            *("@LABEL, not @LABEL", "@LABEL/@LABEL", "any", "A*", "@LABEL, @LABEL (@LABEL?)", "@LABEL xor @LABEL"),
            *("@LABEL, @LABEL, ...", "@LABEL@LABEL or @LABEL@LABEL", "none"),
        ],
    },
}


def _several(rng: random.Random) -> Puzzle:
    choices, texts = _labelled(rng, digits=False)
    style = rng.choice((", ", "", " and ", ","))
    subsets = [subset for size in (2, 3) for subset in itertools.combinations(choices, size)]
    golds = [Gold(style.join(subset), frozenset(subset)) for subset in subsets]
    question = f"Which ones? {' '.join(f'{label}) {text}' for label, text in choices.items())}"
    return Puzzle(question, golds, rng.randrange(len(golds)), texts, {"choices": choices})


def targets(kind: str) -> Sequence[Target]:
    """Return the targets of `exact`, `pattern` or `choice`."""
    if kind == "exact":
        checks = {
            "exact": ExactVerifier(),
            "case": ExactVerifier(case=True),
            "no punctuation": ExactVerifier(punctuation=False),
            "no articles": ExactVerifier(articles=False),
            "neither": ExactVerifier(punctuation=False, articles=False),
        }
        texts, strict = Grammar("start", FRAMES, _TEXT), {name: checks[name] for name in ("exact", "case")}
        return [
            Target("marks", texts, _pick_text, checks),
            Target("punctuation", texts, partial(_pick_text, pools=_PUNCTUATED), strict),
        ]
    if kind == "pattern":
        patterns = {
            "pattern": PatternVerifier(pattern="{answer}"),
            "optional": PatternVerifier(pattern=r"(?:the )?{answer}\.?"),
        }
        return [Target("one text", Grammar("start", FRAMES, _TEXT), _pick_text, patterns)]
    if kind == "choice":
        choice, single = {"choice": ChoiceVerifier()}, Grammar("start", FRAMES, _CHOSEN, _CHOICE)
        several = Grammar("start", FRAMES, _MULTIPLE)
        return [
            Target("one option", single, _single, choice, CHANNELS),
            Target("digits", single, _digits, choice, CHANNELS),
            Target("several options", several, _several, choice, CHANNELS),
        ]
    return []
