"""Settings shared by rules that fit networks during the run (VDN, QMIX, COMA). The networks' code imports this
module."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, PositiveInt, model_validator

from marl.core.config import Config
from marl.credit.assign.edges import EdgeAssign
from marl.credit.assign.teams import TeamAssign


class Fit(Config):
    """Settings of the fit of networks at each step of the run."""

    updates: PositiveInt = 8
    """Gradient steps per step of the run."""
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
    """Maximum gradient norm; larger gradients are clipped."""
    width: PositiveInt = 64
    """Width of hidden layers."""


class FittedAssign(EdgeAssign, TeamAssign):
    """Base of rules that fit networks to the rewards of teams.

    A time step is a round: turns that count as simultaneous, and the team's rewards until the next round begins.
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
    """Settings of the fit of the networks to the run's episodes."""

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"hidden"} if self.features == "hidden" else ())


class Decomposition(FittedAssign):
    """Base of mixers. A turn earns its marginal: Q_tot, minus Q_tot with the turn's utility Q replaced by V, its mean
    over what the agent could have said with the same prompt. Networks are fitted to a step before its credit is
    computed."""

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
