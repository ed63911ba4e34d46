"""The plain data that flows through one training step. Frozen: a fact, once recorded, does not change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict, TypeVar

from pydantic import FailFast

from marl.config import Sampling

if TYPE_CHECKING:
    from marl.graph import Trajectory

_Value = TypeVar("_Value")
Many = Annotated[tuple[_Value, ...], FailFast()]
"""Values of a record that may be millions: reading ends at the first that is wrong."""
TurnId = tuple[str, int]
"""(episode id, index in the episode); unique in a run."""
CALL = "call "
"""Begins a move that is a tool call; its JSON follows."""
Ticket = int
"""Names one submitted request; engines serve lower tickets first."""
Metrics = dict[str, float]
Finish = Literal["stop", "length", "overflow", "aborted"]
End = Literal["no", "terminated", "truncated"]
EdgeKind = Literal["heard", "told", "posed", "gated", "tool", "self"]
"""Way in which an earlier turn entered a prompt: its words were `heard`; the game `told` of them or of facts made from
them; it `posed` the problem that is worked on; it answers a call of a `tool`; it is the reader's own (`self`). `gated`:
it is not in the prompt, but decided that the reader speaks, or whom it hears."""
Purpose = Literal["train", "eval", "credit"]
"""Purpose for which tokens are spent."""


class Observation(TypedDict):
    """Observation of an agent, in words. Without a mask, any text is a move."""

    text: str
    """A game that knows which moves it tells of returns a `marl.provenance.Marked` text that names them by the number
    of the step; any other text counts as made from all the turns that the agent can read and had not read yet."""
    action_mask: NotRequired[Any]


class Info(TypedDict):
    """Facts about the agent to move, apart from its observation."""

    legal: tuple[str, ...] | None
    """Legal moves; None if any text is one."""
    hears: tuple[str, ...]
    """Agents whose turns this agent can read."""
    together: tuple[str, ...]
    """Agents whose observations are final now, so that they can be asked at once."""
    state: str
    """Information state: everything that this agent knows. What is answered by rule is answered from it: where it is a
    `marl.provenance.Marked` text, it leads from the steps of the game that it names, though no prompt shows them."""
    attempt: int
    """Number of answers to this question that were refused."""
    problem: NotRequired[str]
    """Key of the problem that this agent works on, if there is one."""
    examples: NotRequired[tuple[str, ...]]
    """Examples of moves, for games in which any text is one: the player `random` picks one of them."""
    rules: NotRequired[str]
    """The game's rules in words."""
    gates: NotRequired[tuple[int, ...]]
    """Steps of the game, by number, whose moves decided that this agent speaks now, or whom it hears."""


class Message(NamedTuple):
    """One chat message."""

    role: Literal["system", "user", "assistant"]
    content: str


class Mark(NamedTuple):
    """A part of a request's messages that was made from an earlier turn."""

    source: TurnId
    kind: EdgeKind
    message: int
    """Index of the message."""
    begin: int
    """First character of its content. Equal to `end`: a place where the earlier turn caused that nothing stands."""
    end: int
    """Character after the last one."""


@dataclass(frozen=True, slots=True)
class Request:
    """Request for a completion of a policy."""

    policy: str
    messages: Many[Message]
    sampling: Sampling
    seed: int = 0
    """Seed of the random numbers that pick the tokens."""
    options: Mapping[str, str] | None = None
    """Legal move -> its canonical text; None if any text is a move."""
    state: str = ""
    """The agent's information state, on which scripted players act."""
    continues: Many[int] = ()
    """Token ids that `messages` continue byte for byte (an earlier turn's prompt and completion)."""
    forced: str | None = None
    """Text to score instead of sampling; the end token is scored with it."""
    examples: Many[str] = ()
    """Examples of answers, from which scripted players choose if any text is a move."""
    tools: Many[str] = ()
    """JSON schemas (as in OpenAI's `tools`) of the tools that the role may call, for chat templates that take them."""
    answer_schema: str = ""
    """JSON schema of the answer, for engines that limit what is sampled (`sampling.structured`); empty: any object."""
    marks: Many[Mark] = ()
    """Parts of `messages` that were made from earlier turns, by message and beginning."""
    purpose: Purpose = "train"
    """Purpose of the answer: who explores while it learns does not when it is measured."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Cost of answers from outside; instances add up."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    """In the currency of the engine's prices."""
    tries: int = 0
    """Number of requests, retries included."""
    failed: int = 0
    """Number of requests that were given up."""

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
class Target:
    """A completion to imitate."""

    token_ids: Many[int]
    """Its tokens, the end token included."""
    share: float
    """Probability with which it is to be said."""


@dataclass(frozen=True, slots=True)
class Completion:
    """Completion of a policy, token for token."""

    text: str
    prompt_ids: Many[int]
    token_ids: Many[int]
    """Sampled tokens, the end token included."""
    logprobs: Many[float]
    """Of each token under the sampling distribution (temperature, top-p and top-k applied), in nats."""
    finish: Finish
    versions: tuple[int, int] = (0, 0)
    """Versions of the weights that sampled the first and the last token."""
    usage: Usage | None = None
    """Cost, where it is counted."""
    imposed: Many[int] = ()
    """Positions of tokens that were not sampled but written for the model: the end of a thought over its limit."""
    reason: str = ""
    """The reason why there is no text, where a request failed."""
    mark_tokens: Many[tuple[int, int]] = ()
    """For each of the request's `marks`, its first token in `prompt_ids` and the one after its last; empty where the
    engine does not know the prompt's tokens."""
    targets: Many[Target] = ()
    """Distribution over completions that imitation learns in place of this one, such as the policy of a search; shares
    add up to 1. Empty: this one alone."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A request that got no completion.

    `overflow`: it is longer than the model's context. `aborted`: it was given up. `unjudged`: a worker process failed
    for a cause that is not the answer's, so that its episode cannot be scored.
    """

    finish: Literal["overflow", "aborted", "unjudged"]
    reason: str
    usage: Usage | None = None
    """Cost of the attempts."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One decision of one agent: a node of the trajectory graph."""

    id: TurnId
    agent: str
    nth: int
    """Number of the agent's earlier turns."""
    attempt: int
    role: str
    request: Request
    completion: Completion
    action: str | None
    """None when no legal action could be read from the text."""
    problem: str = ""
    """Key of the problem that the agent worked on."""


@dataclass(frozen=True, slots=True)
class Reward:
    """Reward that the game paid `agent` right after `turn`, by component."""

    agent: str
    value: float
    turn: TurnId
    name: str = "outcome"
    cause: str = ""
    """Rule or expression of the game that paid it, for explanations."""


@dataclass(frozen=True, slots=True)
class Deal:
    """Start of one episode. Equal seed and options: equal start."""

    episode: str
    group: str
    seed: int
    """Seed of the game."""
    seats: Mapping[str, str]
    """Agent -> role."""
    purpose: Purpose = "train"
    branch: int = 0
    options: Mapping[str, Any] | None = None
    """Handed to the game's `reset`."""
    policies: Mapping[str, str] = field(default_factory=dict)
    """Role -> policy that speaks for it in this episode instead of the role's own. `actor@000120` names the engine
    that was added under that name; the part after `@` tells versions or owners of policy `actor` apart."""
    game: str = ""
    """Name of the game among the several of a run; "" where there is one."""


@dataclass(frozen=True, slots=True)
class Fork:
    """Continuations of an earlier episode, from just before one of its turns."""

    trajectory: Trajectory
    """The episode that is left. By value: it may have been played elsewhere, or read from a file."""
    index: int
    """Position in `trajectory.turns` of the turn that is played anew."""
    action: str | None = None
    """The move that is played at that turn, "" for an empty answer; None: its policy is asked."""
    muted: tuple[tuple[str, str | None], ...] = ()
    """(agent, the move that it plays from here on whenever it is asked; None: an empty answer)"""
    keeps: bool = False
    """True if an agent whose prompt is word for word the one it read in that episode answers as it did then. An agent
    that reads another prompt is always asked anew."""
    n: int = 1
    """Number of continuations."""
    purpose: Purpose = "credit"
    """Purpose under which their tokens are counted."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem, with everything that it takes to grade an answer."""

    key: str
    """Name of the problem: equal keys, equal problems."""
    question: str
    answer: str = ""
    """The right answer; empty where only tests or a judge can tell."""
    wrong: Many[str] = ()
    """Plausible wrong answers."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Facts that verifiers need, as plain JSON: unit tests, choices, a unit."""


@dataclass(frozen=True, slots=True)
class Case:
    """An answer to be verified."""

    problem: Problem
    text: str
    """The completion's text."""
    answer: str | None
    """The answer that the role read from the text; None if it was unreadable."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Verdict of a verifier on an answer."""

    score: float
    """1 is right, 0 is not; penalties go down to -1."""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Findings:
    """Result of an episode, apart from its rewards."""

    measures: Mapping[str, float] = field(default_factory=dict)
    """Named figures, such as `success`, which are reported and not paid."""
    starts: Many[Mapping[str, Any]] = ()
    """`reset` options of new starts that came up, for an experience that keeps a pool."""


@dataclass(frozen=True, slots=True)
class Advantage:
    """Advantage of a turn over its baseline."""

    value: float
    tokens: Many[float] = ()
    """One number a token, where a rule judges tokens."""
    returns: Many[float] = ()
    """Value targets, where a critic learns."""
    baseline: float | None = field(default=None, compare=False)
    """Number that was subtracted from what the turn earned; None: no single number was."""
    scale: float | None = field(default=None, compare=False)
    """Factor by which the difference was multiplied; None: as for `baseline`."""


Credit = dict[TurnId, Advantage]
"""Over the whole step. A turn without an entry was not judged, which is not the same as 0."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Outputs of a learner's model for a turn, without learning."""

    logprobs: tuple[float, ...]
    values: tuple[float, ...] | None = None
    """Value of the state before each token, where the learner has a critic ..."""
    next_value: float | None = None
    """... and of the one after the last."""
    hidden: Any | None = None
    """[2, H]: at the last prompt token and at the last completion token."""
    reference: tuple[float, ...] | None = None
    """Log-probabilities under the learner's reference model."""
    rewards: tuple[float, ...] | None = None
    """Reward of each token by the learner's own process reward model, where it has one (PRIME)."""


@dataclass(frozen=True, slots=True)
class TokenFigures:
    """Figures of the tokens of a turn, from the first pass over them in an update."""

    logprobs: tuple[float, ...]
    """Under the sampling distribution, by the weights that learn, as they were then."""
    entropy: tuple[float, ...]
    """Of the whole vocabulary at the sampling temperature, in nats."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One judged turn as a learner sees it."""

    id: TurnId
    agent: str
    role: str
    group: str
    """Start of the game: samples of one group began from the same state."""
    nth: int
    end: End
    """End of the episode, if this is the agent's last turn; else `no`."""
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    sampling: Sampling
    versions: tuple[int, int]
    earned: float
    """Earnings of the turn, before any comparison."""
    advantage: Advantage
    reading: Reading | None = None
    paid: float = 0.0
    """Total reward of its agent in the episode."""
    finish: Finish = "stop"
    imposed: tuple[int, ...] = ()
    """Positions of tokens that were not sampled, so that nothing is learned from them."""
    rewards: tuple[tuple[int, float], ...] = ()
    """Payments to its agent from this turn until its next one: (index in the episode of the turn at which it was paid,
    value)."""
    targets: tuple[Target, ...] = ()
    """As of `Completion`."""
    staleness: int = 0
    """Number of steps since the weights that sampled its first token were the newest."""
