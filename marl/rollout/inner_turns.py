"""Inner turns: the recorded turns of the model calls that one run of a program makes, with the edges between them.

The turns are numbered after the program has ended: by the longest path of edges to a turn, then by agent and prompt. So
neither numbers nor seeds depend on the order in which parallel calls arrive.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import NamedTuple, get_args

from marl.core.graph import Trajectory, chats_up_to_each_turn
from marl.core.seeds import hash_to_seed
from marl.core.types import Completion, Deal, EdgeKind, Message, Request, SpanFromEarlierTurn, Turn, TurnId
from marl.host.untrusted_text import replace_surrogates
from marl.protocols import ProgramModelCall
from marl.rollout.casting import ProgramCallPrompt, RoleRequestBuilder
from marl.rollout.prompt_sources import PROVISIONAL, PromptSources, RecentConversations
from marl.rollout.quotations import QuotationFinder
from marl.text.answers import remove_thoughts
from marl.text.tool_calls import split_tool_calls

SINGLE_KINDS: Mapping[EdgeKind, frozenset[EdgeKind]] = {kind: frozenset([kind]) for kind in get_args(EdgeKind)}
"""Edge kind -> set of this kind. Edges share these sets to save memory, as a run has millions of edges."""


class ProgramCallKey(NamedTuple):
    """Identifier of a call within one run of a program. An equal call in another run has an equal key."""

    agent: str
    digest: str
    """Hash of the full conversation and of the declared tools."""
    number: int
    """Number of earlier equal calls of the agent."""


def keyed_inner_turns(turns: Sequence[Turn]) -> Iterator[tuple[ProgramCallKey, Turn]]:
    """Yield (key of the call, turn) for each inner turn among `turns`, which are in playing order.

    Equal calls are numbered separately for each run of a program.
    """
    by_agent: dict[str, list[Turn]] = defaultdict(list)
    for turn in turns:
        if turn.inner:
            by_agent[turn.agent].append(turn)
    chats: dict[TurnId, tuple[Message, ...]] = {}
    for own_turns in by_agent.values():
        chats |= {turn_id: chat[:-1] for turn_id, chat in chats_up_to_each_turn(own_turns)}
    counts: Counter[tuple[str, str]] = Counter()
    conversations = RecentConversations()
    for turn in turns:
        if not turn.inner:
            counts.clear()
            continue
        digest = _call_digest(conversations.find_or_add(chats[turn.id]).digests, turn.request.tools)
        yield ProgramCallKey(turn.agent, digest, counts[turn.agent, digest]), turn
        counts[turn.agent, digest] += 1


class CallRecognitionAndLatency(NamedTuple):
    """Fact about a call that is shown and not recorded, because it differs from run to run."""

    recognised_by: str
    """Field of the request by which the agent was recognised (see `ProgramModelCall`)."""
    milliseconds: float
    """Time from the request to the answer of the engine."""


@dataclass(slots=True)
class _InnerTurn:
    """Model call of a program before it is recorded as a turn: its request, the turns it read and its completion."""

    key: ProgramCallKey
    request: Request
    continued: int | None
    """Id of the call whose tokens the prompt continues, or None for a new prompt."""
    conversation: str
    """Digest of the conversation, `""` for an empty one."""
    recognised_by: str
    opened_s: float
    """Monotonic time of the call."""
    closed_s: float = 0.0
    """Monotonic time of the answer."""
    depth: int = 0
    """Number of edges of the longest path of inner turns that ends at this turn."""
    completion: Completion | None = None
    inherited: Turn | None = None
    """Recorded turn before a fork that this call repeats, or None."""

    @property
    def reads(self) -> dict[TurnId, frozenset[EdgeKind]]:
        """Provisional id of each earlier turn that the prompt contains -> kinds of its edge to this turn."""
        reads: dict[TurnId, frozenset[EdgeKind]] = {}
        if self.continued is not None:
            reads[PROVISIONAL, self.continued] = SINGLE_KINDS["self"]
        for mark in self.request.marks:
            kind, earlier = SINGLE_KINDS[mark.kind], reads.get(mark.source)
            reads[mark.source] = earlier | kind if earlier else kind
        return reads


@dataclass(frozen=True, slots=True)
class RecordedCallAnswers:
    """Recorded answers with which a fork replays a program."""

    inherited: Mapping[ProgramCallKey, Turn] = field(default_factory=dict[ProgramCallKey, Turn])
    """Key of a call -> recorded turn before the fork, which the replayed program must repeat."""
    prescribed: Mapping[ProgramCallKey, Completion] = field(default_factory=dict[ProgramCallKey, Completion])
    """Key of a call -> answer to use if the program makes an equal call after the fork."""
    by_agent: Mapping[str, Completion] = field(default_factory=dict[str, Completion])
    """Agent -> answer to all other calls to this agent."""
    repeated: Mapping[ProgramCallKey, Turn] | None = None
    """Key -> turn of each call in the recorded run of the program, or None if the program did not run before. Until an
    answer differs from the recorded one, the program must repeat these calls."""


class _FinalTurnIds(dict[TurnId, TurnId]):
    """Provisional id of a call's turn -> final id."""

    def __init__(self) -> None:
        self._spans: dict[SpanFromEarlierTurn, SpanFromEarlierTurn] = {}
        """Span -> span with its final source. The turns of a long dialogue share most of their spans."""

    def span_with_final_source(self, span: SpanFromEarlierTurn) -> SpanFromEarlierTurn | None:
        """Return `span` with the final id of its source, or None if the program never received the source's answer."""
        final_span = self._spans.get(span)
        if final_span is None and (span.source[0] != PROVISIONAL or span.source in self):
            final_span = self._spans[span] = span._replace(source=self.get(span.source, span.source))
        return final_span


class InnerTurns:
    """Model calls of one run of a program, which become inner turns when the program ends."""

    def __init__(
        self,
        casting: RoleRequestBuilder,
        deal: Deal,
        examples: Mapping[str, tuple[str, ...]],
        read_turns: Iterable[Turn] = (),
        recorded: RecordedCallAnswers | None = None,
    ) -> None:
        """Start without calls.

        Args:
            casting: roles of the callers.
            deal: deal of the episode.
            examples: agent that the program calls -> example moves.
            read_turns: turns of the game that the program's agent has read, and that its calls may quote.
            recorded: answers with which a fork replays the program, or None if engines answer everything.
        """
        self._casting, self._deal, self._examples = casting, deal, examples
        self._recorded = recorded or RecordedCallAnswers()
        self.notes: dict[TurnId, CallRecognitionAndLatency] = {}
        """Id of each turn of `finish_turns` -> fact about its call."""
        self._read_turns = list(read_turns)
        self.discard_all_calls()

    @property
    def call_count(self) -> int:
        """Number of calls of the present attempt."""
        return len(self._turns)

    def use_recorded_calls(self, recorded: RecordedCallAnswers) -> None:
        """Answer calls from `recorded` from now on."""
        self._recorded = recorded

    def discard_all_calls(self) -> None:
        """Delete all calls, because the program starts again. Equal calls will get the same seeds as before."""
        self._turns: dict[int, _InnerTurn] = {}
        """Id of a call -> its turn."""
        self._counts: Counter[tuple[str, str]] = Counter()
        self._conversations = RecentConversations()
        self._sources = PromptSources(self._read_turns)
        self._answers_differ = False
        """True after an answer that differs from the recorded one, or was not recorded."""
        self._has_diverged = False
        """True after a call that the recorded run did not make, though all answers were equal until then."""

    def discard_ineffective_calls(self, call_ids: Iterable[int]) -> None:
        """Delete the calls with these ids, because the program did not receive the answers."""
        for call in call_ids:
            self._turns.pop(call, None)
            self._sources.discard_call(call)

    def request_or_recorded_answer_of_model_call(self, call: ProgramModelCall) -> Request | Completion:
        """Record `call` and return its request, or record and return its answer if a fork prescribes the answer.

        Raises:
            RefusedModelCallError: if the call asks for something that the caller's role does not offer.
        """
        conversation = self._conversations.find_or_add(call.messages)
        prefixes = conversation.digests
        digest = _call_digest(prefixes, call.tools)
        key = ProgramCallKey(call.agent, digest, self._counts[call.agent, digest])
        role_name = self._deal.seats[call.agent]
        role = self._casting.roles[role_name]
        # The prompt continues the tokens of the agent's answered call with the longest common conversation.
        begin, continues, continued = 0, (), None
        if role.history == "append":
            for end in range(len(prefixes) - 1, 0, -1):
                continued = self._sources.find_own_answered_call(call.agent, prefixes[end - 1])
                if continued is not None and (earlier := self._turns[continued].completion):
                    begin, continues = end, (*earlier.prompt_ids, *earlier.token_ids)
                    break
        marks, depth = self._sources.find_spans_and_depth(call, conversation, begin)
        seed = hash_to_seed(self._casting.seed, self._deal.purpose, self._deal.episode, self._deal.branch, *key)
        prompt = ProgramCallPrompt(
            tuple(call.messages[begin:]), continues, marks, call.tools, call.sampling, call.answer_schema
        )
        request = self._casting.build_call_request(role_name, prompt, self._examples[call.agent], seed)
        # A refused call is not recorded, so it does not count either.
        self._counts[call.agent, digest] += 1
        policy = self._deal.policies.get(role_name, request.policy)
        if (policy, self._deal.purpose) != (request.policy, request.purpose):
            request = replace(request, policy=policy, purpose=self._deal.purpose)
        continued = continued if continues else None
        if continued is not None:
            depth = max(depth, self._turns[continued].depth)
        prefix = prefixes[-1] if prefixes else ""
        turn = _InnerTurn(key, request, continued, prefix, call.recognised_by, time.monotonic(), depth=depth + 1)
        self._sources.add_call(call.id, call.agent, turn.depth)
        self._turns[call.id] = turn
        if self._recorded.repeated is not None and not self._answers_differ:
            # The program has read the same as before, so a new call must come from a clock or a random number.
            self._has_diverged |= key not in self._recorded.repeated
        turn.inherited = self._recorded.inherited.get(key)
        prescribed = self._recorded.prescribed.get(key) or self._recorded.by_agent.get(call.agent)
        if turn.inherited:
            prescribed = turn.inherited.completion
        elif prescribed:
            prescribed = replace(prescribed, mark_tokens=())
        if prescribed is None:
            return request
        self.record_call_answer(call.id, prescribed)
        return prescribed

    def record_call_answer(self, call_id: int, completion: Completion) -> None:
        """Record `completion` as the answer to call `call_id`."""
        turn = self._turns.get(call_id)
        if turn is None:
            return
        if not completion.text.isascii():
            completion = replace(completion, text=replace_surrogates(completion.text))
        turn.completion, turn.closed_s = completion, time.monotonic()
        recorded = (self._recorded.repeated or {}).get(turn.key)
        self._answers_differ |= recorded is None or recorded.completion.text != completion.text
        self._sources.add_answer(call_id, completion.text, turn.conversation, (turn.depth, *turn.key))

    def finish_turns(
        self, trajectory: Trajectory, turn_counts: Mapping[str, int], problem_key: str
    ) -> list[InnerTurnWithEdges] | None:
        """Return the inner turns in their final order, with their edges, or None if a replay has diverged.

        Args:
            trajectory: trajectory to which the turns will be appended.
            turn_counts: agent -> number of its turns in `trajectory`.
            problem_key: key of the problem that the program worked on.
        """
        inherited = {turn.inherited.id for turn in self._turns.values() if turn.inherited}
        if self._has_diverged or len(inherited) < len(self._recorded.inherited):
            return None
        seats = list(self._deal.seats)

        def sort_key_of_final_order(call: int) -> tuple[bool, int, int, int, str, int]:
            turn = self._turns[call]
            position = turn.inherited.id[1] if turn.inherited else 0
            return turn.inherited is None, position, turn.depth, seats.index(turn.key.agent), *turn.key[1:]

        answered = [call for call, turn in self._turns.items() if turn.completion is not None]
        ids = _FinalTurnIds()
        own_counts = Counter(dict(turn_counts))
        result: list[InnerTurnWithEdges] = []
        for call in sorted(answered, key=sort_key_of_final_order):
            turn, index = self._turns[call], len(trajectory.turns) + len(result)
            ids[PROVISIONAL, call] = turn.inherited.id if turn.inherited else (trajectory.id, index)
            milliseconds = 1e3 * (turn.closed_s - turn.opened_s)
            self.notes[ids[PROVISIONAL, call]] = CallRecognitionAndLatency(turn.recognised_by, milliseconds)
            edges: dict[TurnId, frozenset[EdgeKind]] = {}
            for source, kinds in turn.reads.items():
                # Sources without an id are calls whose answers the program never received, so their edges are dropped.
                if source[0] != PROVISIONAL or source in ids:
                    edges[ids.get(source, source)] = kinds
            edges = dict(sorted(edges.items(), key=lambda edge: edge[0][1]))
            nth = own_counts[turn.key.agent]
            result.append(
                (turn.inherited or self._to_recorded_turn(turn, ids[PROVISIONAL, call], nth, ids, problem_key), edges)
            )
            own_counts[turn.key.agent] += 1
        return result

    def _to_recorded_turn(
        self, turn: _InnerTurn, turn_id: TurnId, turn_number: int, final_ids: _FinalTurnIds, problem_key: str
    ) -> Turn:
        """Return the turn to record for the answered call `turn`."""
        completion, role_name = turn.completion, self._deal.seats[turn.key.agent]
        assert completion is not None
        action = None
        if completion.finish not in ("overflow", "aborted"):
            action = self._casting.roles[role_name].parse_completion(turn.request, completion, None)
        request = turn.request
        if request.marks:
            marks = [final_ids.span_with_final_source(mark) for mark in request.marks]
            request = replace(request, marks=tuple([mark for mark in marks if mark]))
            tokens = [span for span, mark in zip(completion.mark_tokens, marks, strict=False) if mark]
            completion = replace(completion, mark_tokens=tuple(tokens))
        return Turn(
            id=turn_id,
            agent=turn.key.agent,
            nth=turn_number,
            attempt=0,
            role=role_name,
            request=request,
            completion=completion,
            action=action if action is None else replace_surrogates(action),
            problem=problem_key,
            inner=True,
        )

    def quoted_turn_edges(self, answer: str, turns: Sequence[Turn]) -> dict[TurnId, frozenset[EdgeKind]]:
        """Return (id -> kinds of its edge) of those inner turns in `turns` that the program's `answer` quotes."""
        finder: QuotationFinder[TurnId] = QuotationFinder()
        for turn in turns:
            finder.add_answer(turn.id, split_tool_calls(remove_thoughts(turn.completion.text))[0])
            if turn.action:
                finder.add_answer(turn.id, turn.action)
        sources = sorted({quotation.source for quotation in finder.find_quotations([(0, answer)])})
        return dict.fromkeys(sources, frozenset({"heard"}))


InnerTurnWithEdges = tuple[Turn, Mapping[TurnId, frozenset[EdgeKind]]]
"""(inner turn, id of an earlier turn -> kinds of its edge to the inner turn)."""


def _call_digest(prefix_digests: Sequence[str], tool_schemas: Sequence[str]) -> str:
    text = "\0".join((prefix_digests[-1] if prefix_digests else "", *tool_schemas))
    return blake2b(text.encode(), digest_size=16).hexdigest()
