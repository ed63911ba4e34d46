"""What stands around an answer: statements, prose, doubt, thoughts, withdrawals, junk."""
# ruff: noqa: RUF001 (signs that look like others are what is tried)

from __future__ import annotations

from claims import (
    bold,
    boxed,
    closes,
    doubt,
    either,
    mention,
    opens,
    prose,
    same,
    spoil,
    tagged,
    thought,
    unsure,
    withdraws,
)
from grammar import Rules

FRAMES: Rules = {
    "start": {same: ["@wrapped", "@text", "@text", "@text"], doubt: ["@doubted"]},
    "text": {
        same: ["@statement", "@statement", "@preface @statement", "@text\n@text", "@text\n\n@preface\n@text"],
        thought: ["<think>@thoughts</think>"],
        opens: ["@text\n<think>@thoughts"],
        closes: ["@thoughts</think>"],
        withdraws: ["@text. @withdrawal", "@text\n@withdrawal", "@text.\n@withdrawal @preface"],
        mention: ["@musing", "@musing @musing"],
    },
    "thoughts": {same: ["@text", "@text", "\n@text\n", "@musing", ""]},
    "statement": {
        prose: [
            *("The answer is @wrapped.", "Answer: @wrapped", "Final answer: @wrapped"),
            *("The final answer is @wrapped.", "So the final answer is @wrapped", "#### @wrapped", "答案是@wrapped"),
            *("答案：@wrapped", "因此答案为@wrapped。", "Therefore, the answer is: @wrapped", "**Answer:** @wrapped"),
        ],
        boxed: [r"\boxed{@payload}", r"$\boxed{@payload}$", r"The answer is $\boxed{@payload}$.", r"\fbox{@payload}"],
        tagged: ["<answer>@wrapped</answer>", "<answer> @wrapped </answer>"],
        bold: ["**@wrapped**"],
        same: ["@doubtful"],
    },
    "doubtful": {
        doubt: [
            *(r"\boxed{@doubted}", "<answer>@doubted</answer>", "The answer is @doubted.", "Answer: @doubted"),
            *(r"The answer is not \boxed{@payload}.", r"It cannot be \boxed{@payload}", "The answer is not @wrapped."),
            *(r"Is it \boxed{@payload}?", r"\boxed{@payload} is wrong.", r"Not \boxed{@payload}!"),
            *("The answer isn't @wrapped", "The answer is anything but @wrapped.", "**not @wrapped**"),
            *("The answer might be @wrapped.", "Maybe the answer is @wrapped.", "答案不是@wrapped"),
            *("I doubt the answer is @wrapped", "If the answer is @wrapped, then I am a teapot."),
            *("The answer is @wrapped?", "Suppose the answer is @wrapped."),
        ],
    },
    "doubted": {
        doubt: [
            *("not @wrapped", "maybe @wrapped", "@wrapped?", "about @wrapped", "~@wrapped or so", "never @wrapped"),
            *("@wrapped is wrong", "anything but @wrapped", "@wrapped (wrong)", "probably @wrapped", "≠ @payload"),
            *(r"\ne @payload", r"\neq @payload", r"\neg @payload", "!= @payload", "@wrapped, I guess"),
            *("isn't @wrapped", "possibly @wrapped", "either @wrapped", "no @wrapped", "@wrapped or so"),
            *("@wrapped not", "nearly @wrapped", "unless @wrapped", "some number but @wrapped", "不是@wrapped"),
            *("大约@wrapped", "@wrapped, not", r"\sim @payload", "un@wrapped", "@wrapped-ish", "@wrapped...?"),
            *("who knows, @wrapped", "@wrapped xor", "ca. @wrapped"),
        ],
    },
    "withdrawal": {
        same: [
            *("Wait, that is wrong.", "Wait, no.", "No, that's wrong.", "Actually, that is wrong.", "Scratch that."),
            *("On second thought, no.", "Correction!", "Hmm, that's not right.", "I mean something else."),
            *("Oops, wrong.", "But that's incorrect.", "Wait.", "Actually, no.", "That was a mistake."),
            "No, scratch that.",
        ],
    },
    "preface": {
        mention: [
            *("Let me think.", "We add.", "First look at @number.", "It is not @number.", "Since @number is small,"),
            *("Step 1: @number.", "Let's see: @musing", "", "So", "Hence", "Let $x = @number$.", "@junk"),
        ],
    },
    "musing": {
        mention: [
            *("I would say @wrapped", "One might think of @wrapped", "@wrapped and so on"),
            *("The candidates are @list.", "It could be @wrapped.", "Someone wrote @wrapped here"),
            *("We look at @number first.", "See page @number."),
        ],
    },
    "wrapped": {
        unsure: [
            *("~@payload", "$$@payload$$", r"\[@payload\]", '"@payload"', "'@payload'", "«@payload»", "@payload!"),
            "=@payload",
        ],
        spoil: ["@junk", ""],
        same: ["@payload", "@payload", "$@payload$", r"\(@payload\)", "`@payload`", "@payload."],
    },
    "list": {
        either: [
            *("@payload or @payload", "@payload, @payload", "@payload and @payload", "@payload; @payload"),
            *("@payload/@payload", "@payload @payload", "@list, @payload", "@list or @payload"),
            *("either @payload or @payload", "@payload | @payload", "@payload, or @payload", "@payload und @payload"),
            *(
                "@payload 或 @payload",
                "@payload、@payload",
                r"@payload \lor @payload",
                r"@payload \text{ or } @payload",
            ),
            *(r"@payload \quad @payload", "@payload & @payload"),
        ],
    },
    "junk": {
        spoil: [
            *("{answer}", "{{ answer }}", "$answer", "${answer}", "%s", "{0}", "the right answer", "gold", "?", "zz"),
            *("*", ".*", "[0-9]+", r"\d+", "(.*)", "(?:)", "^.*$", "any", "all", "none", "null", "NaN", "inf", "-inf"),
            *("True", r"\infty", "[]", "()", "{}", "\\", "$", "$$", r"\boxed{}", "<answer></answer>"),
            *("0/0", "1/0"),
            *("\u200b", "\u202e", "\x00", "\ufeff", "🙂", "é", "9" * 400, "(" * 60, r"\frac{" * 30, "^" * 40, "-" * 50),
            *("lambda: 1", "__import__('os')", "'; DROP TABLE", "exec('1')", "True == True", "1 if 1 else 0", "..."),
            "…",
        ],
    },
}
"""A grammar adds `payload`, and may add to any symbol; `number` names what prose mentions."""
