"""Roles that judge other agents' turns: verdicts, and scores on a scale."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from marl.core.config import Config
from marl.core.seeds import hash_to_seed
from marl.core.types import Completion, Request, Turn, TurnId
from marl.protocols import JudgingRoleConfig, PromptContext
from marl.roles import parsing
from marl.roles.answering import AnsweringRole, TagName
from marl.roles.base import TemplateText, is_variable_in_template
from marl.roles.quotations import (
    AnswerMarkFinder,
    answer_mark_finder,
    remove_thoughts_and_quotations,
    unwrap_fenced_answer,
    with_plain_letters,
    without_invisible_characters,
)

_SCORE_RANGE_BY_SCALE = {"unit": (0.0, 1.0), "ten": (1.0, 10.0), "sage": (0.0, 10.0)}
_CHOICE_IN_SWAPPED_ORDER = {"1": "2", "2": "1"}
_NONCE_DIGITS = 6
"""Number of hexadecimal digits of a nonce: a guess is right once in 16 million."""
_PROBE_TAG = "verdict-probe"
"""Tag with which prompts are rendered to see whether they show the tag."""


VerdictForm = Literal["yes_no", "score"]


class VerdictSettings(Config):
    """Form of a verdict, and its protection against solvers that write verdicts themselves."""

    form: VerdictForm | None = None
    """Form of a critic's verdict (default: `yes_no`). A judge has `mode` instead."""
    tag: Literal["nonce", "fixed"] | None = None
    """`nonce`: each request has a tag of its own, such as `verdict-3f9a1c`, which no solver can know. It is derived
    from the request's seed. `fixed`: the tag is the role's `tag`. Default: `nonce` for a model with a general
    vocabulary, `fixed` for a tiny model, and wherever the model has learned the format or the prompt does not show the
    tag."""
    spoof_penalty: float = Field(default=0.0, ge=0)
    """Cost of a turn with a verdict in this role's format, paid by the agent of the turn as the reward component
    `spoof`, as soon as this role has read the turn. A turn costs this once."""


class ScoringRole(AnsweringRole, JudgingRoleConfig):
    """Base of roles that answer with a verdict, by default a score.

    With `answer: json`, the verdict is the value of the key named by `tag`. An answer that was cut off has no verdict.
    Verdicts that the role quotes from others do not count (`marl/roles/quotations.py`).
    """

    template_fields: ClassVar[tuple[str, ...]] = (*AnsweringRole.template_fields, "scale")
    tag: TagName = "verdict"
    verdict: VerdictSettings = VerdictSettings()
    """Form and protection of the verdict. For a critic, `verdict: score` is short for `verdict: {form: score}`."""
    scale: Literal["unit", "ten", "sage"] = "unit"
    """Scale of the model's scores: `unit` from 0 to 1; `ten` from 1 to 10; `sage` as in SAGE (arXiv 2603.15255), where
    scores up to 1 are on the scale from 0 to 1 and higher scores on the scale from 1 to 10. The move is the score
    rescaled to [0, 1], with at most four decimals."""

    @model_validator(mode="after")
    def _check_nonce(self) -> Self:
        if self.verdict.tag == "nonce" and (obstacle := self.reason_random_tag_is_impossible):
            raise ValueError(f"verdict.tag: 'nonce', but {obstacle}; use 'fixed', or change that")
        return self

    @property
    def verdict_tag(self) -> Literal["nonce", "fixed"] | None:
        return self.verdict.tag

    @property
    def reason_random_tag_is_impossible(self) -> str:
        if self.answer not in ("tag", "json"):
            return f"answer: {self.answer} has no tag"
        if self.json_schema is not None:
            return "its json_schema names fixed keys"
        if self.history == "append":
            return "history: append gives the instructions once, and not in each request"
        # Rendering the instructions shows whether they contain the tag, because a template may replace their text.
        instructions = self.model_copy(update={"prompt": "", "tag": _PROBE_TAG})
        messages = instructions.messages(PromptContext.from_text("agent", ""))
        shows_tag = any(_PROBE_TAG in message.content for message in messages)
        return "" if shows_tag or is_variable_in_template("tag", self.prompt) else "its prompt does not show the tag"

    def with_default_verdict_tag(self, tag: Literal["nonce", "fixed"]) -> Self:
        if self.verdict.tag is not None:
            return self
        tag = "fixed" if self.reason_random_tag_is_impossible else tag
        return self.model_copy(update={"verdict": self.verdict.model_copy(update={"tag": tag})})

    def role_for_request(self, seed: int) -> Self:
        if self.verdict.tag != "nonce":
            return self
        tag = f"{self.tag}-{hash_to_seed(seed, 'verdict tag') % 16**_NONCE_DIGITS:0{_NONCE_DIGITS}x}"
        return self.model_copy(update={"tag": tag, "verdict": self.verdict.model_copy(update={"tag": "fixed"})})

    def parse(self, text: str, legal: tuple[str, ...] | None) -> str | None:
        return self._parse_answer_without_quotations(text, legal, ())

    def parse_completion(self, request: Request, completion: Completion, legal: tuple[str, ...] | None) -> str | None:
        if completion.finish == "length":
            return None
        passages = [without_invisible_characters(passage) for _, passage in _prompt_passages_of_others(request)]
        text = without_invisible_characters(completion.text)
        return self.role_for_request(request.seed)._parse_answer_without_quotations(text, legal, passages)

    def _parse_answer_without_quotations(
        self, text: str, legal: tuple[str, ...] | None, prompt_passages: Sequence[str]
    ) -> str | None:
        """Return the move of an answer to a prompt with the texts `prompt_passages` of other agents."""
        find_answer_marks = answer_mark_finder(self.answer, self.tag)
        block = unwrap_fenced_answer(text) if self.answer == "json" else None
        if find_answer_marks and block is not None:
            # Many models answer with a fenced block alone. Such a block counts, unless the prompt contains it.
            quoted = _contents_of_answer_marks(prompt_passages, find_answer_marks) & _contents_of_answer_marks(
                [block], find_answer_marks
            )
            return None if quoted else super().parse(block, legal)
        if self.answer not in ("code", "whole"):
            text = remove_thoughts_and_quotations(text, find_answer_marks, prompt_passages, self._is_verdict)
        return super().parse(text, legal)

    def _is_verdict(self, mark_text: str) -> bool:
        """Return True if the content of a mark is a verdict."""
        if self.answer != "json":
            return self.answer_text_to_move(mark_text.strip()) is not None
        value = parsing.parse_json_value(mark_text)
        answers = map(self._verdict_in_json, value if isinstance(value, list) else [value])
        return any(answer is not None and self.answer_text_to_move(answer.strip()) is not None for answer in answers)

    @property
    def spoof_penalty(self) -> float:
        return self.verdict.spoof_penalty

    def find_imitated_verdicts(self, request: Request, turns: Sequence[Turn]) -> tuple[TurnId, ...]:
        find_answer_marks = answer_mark_finder(self.answer, self.tag.lower())
        if find_answer_marks is None:
            return ()
        # A solver that knows the form TAG-NONCE may guess a nonce, so it is removed before the search.
        guess = re.compile(rf"(?<={re.escape(self.tag.lower())})-[0-9a-f*?]{{1,16}}")
        spoofs: dict[TurnId, None] = {}
        for source, passage in _prompt_passages_of_others(request):
            for mark in find_answer_marks(guess.sub("", with_plain_letters(passage))):
                # A solver's own answer may have the critic's format; only other text of this form is an imitation.
                action = turns[source[1]].action or ""
                if self._is_verdict(mark.content) and mark.content.strip() != with_plain_letters(action):
                    spoofs[source] = None
        return tuple(spoofs)

    def extract_answer(self, text: str) -> str | None:
        if self.answer != "json":
            return super().extract_answer(text)
        verdicts: list[Mapping[str, Any]] = []
        for value in parsing.all_json_objects(text, self.json_schema):
            if self.tag in value and value not in verdicts:
                verdicts.append(value)
        return self._verdict_in_json(verdicts[0]) if len(verdicts) == 1 else None

    def _verdict_in_json(self, json_value: Any) -> str | None:
        """Return the verdict in a JSON value, or None if the value is no object with a verdict."""
        verdict = json_value.get(self.tag) if isinstance(json_value, Mapping) else None
        if isinstance(verdict, float):
            return f"{verdict:.12f}"
        return str(verdict) if isinstance(verdict, str | int) and not isinstance(verdict, bool) else None

    def format_answer(self, answer: str) -> str:
        if self.answer != "json":
            return super().format_answer(answer)
        number = parsing.parse_json_value(answer)
        return parsing.compact_json({self.tag: number if isinstance(number, int | float) else answer})

    def answer_text_to_move(self, answer: str) -> str | None:
        """Return the score in `answer`, rescaled to [0, 1]. An unreadable answer gives None, never a neutral score."""
        low, high = _SCORE_RANGE_BY_SCALE[self.scale]
        value = parsing.parse_labelled_or_bare_score(answer, low, high)
        if value is None:
            return None
        if self.scale == "ten" or (self.scale == "sage" and value > 1):
            value = (value - 1) / 9
        # Adding 0.0 turns -0.0 into 0.0, so that the text has no sign.
        return f"{value + 0.0:.4f}".rstrip("0").rstrip(".")

    def move_to_answer_text(self, move: str) -> str:
        """Return the score `move` on the role's scale.

        Raises:
            ValueError: if `move` is no score from 0 to 1.
        """
        value = parsing.parse_labelled_or_bare_score(move, 0.0, 1.0)
        if value is None:
            raise ValueError(f"role {self.kind}: {move!r} is no score from 0 to 1")
        return f"{1 + 9 * value:.12g}" if self.scale == "ten" else move


class CriticRole(ScoringRole):
    """Judges other agents' turns with yes or no, or with a score from 0 to 1."""

    kind: str = "critic"
    template_fields: ClassVar[tuple[str, ...]] = (*ScoringRole.template_fields, "verdict")
    instructions: TemplateText = "{% extends 'critic.jinja2' %}"

    @field_validator("verdict", mode="before", json_schema_input_type=VerdictSettings | VerdictForm)
    @classmethod
    def _expand_bare_verdict_form(cls, verdict: Any) -> Any:
        return {"form": verdict} if isinstance(verdict, str) else verdict

    @property
    def _verdict_form(self) -> VerdictForm:
        return self.verdict.form or "yes_no"

    def setting_value_in_templates(self, setting_name: str) -> Hashable:
        return self._verdict_form if setting_name == "verdict" else super().setting_value_in_templates(setting_name)

    def answer_text_to_move(self, answer: str) -> str | None:
        if self._verdict_form == "yes_no":
            return parsing.match_option(answer, ("yes", "no"))
        return super().answer_text_to_move(answer)

    def move_to_answer_text(self, move: str) -> str:
        return move if self._verdict_form == "yes_no" else super().move_to_answer_text(move)


class JudgeRole(ScoringRole):
    """Prefers one of two candidates, or scores one candidate from 0 to 1, by a rubric.

    The candidates are the agents that the judge hears, in the order of their first turns. Judges tend to prefer the
    candidate in a certain position; two judges, one of them with `swap`, cancel this bias.
    """

    kind: str = "judge"
    template_fields: ClassVar[tuple[str, ...]] = (*ScoringRole.template_fields, "mode", "rubric", "ties", "swap")
    instructions: TemplateText = "{% extends 'judge.jinja2' %}"
    prompt: TemplateText = "{% extends 'pair.jinja2' %}"
    mode: Literal["pairwise", "score"] = "pairwise"
    """Task of the judge: compare two candidates (`pairwise`), or score one (`score`)."""
    rubric: str = ""
    """Criteria of a good answer, in words for the judge's instructions (default: no criteria)."""
    ties: bool = False
    """True to allow the verdict `tie` beside `1` and `2`."""
    swap: bool = False
    """True to show the candidates in reverse order. The move still numbers them in the original order."""

    @field_validator("verdict")
    @classmethod
    def _check_no_verdict_form(cls, verdict: VerdictSettings) -> VerdictSettings:
        if verdict.form is not None:
            raise ValueError(f"form: {verdict.form!r} is a setting of critics; use `mode`: pairwise or score")
        return verdict

    def answer_text_to_move(self, answer: str) -> str | None:
        if self.mode == "score":
            return super().answer_text_to_move(answer)
        verdict = parsing.match_option(answer, ("1", "2", "tie") if self.ties else ("1", "2"))
        return self.move_to_answer_text(verdict) if verdict else None

    def move_to_answer_text(self, move: str) -> str:
        if self.mode == "score":
            return super().move_to_answer_text(move)
        return _CHOICE_IN_SWAPPED_ORDER.get(move, move) if self.swap else move


def _prompt_passages_of_others(request: Request) -> list[tuple[TurnId, str]]:
    """Return (turn, text) of each part of the prompt that was made from another agent's turn."""
    passages: list[tuple[TurnId, str]] = []
    for mark in request.marks:
        if mark.kind != "self" and mark.begin < mark.end:
            passages.append((mark.source, request.messages[mark.message].content[mark.begin : mark.end]))
    return passages


def _contents_of_answer_marks(texts: Sequence[str], find_answer_marks: AnswerMarkFinder) -> set[str]:
    """Return the contents of all marks in `texts`, without blanks and in lower case."""
    return {"".join(mark.content.split()).casefold() for text in texts for mark in find_answer_marks(text)}
