"""Credit by networks that are fitted as the run goes: value decomposition (VDN, QMIX) and a central critic (COMA)."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, PositiveInt, model_validator

from credit.assign.edges import EdgeAssign
from credit.assign.teams import TeamAssign
from marl.config import Config
from marl.protocols import Assign


class Fit(Config):
    """Settings of how networks are fitted, step by step of the run."""

    updates: PositiveInt = 8
    """Gradient steps for each step of the run."""
    batch: PositiveInt = 256
    """Rounds of one gradient step."""
    memory: PositiveInt = 4
    """Steps of the run that are replayed, the present one included."""
    target_every: PositiveInt = 8
    """Gradient steps after which the target network is made a copy again; where returns are not bootstrapped
    (`lam: 1`) it is not used."""
    optimizer: Literal["adam", "rmsprop"] = "adam"
    """Optimizer of the networks; `rmsprop` as in pymarl: alpha 0.99, eps 1e-5."""
    lr: float = Field(default=3e-3, gt=0)
    """Learning rate of the networks."""
    max_norm: float = Field(default=10.0, gt=0)
    """Greatest norm of a gradient; longer ones are shortened."""
    width: PositiveInt = 64
    """Width of hidden layers."""


class FittedAssign(EdgeAssign, TeamAssign):
    """Base of rules that fit networks to what teams are paid.

    Rounds are the steps of time: turns that count as simultaneous, and what the team is paid until the next ones begin.
    """

    rounds: Literal["reading", "turns"] = "reading"
    """Turns that form a round. `reading`: those before which the longest chain of who-read-whom is equally long, so
    that none of them had read another: each stage of a pipeline is a round, and agents who move at once share one.
    `turns`: the agents' t-th turns of the episode, whoever read whom. Where a later speaker of a round knows what an
    earlier one said, that knowledge then explains what the earlier one earned, which gets next to nothing."""
    features: Literal["hidden", "text"] = "hidden"
    """Features of a turn. `hidden`: the acting model's own states at the end of the prompt and of the
    completion, where its policy learns; texts where it does not, and where moves are listed. `text`: hashed words and
    pairs of words of what the agent knew and of what it said."""
    dimensions: int = Field(default=64, ge=8)
    """Number of features of hashed texts."""
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount, once a round."""
    lam: float = Field(default=1.0, ge=0, le=1)
    """Lambda of TD(lambda): G_t = r_t + gamma [(1 - lam) Q_target(t + 1) + lam G_(t + 1)]; 1 is the return itself."""
    truncated: Literal["end", "bootstrap"] = "end"
    """Value after the last round of a truncated episode. `end`: nothing, as after any other end. `bootstrap`: that
    round's own Q_target stands for all that it and those after it would have brought, and is fitted to nothing: for
    limits that cut off what other episodes go on to play. (PyMARL reads one more observation, which games do not give
    once they are over.)"""
    rest: Literal["drop", "keep"] = "keep"
    """Treatment of what was paid beyond the networks' value. `keep`: each turn gets it on top, so that it
    is judged by what was really paid, minus what would have been expected had its agent said what it says on average
    (an action-dependent baseline, arXiv 1803.07246). Networks that have learnt nothing then give what `uniform` gives.
    `drop`: nothing, as published: networks that have not learnt give noise, which a `group` blows up to full size."""
    fit: Fit = Fit()
    """Settings by which the networks are fitted to the run's episodes."""

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"hidden"} if self.features == "hidden" else ())


class Decomposition(FittedAssign):
    """Base of mixers. A turn earns its marginal: Q_tot, minus Q_tot with the turn's utility Q replaced by V, its mean
    over what the agent could have said with the same prompt. Networks are fitted to a step before it is judged."""

    targets: Literal["returns", "max"] = "returns"
    """Returns that the networks learn. `returns`: of the policies that played, by `lam`. `max`: of the best moves, r +
    gamma Q_target(t + 1) at the moves that the utilities themselves prefer (double Q); every move must be listed."""

    @model_validator(mode="after")
    def _check_targets(self) -> Self:
        if self.targets == "max" and self.features != "text":
            raise ValueError(
                f"targets: 'max' asks what other moves are worth, which nobody has said: features: {self.features!r} "
                "are not known of them; choices: features: text, or targets: returns"
            )
        if self.targets == "max" and self.lam != 1:
            raise ValueError(f"lam: {self.lam:g} is of returns, and targets are 'max'; leave it out")
        return self


class Vdn(Decomposition):
    """Value decomposition network (arXiv 1706.05296): Q_tot is the sum of the utilities, so a turn earns Q - V."""

    kind: str = "vdn"

    def build(self) -> Assign:
        from credit.mixing.mixer import Mixer

        return Mixer(self)


class Qmix(Decomposition):
    """QMIX (arXiv 1803.11485): Q_tot is a mix of the utilities that rises with each of them.

    The round's state decides its weights: what its agents knew, who they are, and its place in the graph.
    """

    kind: str = "qmix"
    embed: PositiveInt = 32
    """Width of the mixer."""

    def build(self) -> Assign:
        from credit.mixing.mixer import Mixer

        return Mixer(self, self.embed)


class Coma(FittedAssign):
    """COMA (arXiv 1705.08926): A_i = Q(s, a) - sum over a' of pi_i(a') Q(s, (a_-i, a')), by a central critic.

    It judges what one agent said, knowing what its round holds: the round's state and what its other agents said.
    Where moves are listed, the sum is over all of them, each as likely as its policy is to say the text of it
    (`Request.options`) and no other of them; these texts are scored, which is counted as tokens spent. Elsewhere it
    is over `alternatives`. A turn that has none gets 0, and what `rest` keeps.
    """

    kind: str = "coma"
    lam: float = Field(default=0.8, ge=0, le=1)
    """Lambda of TD(lambda): G_t = r_t + gamma [(1 - lam) Q_target(t + 1) + lam G_(t + 1)], where Q(t + 1) is the mean
    over the round's agents. 0.8 as in pymarl."""
    alternatives: Literal["siblings", "resample"] = "siblings"
    """Alternatives of an agent that may say any text. `siblings`: what it said with the same prompt, word for
    word, in other episodes of the step; `resample`: new answers of its policy, which cost tokens."""
    samples: PositiveInt = 8
    """Largest number of alternatives of one turn."""

    @model_validator(mode="after")
    def _check_alternatives(self) -> Self:
        if self.alternatives == "resample" and self.features != "text":
            raise ValueError(
                f"alternatives: 'resample' gives new texts, of which no states are read (features: {self.features!r}); "
                "choices: features: text, or alternatives: siblings"
            )
        return self

    def build(self) -> Assign:
        from credit.mixing.central import ComaRule

        return ComaRule(self)
