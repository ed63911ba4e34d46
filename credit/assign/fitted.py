"""Settings shared by the rules that fit networks during the run: VDN, QMIX and COMA."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, PositiveInt, model_validator

from marl.core.config import Config
from marl.credit.assign.edges import EdgeFollowingAssign
from marl.credit.assign.teams import TeamAssign


class NetworkFitSettings(Config):
    """Settings of the fit of a credit rule's networks at each step of the run."""

    updates: PositiveInt = 8
    """Number of gradient steps of the networks per step of the run."""
    batch: PositiveInt = 256
    """Number of rounds (time steps of a team, see `rounds`) in the minibatch of one gradient step."""
    memory: PositiveInt = 4
    """Number of recent steps of the run from which minibatches are drawn, the present step included."""
    target_every: PositiveInt = 8
    """Number of gradient steps between two copies of the networks to the target networks. Target networks are used only
    where returns are bootstrapped (`lam` below 1)."""
    optimizer: Literal["adam", "rmsprop"] = "adam"
    """Optimizer of the networks; `rmsprop` as in pymarl: alpha 0.99, eps 1e-5."""
    lr: float = Field(default=3e-3, gt=0)
    """Learning rate of the networks."""
    max_norm: float = Field(default=10.0, gt=0)
    """Maximum gradient norm; larger gradients are clipped."""
    width: PositiveInt = 64
    """Width of the networks' hidden layers."""


class FittedNetworkAssign(EdgeFollowingAssign, TeamAssign):
    """Base of rules that fit networks to the rewards of teams.

    A time step of the networks is a round: turns that count as simultaneous, and the team's rewards until the next
    round begins.
    """

    rounds: Literal["reading", "turns"] = "reading"
    """Turns that form a round. `reading`: turns with equally long longest chains of read turns before them. No turn of
    a round read another, so each stage of a pipeline is a round, and agents who move at once share a round. `turns`:
    the agents' t-th turns of the episode. If a later turn of such a round read an earlier turn, the later prompt
    already explains the reward, and the earlier turn earns almost nothing."""
    features: Literal["hidden", "text"] = "hidden"
    """Features of a turn. `hidden`: hidden states of the acting model at the end of the prompt and of the completion,
    if its policy learns and the game lists no moves; hashed texts for all other turns. `text`: hashed words and pairs
    of words of the agent's observation and of its completion."""
    dimensions: int = Field(default=64, ge=8)
    """Number of features of hashed texts."""
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount from one round to the next."""
    lam: float = Field(default=1.0, ge=0, le=1)
    """Lambda of TD(lambda): G_t = r_t + gamma [(1 - lam) Q_target(t + 1) + lam G_(t + 1)]; with 1, G_t is the return
    itself."""
    truncated: Literal["end", "bootstrap"] = "end"
    """Value after the last round of a truncated episode. `end`: 0, as after a finished episode. `bootstrap`: the target
    of the last round is its own Q_target, and the networks are not fitted to this round; this suits games whose other
    episodes continue from such states. (PyMARL reads one more observation, but games give none after their end.)"""
    rest: Literal["drop", "keep"] = "keep"
    """Treatment of the residual: the return minus the networks' value. `keep`: every turn gets the residual in addition
    to its marginal contribution. The credit is then the return minus the expected return for the agent's average answer
    (an action-dependent baseline, arXiv 1803.07246), and untrained networks give the credit of `uniform`. `drop`: no
    residual, as published. Then untrained networks give noise, which `group` scales up to unit variance."""
    fit: NetworkFitSettings = NetworkFitSettings()
    """Settings of the fit of the networks to the run's episodes."""

    @property
    def needed_reading_fields(self) -> frozenset[str]:
        return frozenset({"hidden"} if self.features == "hidden" else ())


class ValueDecompositionAssign(FittedNetworkAssign):
    """Base of rules that mix the agents' utilities into a team value Q_tot (VDN, QMIX).

    A turn earns its marginal contribution: Q_tot minus Q_tot with the turn's utility Q replaced by V, the mean of Q
    over the agent's answers to the same prompt. Networks are fitted to a step before the step is credited.
    """

    targets: Literal["returns", "max"] = "returns"
    """Returns that the networks learn. `returns`: returns of the policies that played, by `lam`. `max`: returns of the
    best moves, r + gamma Q_target(t + 1) at the moves with the highest utilities (double Q); this needs a list of all
    legal moves."""

    @model_validator(mode="after")
    def _check_targets_fit_features(self) -> Self:
        if self.targets == "max" and self.features != "text":
            raise ValueError(
                f"targets: 'max' asks what other moves are worth, which nobody has said: features: {self.features!r} "
                "are not known of them; choices: features: text, or targets: returns"
            )
        if self.targets == "max" and self.lam != 1:
            raise ValueError(f"lam: {self.lam:g} is of returns, and targets are 'max'; leave it out")
        return self
