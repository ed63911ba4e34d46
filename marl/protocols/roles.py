"""Protocol of roles, which make prompts from observations and parse moves from completions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from marl.core.config import ContextLimit, PluginConfig, Sampling, Segments
from marl.core.fast_records import fast_record
from marl.core.types import Completion, Info, Message, Observation, Request, Turn, TurnId
from marl.host.untrusted_text import replace_surrogates
from marl.protocols.tasks import Tool
from marl.text.origins import Span, origin_spans_of_text, without_origins


class RoleTemplateError(ValueError):
    """A template of a role cannot be filled in. The message names the role's setting, the agent and the reason."""

    def of_role(self, role_name: str) -> RoleTemplateError:
        """Return this error with the path of the setting in a scenario, such as `roles.solver.prompt`."""
        return RoleTemplateError(f"roles.{role_name}.{self}")


@fast_record
@dataclass(frozen=True, slots=True)
class PromptContext:
    """Observation, facts and turns from which a role builds the prompt of an agent.

    During play, texts and moves of turns are marked with their turn (`marl.text.origins.TextWithOrigins`). Templates,
    `+` and `marl.text.origins.join_texts_with_origins` keep the marks, so the prompt knows its source turns. If a role
    uses a marked text in another way, such as a comparison or an f-string, its entire prompt counts as made from the
    text.
    """

    agent: str
    observation: Observation
    info: Info
    own_turns: Sequence[Turn] = ()
    """Earlier turns of the agent."""
    new_turns: Sequence[Turn] = ()
    """Readable turns of other agents since the agent's last turn."""
    read_turns: Sequence[Turn] = ()
    """Readable turns of other agents before the agent's last turn."""
    turns: Sequence[Turn] = ()
    """All turns of the episode."""
    played_turns: Sequence[Turn] = ()
    """Turns that the game's steps played, in order. A marked observation refers to them by the index of the step."""

    @classmethod
    def from_text(cls, agent: str, text: str) -> PromptContext:
        """Return the context of an agent that has observed only `text` and may answer with any text."""
        return cls(agent, {"text": text}, {"legal": None, "hears": (), "together": (), "state": text, "attempt": 0})


class PromptWithOrigins(tuple[Message, ...]):
    """Messages of a prompt, split once into texts and marks of origin, because roles return a prompt repeatedly."""

    texts: tuple[Message, ...]
    """Messages without marks of origin, and without lone surrogates, which can be neither stored nor tokenised."""
    spans: tuple[tuple[Span, ...], ...]
    """Spans of each message that were made from earlier turns."""

    @classmethod
    def from_messages(cls, messages: Iterable[Message]) -> PromptWithOrigins:
        """Return a prompt with these messages, whose contents may have marks."""
        prompt = cls(messages)
        texts: list[Message] = []
        spans: list[tuple[Span, ...]] = []
        for message in prompt:
            texts.append(message._replace(content=replace_surrogates(without_origins(message.content))))
            spans.append(origin_spans_of_text(message.content))
        prompt.texts, prompt.spans = tuple(texts), tuple(spans)
        return prompt


class RoleConfig(PluginConfig):
    """Base class of a role: its prompts, sampling and parser of moves. The settings are the (stateless) role."""

    example = "policy: actor"
    group: ClassVar[str] = "roles"
    answers_calls: ClassVar[bool] = False
    """True if the role's turns are results of tool calls."""
    answers_programs: ClassVar[bool] = False
    """True if programs make the role's prompts, through their model calls."""
    hears_thoughts: ClassVar[bool] = False
    """True if the role reads other agents' completions with their hidden thoughts, as a verifier must."""
    policy: str
    """Name of the policy that generates the role's completions."""
    trainable: bool = True
    """Train on the role's turns, if its policy has a learner."""
    sampling: Sampling = Sampling()
    """Sampling settings of the role's completions."""
    segments: Segments | None = None
    """Division of completions into segments, which credit rules with `level: segment` need. Default: none."""
    thinking: Literal["hide", "show"] = "hide"
    """Visibility of thoughts (`<think>`) in completions. `hide`: prompts of other agents and later prompts of the agent
    omit them. `show`: they stay in prompts. The thoughts are trained on in both cases."""
    history: Literal["fresh", "append"] = "fresh"
    """Construction of prompts. `fresh`: each prompt is built without the tokens of earlier turns. `append`: a prompt
    continues the tokens of the agent's last turn."""
    context: ContextLimit | None = None
    """Maximum length of a prompt, and what replaces a longer one. Default: the model's context, and an empty answer."""
    tools: tuple[Tool, ...] | Literal["auto"] = ()
    """Tools that the role may call, in a game with a seat that answers calls. `auto`: all tools of the engine at this
    seat."""

    @property
    def listed_tools(self) -> tuple[Tool, ...]:
        """Tools that the role may call. Before a scenario has replaced `tools: auto`, the result is empty."""
        return () if self.tools == "auto" else self.tools

    @property
    def answer_schema(self) -> str:
        """Return the JSON schema of a valid answer as text; "" if any object is valid, or answers are no JSON."""
        return ""

    def reason_json_is_refused(self, schema: str) -> str:
        """Return the reason why a program cannot ask this role for JSON, or "" if it can.

        `schema` is the JSON schema that the program sent for the answer, or "" for any JSON object.
        """
        return f"a role of kind {self.kind!r} answers no programs"

    @property
    def learnable_instructions(self) -> str | None:
        """Return the instructions that a learner may rewrite, or None if the role's prompts have none."""
        return None

    def with_instructions(self, instructions: str) -> Self:
        """Return the role with other instructions.

        Raises:
            ValueError: if the role has no instructions, or these are no template that can be filled in.
        """
        raise ValueError(f"a role of kind {self.kind!r} has no instructions")

    def with_default_prompts(self, understands_instructions: bool) -> Self:
        """Return the role with default texts for omitted prompts.

        `understands_instructions` is True if the role's model understands instructions, and False for a tiny model.
        """
        return self

    @property
    def ignores_earlier_turns(self) -> bool:
        """True if prompts depend only on the agent, the text of its observation, and `legal`, `attempt` and `rules` of
        its info, so that no turn is needed to build one, and that equal ones are built once."""
        return False

    def role_for_request(self, seed: int) -> Self:
        """Return the role for one request with the seed `seed`, for example with an answer tag of its own."""
        return self

    @abstractmethod
    def messages(self, context: PromptContext) -> tuple[Message, ...]:
        """Return the messages of the prompt that the role makes from `context`."""

    def continued_ids(self, context: PromptContext) -> tuple[int, ...]:
        """Return the token ids of the turn (prompt and completion) that the prompt continues; () for a new prompt."""
        return ()

    def offsets_of_read_segments(self, context: PromptContext) -> tuple[int, ...]:
        """Return the offset in the prompt's last message after each segment of the completion that it quotes.

        The default is (): the last message is no completion of another agent.
        """
        return ()

    @abstractmethod
    def parse(self, text: str, legal: tuple[str, ...] | None) -> str | None:
        """Return the move in `text`, or None if `text` names no move in `legal`. If `legal` is None, any text is a
        move."""

    def parse_completion(self, request: Request, completion: Completion, legal: tuple[str, ...] | None) -> str | None:
        """Return the move in `completion`, or None. Only a role that depends on more than the text overrides this."""
        return self.parse(completion.text, legal)

    @abstractmethod
    def phrase(self, move: str) -> str:
        """Return the canonical text for `move`, with `parse(phrase(move), legal) == move`."""


class JudgingRoleConfig(RoleConfig):
    """Base class of roles that answer with a verdict on other agents' turns."""

    @property
    @abstractmethod
    def verdict_tag(self) -> Literal["nonce", "fixed"] | None:
        """Return the choice of the verdict's tag: `nonce` (new in each request), `fixed`, or None for the default."""

    @property
    @abstractmethod
    def reason_random_tag_is_impossible(self) -> str:
        """Return the reason why the role cannot have a tag of its own in each request, or "" if it can."""

    @abstractmethod
    def with_default_verdict_tag(self, tag: Literal["nonce", "fixed"]) -> Self:
        """Return the role with `tag` for an omitted verdict tag, or with a fixed tag if a nonce is impossible."""

    @property
    @abstractmethod
    def spoof_penalty(self) -> float:
        """Return the cost of a turn that imitates this role's verdicts, for the agent that took the turn."""

    @abstractmethod
    def find_imitated_verdicts(self, request: Request, turns: Sequence[Turn]) -> tuple[TurnId, ...]:
        """Return the turns of other agents in the prompt of `request` that imitate a verdict of this role.

        `turns` are the turns of the episode so far.
        """
