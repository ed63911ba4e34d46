"""Plain data types of a training step: observations, requests, turns, rewards, credit and samples.

Recorded data is frozen, because trajectories are shared between engines, credit rules, learners and files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict, TypeVar

from pydantic import FailFast

from marl.core.config import Sampling

if TYPE_CHECKING:
    from marl.core.graph import Trajectory

_Value = TypeVar("_Value")
FailFastTuple = Annotated[tuple[_Value, ...], FailFast()]
"""Tuple of a record with possibly millions of items. Validation stops at the first invalid item."""
TurnId = tuple[str, int]
"""(episode id, index of the turn in the episode); unique in a run."""
TOOL_CALL_PREFIX = "call "
"""Prefix of a move that is a tool call. The JSON of the call follows."""
Ticket = int
"""Identifier of one submitted request. Engines serve lower tickets first."""
Metrics = dict[str, float]
Finish = Literal["stop", "length", "overflow", "aborted"]
EpisodeEnd = Literal["no", "terminated", "truncated"]
EdgeKind = Literal["heard", "told", "posed", "gated", "tool", "self"]
"""Kind of an edge of the trajectory graph: how an earlier turn (source) influenced a later one (reader).

`heard`: the prompt quotes the source. `told`: the game's observation depends on the source. `posed`: the source posed
the problem that the reader works on. `tool`: the source is the result of a tool call. `self`: an earlier turn of the
same agent. `gated`: the source is not in the prompt, but decided that the reader's agent moves, or whose turns it
reads."""
Purpose = Literal["train", "eval", "credit"]
"""Stage of a run to which the tokens of a request are charged."""


class Observation(TypedDict):
    """Observation of an agent as text. Without an action mask, any text is a move."""

    text: str
    """Text of the observation. A game marks the moves behind it with `marl.text.origins.MarkedText`, by the index of
    the game's step. An unmarked text counts as made from all turns that the agent can read and has not read yet."""
    action_mask: NotRequired[Any]


class Info(TypedDict):
    """Facts about the agent to move, beside its observation."""

    legal: tuple[str, ...] | None
    """Legal moves, or None if any text is a move."""
    hears: tuple[str, ...]
    """Agents whose turns this agent can read."""
    together: tuple[str, ...]
    """Agents whose observations are final now, so that their requests can be submitted at the same time."""
    state: str
    """Information state: everything that this agent knows. Rule-based players answer from it. If it is a
    `marl.text.origins.MarkedText`, the steps named by its marks become edges, although no prompt shows them."""
    attempt: int
    """Number of earlier answers to this observation that the game refused."""
    problem: NotRequired[str]
    """Key of the problem on which this agent works, if there is one."""
    examples: NotRequired[tuple[str, ...]]
    """Example moves for games without a list of legal moves. The player `random` draws from them."""
    rules: NotRequired[str]
    """Rules of the game, in words."""
    gates: NotRequired[tuple[int, ...]]
    """Indices of the game's steps whose moves decided that this agent moves now, or whose turns it reads."""


class Message(NamedTuple):
    """One chat message."""

    role: Literal["system", "user", "assistant"]
    content: str


class SourceSpan(NamedTuple):
    """Span of a request's messages that was made from an earlier turn."""

    source: TurnId
    kind: EdgeKind
    message: int
    """Index of the message in the request."""
    begin: int
    """Offset of the span's first character in the message's content. If `begin` equals `end`, the earlier turn caused
    text to be left out at this offset."""
    end: int
    """Offset after the span's last character."""


@dataclass(frozen=True, slots=True)
class Request:
    """Request to a policy for one completion."""

    policy: str
    messages: FailFastTuple[Message]
    sampling: Sampling
    seed: int = 0
    """Seed of the random numbers with which tokens are sampled."""
    options: Mapping[str, str] | None = None
    """Canonical text of each legal move, or None if any text is a move."""
    state: str = ""
    """Information state of the agent, from which scripted players choose their move."""
    continues: FailFastTuple[int] = ()
    """Token ids (prompt and completion of an earlier turn) to which the tokens of `messages` are appended unchanged."""
    forced: str | None = None
    """Text that is scored, end token included, instead of sampling; None to sample."""
    examples: FailFastTuple[str] = ()
    """Example answers from which scripted players choose if any text is a move."""
    tools: FailFastTuple[str] = ()
    """JSON schemas (as in OpenAI's `tools`) of the role's tools, for chat templates that render tools."""
    answer_schema: str = ""
    """JSON schema for constrained decoding (`sampling.structured`); empty to allow any JSON object."""
    marks: FailFastTuple[SourceSpan] = ()
    """Spans of `messages` that were made from earlier turns, sorted by message and offset."""
    purpose: Purpose = "train"
    """Purpose of the answer. Exploring engines explore under `train` and never under `eval`."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Cost of answers from remote endpoints. Instances can be added and subtracted."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    """Cost in the currency of the engine's prices."""
    tries: int = 0
    """Number of HTTP requests, retries included."""
    failed: int = 0
    """Number of requests that failed after all retries."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cost + other.cost,
            self.tries + other.tries,
            self.failed + other.failed,
        )

    def __sub__(self, other: Usage) -> Usage:
        return self + Usage(-other.prompt_tokens, -other.completion_tokens, -other.cost, -other.tries, -other.failed)


@dataclass(frozen=True, slots=True)
class ImitationTarget:
    """Completion to imitate, with its target probability."""

    token_ids: FailFastTuple[int]
    """Tokens of the completion, the end token included."""
    share: float
    """Target probability of the completion."""


@dataclass(frozen=True, slots=True)
class Completion:
    """Completion of a policy, token for token."""

    text: str
    prompt_ids: FailFastTuple[int]
    token_ids: FailFastTuple[int]
    """Sampled tokens, the end token included."""
    logprobs: FailFastTuple[float]
    """Log-probability (nats) of each token under the sampling distribution, with temperature, top-p and top-k
    applied."""
    finish: Finish
    versions: tuple[int, int] = (0, 0)
    """Versions of the weights that sampled the first and the last token."""
    usage: Usage | None = None
    """Cost of the completion, or None if the engine counts no cost."""
    imposed: FailFastTuple[int] = ()
    """Positions of tokens that the engine inserted instead of sampling, such as the end of a thought at its limit."""
    reason: str = ""
    """Error message of a failed request, for which `text` is empty."""
    mark_tokens: FailFastTuple[tuple[int, int]] = ()
    """Token span (first, end) in `prompt_ids` of each of the request's `marks`; empty if the engine does not know the
    prompt's tokens."""
    targets: FailFastTuple[ImitationTarget] = ()
    """Distribution over completions that imitation learns instead of this completion, such as a search policy. Shares
    sum to 1. If empty, imitation learns this completion."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Request that got no completion.

    `overflow`: the prompt is longer than the model's context. `aborted`: the engine gave the request up. `unjudged`: a
    worker process failed for a cause outside the answer, so the episode cannot be scored.
    """

    finish: Literal["overflow", "aborted", "unjudged"]
    reason: str
    usage: Usage | None = None
    """Cost of the attempts, or None if the engine counts no cost."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One decision of one agent: a node of the trajectory graph."""

    id: TurnId
    agent: str
    nth: int
    """Number of the agent's earlier turns."""
    attempt: int
    """Number of earlier answers to the same observation that the game refused."""
    role: str
    request: Request
    completion: Completion
    action: str | None
    """Action parsed from the text, or None if the text names no legal action."""
    problem: str = ""
    """Key of the problem on which the agent worked."""


@dataclass(frozen=True, slots=True)
class Reward:
    """One component of the reward that the game paid `agent` right after `turn`."""

    agent: str
    value: float
    turn: TurnId
    name: str = "outcome"
    cause: str = ""
    """Rule or expression of the game that paid the reward, for explanations."""


@dataclass(frozen=True, slots=True)
class Deal:
    """Start of one episode. Deals with equal seed and options have equal start states."""

    episode: str
    group: str
    seed: int
    """Seed of the game."""
    seats: Mapping[str, str]
    """Role of each agent."""
    purpose: Purpose = "train"
    branch: int = 0
    """Index of the continuation if the episode is a fork; forks of one turn differ by their branch."""
    options: Mapping[str, Any] | None = None
    """Options of the game's `reset`."""
    policies: Mapping[str, str] = field(default_factory=dict)
    """Policy of each role that another policy than the role's own plays in this episode. `actor@000120` names an added
    policy; the suffix after `@` distinguishes versions or owners of policy `actor`."""
    game: str = ""
    """Name of the game in a run with several games; empty in a run with one game."""


@dataclass(frozen=True, slots=True)
class Fork:
    """Continuations of an earlier episode, from just before one of its turns."""

    trajectory: Trajectory
    """Original episode. Passed by value, because it may have been played in another process or read from a file."""
    index: int
    """Index in `trajectory.turns` of the first turn that is played again."""
    action: str | None = None
    """Move that is played at that turn ("" for an empty answer), or None to ask the turn's policy."""
    scripted_moves: tuple[tuple[str, str | None], ...] = ()
    """(agent, move) pairs: the agent plays this move at all of its remaining turns; None for an empty answer."""
    keeps_unchanged_answers: bool = False
    """True to repeat an agent's recorded answer as long as its prompt is identical to the recorded one. An agent with a
    changed prompt is always asked."""
    n: int = 1
    """Number of continuations."""
    purpose: Purpose = "credit"
    """Purpose to which the tokens of the continuations are charged."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Problem with all facts needed to grade an answer."""

    key: str
    """Unique name: two problems with equal keys are equal."""
    question: str
    answer: str = ""
    """Reference answer; empty if only unit tests or a judge can grade answers."""
    wrong: FailFastTuple[str] = ()
    """Plausible wrong answers."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Facts for verifiers as plain JSON, such as unit tests, choices or a unit."""


@dataclass(frozen=True, slots=True)
class VerifierCase:
    """Answer to be graded by a verifier."""

    problem: Problem
    text: str
    """Full text of the completion."""
    answer: str | None
    """Answer that the role parsed from `text`, or None if `text` was unreadable."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Score of a verifier for an answer."""

    score: float
    """1 for a right answer, 0 for a wrong one; penalties go down to -1."""
    why: str = ""
    """Reason for the score, for explanations."""


@dataclass(frozen=True, slots=True)
class Findings:
    """Result of an episode beside its rewards."""

    measures: Mapping[str, float] = field(default_factory=dict)
    """Named figures, such as `success`, that are logged but never paid as rewards."""
    starts: FailFastTuple[Mapping[str, Any]] = ()
    """`reset` options of new start states found in the episode, for an experience with a start pool."""


@dataclass(frozen=True, slots=True)
class Advantage:
    """Advantage of a turn over its baseline."""

    value: float
    tokens: FailFastTuple[float] = ()
    """Advantage of each token, if the credit rule works by token; else empty."""
    returns: FailFastTuple[float] = ()
    """Value target of each token, if a critic learns; else empty."""
    baseline: float | None = field(default=None, compare=False)
    """Number that was subtracted from the turn's earnings, or None if no single number was."""
    scale: float | None = field(default=None, compare=False)
    """Factor by which that difference was multiplied, or None if no single factor was."""


Credit = dict[TurnId, Advantage]
"""Advantages of one step. A turn without an entry got no credit and is not trained on, unlike a turn with advantage
0."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Outputs of a learner's model for a recorded turn, computed without an update."""

    logprobs: tuple[float, ...]
    values: tuple[float, ...] | None = None
    """Critic's value of the state before each token, or None if the learner has no critic."""
    next_value: float | None = None
    """Critic's value of the state after the last token, or None if the learner has no critic."""
    hidden: Any | None = None
    """[2, H]: hidden states at the last prompt token and at the last completion token."""
    reference: tuple[float, ...] | None = None
    """Log-probabilities (nats) under the learner's reference model."""
    rewards: tuple[float, ...] | None = None
    """Token rewards of the learner's implicit process reward model (PRIME), or None if it has none."""


@dataclass(frozen=True, slots=True)
class TokenFigures:
    """Log-probability and entropy of a turn's tokens, from the first forward pass of an update."""

    logprobs: tuple[float, ...]
    """Log-probability (nats) of each token under the sampling distribution of the learner's weights in that pass."""
    entropy: tuple[float, ...]
    """Entropy (nats) of the full vocabulary at the sampling temperature, for each token."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One credited turn in the form that learners train on."""

    id: TurnId
    agent: str
    role: str
    group: str
    """Group of the episode: episodes of one group began from the same state."""
    nth: int
    end: EpisodeEnd
    """End of the episode, if this is the agent's last turn; else `no`."""
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    sampling: Sampling
    versions: tuple[int, int]
    earned: float
    """Earnings of the turn by the assign rule, before the baseline is subtracted."""
    advantage: Advantage
    reading: Reading | None = None
    paid: float = 0.0
    """Return of the agent: its total reward in the episode."""
    finish: Finish = "stop"
    imposed: tuple[int, ...] = ()
    """Positions of tokens that were not sampled and are masked out of the loss."""
    rewards: tuple[tuple[int, float], ...] = ()
    """(turn index, value) of each reward that the agent got from this turn up to its next turn."""
    targets: tuple[ImitationTarget, ...] = ()
    """Distribution over completions to imitate, copied from `Completion.targets`."""
    staleness: int = 0
    """Age of the sample's first token in steps: 0 if the newest weights sampled it."""
