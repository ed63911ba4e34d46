"""Plain data types of a training step: observations, requests, turns, rewards, credit and samples.

Recorded data is frozen, because trajectories are shared between engines, credit rules, learners and files.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict, TypeVar

from pydantic import FailFast

from marl.core.config import Sampling, Segments
from marl.core.fast_records import fast_record
from marl.core.messages import JudgedText as JudgedText
from marl.core.messages import Message as Message
from marl.core.messages import MessageRole as MessageRole
from marl.core.messages import ToolCall as ToolCall
from marl.core.usage import RemoteUsage

if TYPE_CHECKING:
    from marl.core.graph import Trajectory

_Value = TypeVar("_Value")
FailFastTuple = Annotated[tuple[_Value, ...], FailFast()]
"""Tuple in recorded data, with possibly millions of items. Validation stops at the first invalid item."""
TurnId = tuple[str, int]
"""(episode id, index of the turn in the episode); unique in a run."""
TOOL_CALL_PREFIX = "call "
"""Prefix of a move that is a tool call. The JSON of the call follows."""
Ticket = int
"""Identifier of one submitted request. Engines serve lower tickets first."""
Metrics = dict[str, float]
"""Name of a metric -> its value in a step."""
MetricsByPolicy = dict[str, Metrics]
"""Name of a policy -> its metrics of a step."""
Finish = Literal["stop", "length", "overflow", "aborted"]
"""Reason for which a completion ended. `length`: cut off at `max_tokens`. `overflow`: the prompt is too long."""
EpisodeEnd = Literal["no", "terminated", "truncated"]
"""End of an episode: still in progress, decided by the game's rules, or cut off."""
EdgeKind = Literal["heard", "told", "posed", "gated", "tool", "self"]
"""Kind of an edge of the trajectory graph: how an earlier turn (source) influenced a later turn (reader).

`heard`: the prompt quotes the source. `told`: the game's observation depends on the source. `posed`: the source posed
the problem that the reader works on. `tool`: the source is the result of a tool call. `self`: an earlier turn of the
same agent. `gated`: the source is not in the prompt, but decided that the reader's agent moves or which turns it reads.
"""
Purpose = Literal["train", "eval", "credit"]
"""Stage of a run to which the tokens of a request are charged."""


class Observation(TypedDict):
    """Observation of an agent as text. Without an action mask, any text is a move."""

    text: str
    """Text of the observation. A game marks parts made from earlier moves with `marl.text.origins.TextWithOrigins`, by
    the index of the game's step. A text without marks counts as made from all turns that the agent may read and has not
    read yet."""
    action_mask: NotRequired[Any]


class Info(TypedDict):
    """Facts about the agent to move, in addition to its observation."""

    legal: tuple[str, ...] | None
    """Legal moves, or None if any text is a move."""
    hears: tuple[str, ...]
    """Agents whose turns this agent can read."""
    together: tuple[str, ...]
    """Agents whose observations are final now, so that their requests can be submitted at the same time."""
    state: str
    """Information state: everything that this agent knows, from which rule-based players answer. The steps in the marks
    of a `marl.text.origins.TextWithOrigins` become edges of the turn, although no prompt shows them."""
    attempt: int
    """Number of earlier answers to this observation that the game refused as illegal."""
    problem: NotRequired[str]
    """Key of the problem on which this agent works, if there is a problem."""
    stage: NotRequired[str]
    """Name of the stage of a workflow in which this agent moves, if there are stages."""
    examples: NotRequired[tuple[str, ...]]
    """Example moves for games without a list of legal moves. The player `random` draws from the examples."""
    rules: NotRequired[str]
    """Rules of the game, in words."""
    gates: NotRequired[tuple[int, ...]]
    """Indices of the game's steps whose moves decided that this agent moves now, or which turns it reads."""
    callers: NotRequired[Mapping[str, tuple[str, ...]]]
    """Agents whose turns only the program at this seat asks for (inner turns) -> example moves of the agent."""


class SpanFromEarlierTurn(NamedTuple):
    """Span of characters in a request's messages that was made from an earlier turn."""

    source: TurnId
    """Id of the turn from which the span was made."""
    kind: EdgeKind
    """Kind of the edge from turn `source`."""
    message: int
    """Index of the message that contains the span."""
    begin: int
    """Offset of the span's first character in the message's content. If `begin` equals `end`, text was omitted at this
    offset because of the earlier turn."""
    end: int
    """Offset after the span's last character in the message's content."""


@fast_record
@dataclass(frozen=True, slots=True)
class Request:
    """Request to a policy for one completion."""

    policy: str
    """Name of the policy that answers the request."""
    messages: FailFastTuple[Message]
    sampling: Sampling
    seed: int = 0
    """Seed of the random numbers with which tokens are sampled."""
    options: Mapping[str, str] | None = None
    """Legal move -> its canonical text, or None if any text is a move."""
    state: str = ""
    """Information state of the agent, from which scripted players choose their move."""
    continues: FailFastTuple[int] = ()
    """Token ids (prompt and completion of an earlier turn) to which the tokens of `messages` are appended unchanged."""
    forced: str | None = None
    """Text whose log-probabilities are computed (end token included) instead of sampling, or None to sample."""
    prefix: FailFastTuple[int] = ()
    """Token ids with which the completion begins, without sampling: `Completion.imposed` has their positions."""
    segments: Segments | None = None
    """Division of the completion into segments, or None for no segments."""
    segment_offsets: FailFastTuple[int] = ()
    """Offset in the last message after each segment of the completion that it quotes, for verifiers and reward models;
    empty if the completion has no segments."""
    examples: FailFastTuple[str] = ()
    """Example answers from which scripted players choose if any text is a move."""
    tools: FailFastTuple[str] = ()
    """JSON schemas (as in OpenAI's `tools`) of the role's tools, for chat templates that render tools."""
    answer_schema: str = ""
    """JSON schema of answers, for constrained decoding (`sampling.structured`) and for roles that read a program's
    answers as JSON; "" to allow any JSON object."""
    marks: FailFastTuple[SpanFromEarlierTurn] = ()
    """Spans of `messages` that were made from earlier turns, sorted by message and offset."""
    max_prompt_tokens: int | None = None
    """Maximum number of tokens of the prompt, above which the request is refused (`overflow`); None: the context."""
    purpose: Purpose = "train"
    """Purpose of the answer. ε-greedy engines explore for `train` and never for `eval`."""


@dataclass(frozen=True, slots=True)
class ImitationTarget:
    """Completion to imitate, with its target probability."""

    token_ids: FailFastTuple[int]
    """Tokens of the completion, the end token included."""
    share: float
    """Target probability of the completion."""


@fast_record
@dataclass(frozen=True, slots=True)
class Completion:
    """Completion of a policy with its tokens and their log-probabilities."""

    text: str
    prompt_ids: FailFastTuple[int]
    """Token ids of the prompt."""
    token_ids: FailFastTuple[int]
    """Ids of the sampled tokens, the end token included."""
    logprobs: FailFastTuple[float]
    """Log-probability (nats) of each token under the sampling distribution, with temperature, top-p and top-k
    applied."""
    finish: Finish
    versions: tuple[int, int] = (0, 0)
    """Versions of the weights that sampled the first and the last token."""
    version_runs: FailFastTuple[tuple[int, int]] = ()
    """(version of the weights, number of successive tokens that it sampled), in order, if the weights changed during
    the completion. Imposed tokens count with the run before them. Empty if one version sampled all tokens, or if it is
    not known which tokens each sampled (texts that were only scored, older files)."""
    usage: RemoteUsage | None = None
    """Tokens and cost of the completion, or None if the engine counts no cost."""
    imposed: FailFastTuple[int] = ()
    """Positions in `token_ids` that the engine inserted unsampled, such as the end of a thought at its limit."""
    reason: str = ""
    """Error message of a failed request, for which `text` is empty."""
    mark_tokens: FailFastTuple[tuple[int, int]] = ()
    """Token span (first, end) in `prompt_ids` of each of the request's `marks`; empty if the engine does not know the
    prompt's tokens."""
    prefix_tokens: int = 0
    """Number of tokens at the beginning of `token_ids` that the request gave as `prefix`; their log-probabilities are
    not computed, but 0."""
    segments: FailFastTuple[int] = ()
    """Index in `token_ids` of the last token of each segment, by the request's `segments`; empty without segments."""
    segment_offsets: FailFastTuple[int] = ()
    """Offset in `text` after each segment; the last one is the length of `text`."""
    targets: FailFastTuple[ImitationTarget] = ()
    """Distribution over completions that imitation learns instead of this completion, such as a search policy. Its
    probabilities sum to 1. If empty, imitation learns this completion."""


@dataclass(frozen=True, slots=True)
class CompletionFailure:
    """Answer to a request without a completion.

    The prompt is longer than the model's context (`overflow`), the engine gave up (`aborted`), or a worker process
    failed for a cause outside the answer (`unjudged`), so that the episode cannot be scored.
    """

    finish: Literal["overflow", "aborted", "unjudged"]
    reason: str
    usage: RemoteUsage | None = None
    """Tokens and cost of the attempts, or None if the engine counts no cost."""


@fast_record
@dataclass(frozen=True, slots=True)
class Turn:
    """One decision of one agent: a node of the trajectory graph."""

    id: TurnId
    agent: str
    nth: int
    """Number of earlier turns of this agent in the episode."""
    attempt: int
    """Number of earlier answers to the same observation that the game refused as illegal."""
    role: str
    request: Request
    completion: Completion
    action: str | None
    """Action parsed from the completion's text, or None if the text names no legal action."""
    problem: str = ""
    """Key of the problem on which the agent worked; "" if there is no problem."""
    spoofs: tuple[TurnId, ...] | None = None
    """Turns of other agents in the prompt that imitate a verdict of this turn's role, or None if the role does not
    judge."""
    stage: str = ""
    """Name of the stage of a workflow in which the agent moved; "" if the game has no stages."""
    inner: bool = False
    """True if a program asked for the turn before its own turn, or if the turn is the agent's summary of its full
    context. No step of the game plays an inner turn, so the index of a turn is not the index of a step."""


def hashable_prompt(turn: Turn) -> Hashable:
    """Return the token ids of a turn's prompt, or the prompt's messages if the turn has no tokens."""
    return turn.completion.prompt_ids or turn.request.messages


@fast_record
@dataclass(frozen=True, slots=True)
class Reward:
    """One component of the reward that the game paid `agent` right after `turn`."""

    agent: str
    value: float
    turn: TurnId
    name: str = "outcome"
    """Name of the reward component, such as `correct`."""
    cause: str = ""
    """Rule or expression of the game that paid the reward, for explanations."""


@fast_record
@dataclass(frozen=True, slots=True)
class Deal:
    """Plan of one episode: its game, seed and roles. Deals with equal seed and options have equal start states."""

    episode: str
    """Unique id of the episode in its run."""
    group: str
    """Group of the episode: episodes of one group begin from the same state."""
    seed: int
    """Seed of the game."""
    seats: Mapping[str, str]
    """Agent -> role."""
    purpose: Purpose = "train"
    branch: int = 0
    """Number of the continuation if the episode is a fork, which distinguishes forks of one turn; else 0."""
    options: Mapping[str, Any] | None = None
    """Options of the game's `reset`, or None for the default start."""
    policies: Mapping[str, str] = field(default_factory=dict)
    """Role -> policy that answers for the role in this episode, instead of the role's own policy. `actor@000120` names
    an added policy; the suffix after `@` distinguishes versions or owners of policy `actor`. No learner trains on the
    turns of these roles in this episode."""
    game: str = ""
    """Name of the game in a run with several games; empty in a run with one game."""


@dataclass(frozen=True, slots=True)
class Fork:
    """Continuations of an earlier episode, from just before one of its turns."""

    trajectory: Trajectory
    """Original episode, which may have been played in another process or read from a file."""
    index: int
    """Index in `trajectory.turns` of the first turn that is played again."""
    action: str | None = None
    """Move at turn `index` ("" for an empty answer), or None to ask the turn's policy."""
    scripted_moves: tuple[tuple[str, str | None], ...] = ()
    """(agent, move) pairs: the agent plays this move at all of its remaining turns; None is an empty answer."""
    keeps_unchanged_answers: bool = False
    """True to repeat an agent's recorded answer if its prompt is identical to the recorded prompt. The policy of an
    agent with another prompt is asked in any case."""
    n: int = 1
    """Number of continuations to play."""
    purpose: Purpose = "credit"
    """Purpose to which the tokens of the continuations are charged."""
    prefix: tuple[int, ...] = ()
    """Token ids with which the answer of turn `index` begins; the turn's policy samples the rest of the answer."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Problem of a task, with all facts needed to grade an answer."""

    key: str
    """Unique name of the problem: two problems with equal keys are equal."""
    question: str
    answer: str = ""
    """Reference answer; empty if only unit tests or a judge can grade answers."""
    wrong: FailFastTuple[str] = ()
    """Plausible wrong answers."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Facts for verifiers as plain JSON, such as unit tests, choices or a unit."""


@dataclass(frozen=True, slots=True)
class VerifierCase:
    """Answer to be graded by a verifier, with its problem."""

    problem: Problem
    text: str
    """Full text of the completion, which contains the answer."""
    answer: str | None
    """Answer that the role parsed from `text`, or None if `text` was unreadable. For a verdict on tool calls, this
    is the JSON of the calls, and `text` has their results, one after another."""
    earlier: FailFastTuple[str] = ()
    """Earlier results of tools in this turn, oldest first, if `text` is the result of a tool call."""
    segments: FailFastTuple[str] = ()
    """Segments of `text`, in order; empty if the verified role has no `segments`."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Verdict of a verifier on an answer: a score with a reason."""

    score: float | Sequence[float]
    """Score of the answer: 1 if right, 0 if wrong, and negative down to -1 for penalties. Or one score for each of
    `VerifierCase.segments`."""
    why: str = ""
    """Reason for the score, for explanations."""


@fast_record
@dataclass(frozen=True, slots=True)
class EpisodeMeasuresAndNewStarts:
    """Results of an episode other than its rewards."""

    measures: Mapping[str, float] = field(default_factory=dict)
    """Name of a measure, such as `success` -> its value in the episode, which is logged but never paid as a reward."""
    starts: FailFastTuple[Mapping[str, Any]] = ()
    """`reset` options of new start states that the episode reached, for an experience with a start pool."""


NOTHING_FOUND = EpisodeMeasuresAndNewStarts()
"""Findings of an episode of a game that measures nothing."""


@fast_record
@dataclass(frozen=True, slots=True)
class Advantage:
    """Advantage of a turn over its baseline, with the numbers from which it was computed."""

    value: float
    tokens: FailFastTuple[float] = ()
    """Advantage of each token of the turn, if the credit rule computes one per token; else empty."""
    returns: FailFastTuple[float] = ()
    """Value target of each token of the turn, if a critic learns; else empty."""
    baseline: float | None = field(default=None, compare=False)
    """Number that was subtracted from the turn's earnings, or None if it was no single number."""
    scale: float | None = field(default=None, compare=False)
    """Factor by which the earnings minus the baseline were multiplied, or None if it was no single factor."""


Credit = dict[TurnId, Advantage]
"""Advantage of each credited turn of a step. Turns without one are not trained on, unlike turns with advantage 0."""


@fast_record
@dataclass(frozen=True, slots=True)
class Reading:
    """Outputs of a learner's model for a recorded turn, computed without an update."""

    logprobs: tuple[float, ...]
    """Log-probability (nats) of each token of the completion under the learner's weights."""
    values: tuple[float, ...] | None = None
    """Critic's value of the state before each token, or None if the learner has no critic."""
    next_value: float | None = None
    """Critic's value of the state after the last token, or None if the learner has no critic."""
    hidden: Any | None = None
    """Hidden states [2, H] at the last prompt token and at the last completion token, or None if they were not asked
    for."""
    reference: tuple[float, ...] | None = None
    """Log-probability (nats) of each token under the learner's reference model, or None without such a model."""
    rewards: tuple[float, ...] | None = None
    """Token rewards of the learner's implicit process reward model (PRIME), or None if it has none."""


@fast_record
@dataclass(frozen=True, slots=True)
class Sample:
    """One credited turn in the form that learners train on."""

    id: TurnId
    agent: str
    role: str
    group: str
    """Group of the episode: episodes of one group began from the same state."""
    nth: int
    """Number of earlier turns of the agent in the episode."""
    end: EpisodeEnd
    """End of the episode if this is the agent's last turn; else `no`."""
    prompt_ids: tuple[int, ...]
    """Token ids of the prompt."""
    token_ids: tuple[int, ...]
    """Token ids of the completion."""
    logprobs: tuple[float, ...]
    """Log-probability (nats) of each completion token under the sampling distribution."""
    sampling: Sampling
    versions: tuple[int, int]
    """Versions of the weights that sampled the first and the last token."""
    earned: float
    """Earnings of the turn by the assign rule, before the baseline is subtracted."""
    advantage: Advantage
    reading: Reading | None = None
    """Reading of the turn before the update, or None if neither credit nor learner needs it."""
    paid: float = 0.0
    """Return of the agent: its total reward in the episode."""
    finish: Finish = "stop"
    """Reason for which sampling of the completion ended."""
    imposed: tuple[int, ...] = ()
    """Positions in `token_ids` that were not sampled and are masked out of the loss."""
    segments: tuple[int, ...] = ()
    """Index in `token_ids` of the last token of each segment; empty without segments."""
    rewards: tuple[tuple[int, float], ...] = ()
    """(turn index, reward) of each reward that the agent got between this turn and its next turn."""
    targets: tuple[ImitationTarget, ...] = ()
    """Distribution over completions that imitation learns, copied from `Completion.targets`; empty if there is none."""
    staleness: int = 0
    """Number of steps by which the oldest weights that sampled a token are older than the newest weights."""
    judged: JudgedText | None = None
    """Prompt, answer and scores as text if the learner reads texts; else None."""
