"""The plain data that flows through one training step. Frozen: a fact, once recorded, does not change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NotRequired, TypedDict

from marl.config import Sampling

if TYPE_CHECKING:
    from marl.graph import Trajectory

TurnId = tuple[str, int]
"""(episode id, index in the episode); unique in a run."""
CALL = "call "
"""Begins a move that is a tool call; its JSON follows."""
Ticket = int
"""Names one submitted request; engines serve lower tickets first."""
Metrics = dict[str, float]
Finish = Literal["stop", "length", "overflow", "aborted"]
End = Literal["no", "terminated", "truncated"]
Purpose = Literal["train", "eval", "credit"]
"""What tokens are spent for."""


class Observation(TypedDict):
    """What an agent sees of a game. Without a mask, any text is a move."""

    text: str
    action_mask: NotRequired[Any]


class Info(TypedDict):
    """What a game says beside the observation, for the agent to move."""

    legal: tuple[str, ...] | None
    """The open moves; None when any text is one."""
    hears: tuple[str, ...]
    """Agents whose turns this one can see."""
    together: tuple[str, ...]
    """Agents whose observations are final now, so that they can be asked at once."""
    state: str
    """All that this agent knows: its information state."""
    attempt: int
    """0, or how many answers to this very question were refused."""
    problem: NotRequired[str]
    """Key of the problem that this agent works on now, where there is one."""
    examples: NotRequired[tuple[str, ...]]
    """Moves that show what an answer looks like where any text is a move: `random` plays one of them."""


class Message(NamedTuple):
    """One chat message."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True)
class Request:
    """What a policy is asked to say."""

    policy: str
    messages: tuple[Message, ...]
    sampling: Sampling
    seed: int = 0
    """Of the random numbers that pick the tokens."""
    options: Mapping[str, str] | None = None
    """Legal move -> the text that says it; None when any text is a move."""
    state: str = ""
    """All that the agent knows, in the game's own words: what scripted players act on."""
    continues: tuple[int, ...] = ()
    """Token ids that `messages` continue byte for byte (an earlier turn's prompt and completion)."""
    forced: str | None = None
    """Text to score instead of sampling; the end token is scored with it."""
    examples: tuple[str, ...] = ()
    """Texts that show what an answer looks like where any text is a move: what scripted players choose from."""
    tools: tuple[str, ...] = ()
    """JSON schemas (as in OpenAI's `tools`) of what the speaker may call, for chat templates that take them."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What was spent on answers from outside; sums are totals."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    """In the currency of the engine's prices."""
    tries: int = 0
    """How often it was asked, retries included."""
    failed: int = 0
    """Requests that were given up."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cost + other.cost,
            self.tries + other.tries,
            self.failed + other.failed,
        )


@dataclass(frozen=True, slots=True)
class Completion:
    """What a policy said, token for token."""

    text: str
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    """The sampled end token included."""
    logprobs: tuple[float, ...]
    """Of each token under the sampling distribution (temperature, top-p and top-k applied), in nats."""
    finish: Finish
    versions: tuple[int, int] = (0, 0)
    """Weights that sampled the first and the last token."""
    usage: Usage | None = None
    """What it took, where that is counted."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A request that got no completion: `overflow` (longer than the model's context) or `aborted`."""

    finish: Literal["overflow", "aborted"]
    reason: str
    usage: Usage | None = None
    """What was spent all the same."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One decision of one agent: a node of the trajectory graph."""

    id: TurnId
    agent: str
    nth: int
    """How many turns the agent had before."""
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
    """Something to be solved, with what it takes to tell whether it was."""

    key: str
    """Names it: equal keys, equal problems."""
    question: str
    answer: str = ""
    """The right answer; empty where only tests or a judge can tell."""
    wrong: tuple[str, ...] = ()
    """Plausible wrong answers."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What else verifiers need, as plain JSON: unit tests, choices, a unit."""


@dataclass(frozen=True, slots=True)
class Case:
    """An answer to be verified."""

    problem: Problem
    text: str
    """What was said, word for word."""
    answer: str | None
    """What the speaker's role read from it; None if it was unreadable."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verifier found."""

    score: float
    """1 is right, 0 is not; penalties go down to -1."""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Findings:
    """What an episode showed, beside its rewards."""

    measures: Mapping[str, float] = field(default_factory=dict)
    """Named figures, such as `success`; paid to nobody."""
    starts: tuple[Mapping[str, Any], ...] = ()
    """`reset` options of new starts that it came upon, for an experience that keeps a pool."""


@dataclass(frozen=True, slots=True)
class Advantage:
    """How much better a turn was than what it is compared with."""

    value: float
    tokens: tuple[float, ...] = ()
    """One number a token, where a rule judges tokens."""
    returns: tuple[float, ...] = ()
    """Value targets, where a critic learns."""
    baseline: float | None = field(default=None, compare=False)
    """Number that was subtracted from what the turn earned; None: no single number was."""
    scale: float | None = field(default=None, compare=False)
    """Factor by which the difference was multiplied; None: as for `baseline`."""


Credit = dict[TurnId, Advantage]
"""Over the whole step. A turn without an entry was not judged, which is not the same as 0."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a learner's model says of a turn without learning."""

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
    """What the learner's own reward model pays for each token, where it has one (PRIME)."""


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
    """Whether the episode ended with this turn of the agent."""
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    sampling: Sampling
    versions: tuple[int, int]
    earned: float
    """What the turn was assigned, before any comparison."""
    advantage: Advantage
    reading: Reading | None = None
    paid: float = 0.0
    """What its agent was paid in the whole episode."""
    finish: Finish = "stop"
