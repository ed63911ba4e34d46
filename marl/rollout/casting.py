"""Builder of requests: prompts and sampling settings of a scenario's roles."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, overload

from marl.core.config import Sampling, Segments
from marl.core.types import EdgeKind, Message, Purpose, Request, SpanFromEarlierTurn, Turn, TurnId
from marl.host.untrusted_text import replace_surrogates
from marl.protocols import JudgingRoleConfig, PromptContext, RoleConfig
from marl.protocols.roles import PromptWithOrigins, RoleTemplateError
from marl.text.answers import remove_thoughts
from marl.text.origins import (
    NO_ORIGINS,
    Origins,
    Span,
    TextOrigin,
    add_origins,
    merge_adjacent_origin_spans,
    swap_recorded_origins,
    without_origins,
)


class RefusedModelCallError(ValueError):
    """A program's model call asks for something that the caller's role does not offer. The message names the field."""


class ProgramCallPrompt(NamedTuple):
    """Prompt of a program's model call, with the sampling settings of the call."""

    messages: tuple[Message, ...]
    continues: tuple[int, ...]
    """Token ids of the prompt before the tokens of `messages`, or () for a new prompt."""
    marks: tuple[SpanFromEarlierTurn, ...]
    """Spans of `messages` that come from earlier turns."""
    tools: tuple[str, ...]
    sampling: Sampling
    answer_schema: str | None = None
    """JSON schema of the answer; "" for any JSON object, None for a text."""


_MAX_CACHED_PROMPTS = 4096
"""Maximum number of prompts in a builder's cache."""


class _RequestParts(NamedTuple):
    """Parts of a request that the next request of a role in the same situation shares."""

    prompt: PromptWithOrigins
    policy: str
    sampling: Sampling
    options: Mapping[str, str] | None
    segments: Segments | None
    tools: tuple[str, ...]
    answer_schema: str
    max_prompt_tokens: int | None


class RoleRequestBuilder:
    """Builder of requests for a scenario's roles, with a seed for all sampling."""

    def __init__(self, roles: Mapping[str, RoleConfig], seed: int, instructions: dict[str, str] | None = None) -> None:
        """Create a builder.

        Args:
            roles: name -> settings of a role.
            seed: seed of all sampling.
            instructions: role -> instructions that a learner wrote, instead of the role's own. Builders that share
                this dict share later changes (default: none).
        """
        self.roles, self.seed = roles, seed
        self.instructions = {} if instructions is None else instructions
        self._rewritten: dict[tuple[str, str], RoleConfig] = {}
        """Cache: (role, instructions) -> role with these instructions."""
        self._reading_roles: dict[tuple[str, str | None], bool] = {}
        """Cache: (role, instructions or None for its own) -> True if its prompts may contain earlier turns."""
        self._option_texts: dict[tuple[str, tuple[str, ...]], dict[str, str]] = {}
        """Cache: (role, legal moves) -> text of each legal move."""
        self._parts: dict[tuple[object, ...], _RequestParts] = {}
        """Cache: role, and all that its prompt depends on -> parts of its requests."""
        self._tool_roles = frozenset(name for name, role in roles.items() if role.answers_calls)
        """Roles whose turns are results of tool calls."""
        self.judging_roles = {name: role for name, role in roles.items() if isinstance(role, JudgingRoleConfig)}
        """Name -> role, for the roles that answer with a verdict on other agents' turns."""

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle only the constructor's arguments, without the caches."""
        return RoleRequestBuilder, (self.roles, self.seed, self.instructions)

    def with_roles(self, roles: Mapping[str, RoleConfig], seed: int | None = None) -> RoleRequestBuilder:
        """Return a builder of other roles, with the same learned instructions, and the same seed unless one is given.

        Later changes of the instructions reach both builders.
        """
        return RoleRequestBuilder(roles, self.seed if seed is None else seed, self.instructions)

    def with_instructions(self, instructions: Mapping[str, str]) -> RoleRequestBuilder:
        """Return a builder with `instructions` (role -> text) for some roles. Later changes do not reach it."""
        return RoleRequestBuilder(self.roles, self.seed, {**self.instructions, **instructions})

    def current_role(self, role_name: str) -> RoleConfig:
        """Return a role with the instructions with which it plays now."""
        role = self.roles[role_name]
        text = self.instructions.get(role_name)
        if text is None or text == role.learnable_instructions:
            return role
        if (role_name, text) not in self._rewritten:
            try:
                self._rewritten[role_name, text] = role.with_instructions(text)
            except RoleTemplateError as error:
                raise error.of_role(role_name) from error
        return self._rewritten[role_name, text]

    def prompts_have_earlier_turns(self, role_name: str) -> bool:
        """Return True if the role's prompts may contain earlier turns, whose texts then need marks of their origin."""
        key = role_name, self.instructions.get(role_name)
        if key not in self._reading_roles:
            self._reading_roles[key] = not self.current_role(role_name).ignores_earlier_turns
        return self._reading_roles[key]

    def with_greedy_decoding(self) -> RoleRequestBuilder:
        """Return a builder for the same roles at temperature 0."""
        roles: dict[str, RoleConfig] = {}
        for name, role in self.roles.items():
            sampling = role.sampling.model_copy(update={"temperature": 0.0})
            roles[name] = role.model_copy(update={"sampling": sampling})
        return self.with_roles(roles)

    def _without_hidden_thoughts(self, turn: Turn) -> Turn:
        """Return `turn` as other agents read it, without its thoughts if its role hides thoughts."""
        text = turn.completion.text
        if (public := remove_thoughts(text)) == text or self.roles[turn.role].thinking == "show":
            return turn
        return replace(turn, completion=replace(turn.completion, text=public))

    def mark_with_origins(
        self,
        turns: Sequence[Turn],
        cache: dict[TurnId, Turn],
        *,
        reads_own_turns: bool = False,
        hides_thoughts: bool = False,
    ) -> Sequence[Turn]:
        """Return `turns` with their texts and moves marked with the turn as origin.

        `cache` holds turns marked before. `reads_own_turns` is True if the reading agent took the turns itself.
        `hides_thoughts` is True to leave thoughts out, if their roles hide them.
        """
        kinds: tuple[EdgeKind, EdgeKind] = ("self", "self") if reads_own_turns else ("heard", "tool")
        read_turn = self._without_hidden_thoughts if hides_thoughts else None
        return _TurnsWithOrigins(turns, cache, kinds, self._tool_roles, read_turn) if turns else ()

    def build_call_request(
        self, role_name: str, prompt: ProgramCallPrompt, example_moves: Sequence[str], seed: int
    ) -> Request:
        """Return the request of role `role_name` for a program's model call. `seed` seeds the sampled tokens.

        Trained or greedy roles use their own sampling settings, with the smaller `max_tokens` and the stop texts of
        role and call. Other roles use the call's sampling settings, up to a `max_tokens` that the role sets.
        `structured` is always the role's.

        Raises:
            RefusedModelCallError: if the call asks for JSON, and the role does not read JSON.
        """
        role, asked = self.roles[role_name], prompt.sampling
        if prompt.answer_schema is not None and (reason := role.reason_json_is_refused(prompt.answer_schema)):
            raise RefusedModelCallError(f"response_format: {role_name!r} cannot be asked for this JSON: {reason}")
        if role.trainable or role.sampling.temperature == 0:
            changes = {
                "max_tokens": min(role.sampling.max_tokens, asked.max_tokens),
                "stop": tuple(dict.fromkeys((*role.sampling.stop, *asked.stop))),
            }
            sampling = role.sampling.model_copy(update=changes)
        else:
            sampling = asked
            if "max_tokens" in role.sampling.model_fields_set:
                maximum = min(role.sampling.max_tokens, asked.max_tokens)
                sampling = asked.model_copy(update={"max_tokens": maximum})
            if role.sampling.structured:
                sampling = sampling.model_copy(update={"structured": role.sampling.structured})
        return Request(
            policy=role.policy,
            messages=prompt.messages,
            sampling=sampling,
            seed=seed,
            continues=prompt.continues,
            examples=tuple([replace_surrogates(role.phrase(move)) for move in example_moves]),
            segments=role.segments,
            tools=prompt.tools,
            answer_schema=role.answer_schema or prompt.answer_schema or "",
            marks=prompt.marks,
        )

    def build_request(
        self,
        role_name: str,
        context: PromptContext,
        seed: int,
        policy: str | None = None,
        purpose: Purpose = "train",
    ) -> Request:
        """Return the request of role `role_name` with the prompt for `context`. `seed` seeds the sampled tokens.

        `policy` answers it, or the role's own policy if `policy` is None. Lone surrogates in outside text are replaced,
        because neither files nor tokenizers accept them.
        """
        info, observation, state = context.info, context.observation["text"], context.info["state"]
        continues, segment_offsets = (), ()
        # Small games repeat the same few situations, so most turns find the parts of their request in the cache.
        parts, key = None, None
        if type(observation) is str:
            instructions, rules = self.instructions.get(role_name), info.get("rules")
            key = (role_name, instructions, context.agent, observation, info["legal"], info["attempt"], rules)
            parts = self._parts.get(key)
        if parts is None:
            role = self.current_role(role_name).role_for_request(seed)
            parts = self._make_request_parts(role_name, role, context)
            continues, segment_offsets = role.continued_ids(context), role.offsets_of_read_segments(context)
            if key and not self.prompts_have_earlier_turns(role_name):
                if len(self._parts) >= _MAX_CACHED_PROMPTS:
                    self._parts.clear()
                self._parts[key] = parts
        moves = info.get("examples")
        # Every turn makes a request. With names, Python would take twice as long to pass the arguments.
        return Request(
            parts.policy if policy is None else policy,
            parts.prompt.texts,
            parts.sampling,
            seed,
            parts.options,
            replace_surrogates(without_origins(state)),
            continues,
            None,  # forced
            (),  # prefix
            parts.segments,
            segment_offsets,
            self._example_answers(role_name, seed, moves) if moves else (),
            parts.tools,
            parts.answer_schema,
            _marks_of_prompt(parts.prompt, context),
            parts.max_prompt_tokens,
            purpose,
        )

    def _example_answers(self, role_name: str, seed: int, moves: Sequence[str]) -> tuple[str, ...]:
        """Return the answers that stand for `moves` in the request of role `role_name` with the seed `seed`."""
        role = self.current_role(role_name).role_for_request(seed)
        return tuple([replace_surrogates(role.phrase(move)) for move in moves])

    def _make_request_parts(self, role_name: str, role: RoleConfig, context: PromptContext) -> _RequestParts:
        """Return the parts of the requests of `role`, which is role `role_name` or was made from it for one request."""
        shared, legal = self.current_role(role_name), context.info["legal"]
        # The thread's record of origins is set aside, so that this prompt's origins do not mix with the caller's.
        callers_record = swap_recorded_origins(NO_ORIGINS)
        origins: Origins | None = NO_ORIGINS
        try:
            messages = role.messages(context)
        except RoleTemplateError as error:
            raise error.of_role(role_name) from error
        finally:
            origins = swap_recorded_origins(callers_record)
        # If the role's code compares or formats a text, its span is lost, and its origins mark all messages.
        if origins:
            messages = [message._replace(content=add_origins(message.content, origins)) for message in messages]
        prompt = messages if isinstance(messages, PromptWithOrigins) else PromptWithOrigins.from_messages(messages)
        options = None
        if legal is not None:
            # A role made for one request has its own answer tag, so only texts of the shared role are cached.
            is_cached = role is shared
            options = self._option_texts.get((role_name, legal)) if is_cached else None
            if options is None:
                options = {move: role.phrase(move) for move in legal}
                if is_cached:
                    self._option_texts[role_name, legal] = options
        tools = tuple([tool.to_function_schema() for tool in role.listed_tools]) if role.tools else ()
        schema = role.answer_schema if role.sampling.structured == "json" else ""
        limit = role.context.limit if role.context else None
        return _RequestParts(prompt, role.policy, role.sampling, options, role.segments, tools, schema, limit)


class _TurnsWithOrigins(Sequence[Turn]):
    """Sequence of turns whose texts are marked with their origins only on access, as most prompts use few turns."""

    __slots__ = ("_cache", "_kinds", "_read_turn", "_tool_roles", "turns")

    def __init__(
        self,
        turns: Sequence[Turn],
        cache: dict[TurnId, Turn],
        kinds: tuple[EdgeKind, EdgeKind],
        tool_roles: Collection[str],
        read_turn: Callable[[Turn], Turn] | None = None,
    ) -> None:
        """Mark `turns` on access, and keep them in `cache`.

        Args:
            kinds: edge kind of an ordinary turn, and of a turn of one of `tool_roles`, with a tool's result.
            read_turn: function that returns a turn as it is read, or None to read turns as they are.
        """
        self.turns, self._cache, self._kinds, self._tool_roles = turns, cache, kinds, tool_roles
        self._read_turn = read_turn

    def __len__(self) -> int:
        return len(self.turns)

    def __iter__(self) -> Iterator[Turn]:
        return map(self._turn_with_origins, self.turns)

    @overload
    def __getitem__(self, index: int) -> Turn: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Turn]: ...
    def __getitem__(self, index: int | slice) -> Turn | Sequence[Turn]:
        if isinstance(index, slice):
            return _TurnsWithOrigins(self.turns[index], self._cache, self._kinds, self._tool_roles, self._read_turn)
        return self._turn_with_origins(self.turns[index])

    def _turn_with_origins(self, turn: Turn) -> Turn:
        marked = self._cache.get(turn.id)
        if marked is None:
            if self._read_turn:
                turn = self._read_turn(turn)
            origins = frozenset([TextOrigin(turn.id, self._kinds[turn.role in self._tool_roles])])
            completion = replace(turn.completion, text=add_origins(turn.completion.text, origins))
            action = turn.action and add_origins(turn.action, origins)
            marked = self._cache[turn.id] = replace(turn, completion=completion, action=action)
        return marked


def _without_origin_marks(turns: Sequence[Turn]) -> Sequence[Turn]:
    return turns.turns if isinstance(turns, _TurnsWithOrigins) else turns


def _marks_of_prompt(prompt: PromptWithOrigins, context: PromptContext) -> tuple[SpanFromEarlierTurn, ...]:
    """Return the spans of `prompt` that were made from earlier turns of `context`, sorted by message and offset."""
    if not (context.played_turns or context.new_turns or context.own_turns or context.read_turns):
        return ()
    marks: list[SpanFromEarlierTurn] = []
    for index, spans in enumerate(prompt.spans):
        if len(spans) == 1 and spans[0][2].source is None:
            # The observation of a game that marks no sources is one span with all sources, so nothing is to be merged.
            begin, end, (_, kind) = spans[0]
            for source, source_kind in sorted(_possible_sources_of_text(None, kind, context)):
                marks.append(SpanFromEarlierTurn(source, source_kind, index, begin, end))
            continue
        spans_of_turns: list[Span] = []
        for span in spans:
            begin, end, (source, kind) = span
            if isinstance(source, tuple):
                spans_of_turns.append(span)
            else:
                for source_and_kind in _possible_sources_of_text(source, kind, context):
                    spans_of_turns.append((begin, end, TextOrigin(*source_and_kind)))
        for begin, end, (source, kind) in merge_adjacent_origin_spans(spans_of_turns):
            # Here every source is a turn id, because `_possible_sources_of_text` has replaced all others.
            marks.append(SpanFromEarlierTurn(source, kind, index, begin, end))  # type: ignore[arg-type]
    return tuple(marks)


def _possible_sources_of_text(
    step: int | None, kind: EdgeKind, context: PromptContext
) -> list[tuple[TurnId, EdgeKind]]:
    """Return the turns from which a text in an observation may come, each as turn id and edge kind.

    `step` is the number of the game's step whose turn made the text, which is read with the edge kind `kind`. If it is
    None, the text's origin is unknown, so that every turn counts that the agent has newly heard, and its own last one.
    """
    if step is not None:
        turn = context.played_turns[step]
        return [(turn.id, "self" if kind == "told" and turn.agent == context.agent else kind)]
    sources: list[tuple[TurnId, EdgeKind]] = []
    for turn in _without_origin_marks(context.new_turns):
        sources.append((turn.id, "told"))
    if context.own_turns and context.agent in context.info["hears"]:
        sources.append((_without_origin_marks(context.own_turns)[-1].id, "self"))
    return sources
