"""What the rules that fit networks share: steps as records, networks made for who is at the table, a state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Generic

import torch
from torch import Tensor

from credit.inherited import credit_of
from credit.mixing.encoding import Encoder
from credit.mixing.fitting import Fitter, N, seeded
from credit.mixing.record import Kind, Layout, Record
from credit.mixing.rounds import Round, rounds
from credit.mixing.targets import Returns, Targets
from marl.types import Credit, Metrics

if TYPE_CHECKING:
    from credit.assign.value_decomposition import FittedAssign
    from marl.protocols import Evidence
    from marl.types import Turn


@dataclass(frozen=True, slots=True)
class Plan(Generic[N]):
    """What a rule fits."""

    settings: FittedAssign
    networks: Callable[[Layout], N]
    """New networks for a table."""
    targets: Callable[[Record, N, N], Targets]
    """Of a record, the networks and their target copy."""
    options: bool = False
    """Whether the targets ask what other moves are worth, so that all must be listed."""


class Fitted(Generic[N]):
    """Networks that were fitted to one step after the other."""

    def __init__(self, plan: Plan[N], layout: Layout, kinds: Sequence[Kind], seed: int) -> None:
        self._plan, self._seed = plan, seed
        self.encoder = Encoder(layout, plan.settings.features == "hidden", kinds)
        with seeded(seed, "mixing"):
            networks = plan.networks(layout)
        self._fitter = Fitter(plan.settings.fit, networks, plan.targets)
        self._fitter.grow(kinds, seed)
        self.metrics: Metrics = {}

    @property
    def networks(self) -> N:
        return self._fitter.online

    def record(
        self, played: Sequence[Round], evidence: Evidence, *, options: bool = False
    ) -> tuple[Record, list[Turn]]:
        """Rounds as tensors, and their turns [N]; the networks understand them.

        Args:
            options: record the moves that turns could have made, even if the targets do not ask for them.
        """
        if self._plan.options:
            _check_listed(played)
        known = len(self.encoder.kinds)
        record, turns = self.encoder(played, evidence.readings, options=options or self._plan.options)
        self._fitter.grow(self.encoder.kinds[known:], self._seed)
        return record, turns

    def fit(self, record: Record) -> None:
        """Remember a step's record, and fit the networks to it and to those before."""
        name, fitter = type(self._plan.settings).__name__.lower(), self._fitter
        ahead = fitter.explained(record) if fitter.steps else None
        loss = fitter.add(record, self._seed)
        found = {"loss": loss, "explained_ahead": ahead, "explained": fitter.explained(record)}
        self.metrics = {f"credit/{name}/{key}": value for key, value in found.items() if value is not None}

    def state_dict(self) -> dict[str, Any]:
        layout = asdict(self.encoder.layout)
        return {
            "seed": str(self._seed),
            "layout": layout,
            "kinds": [list(kind) for kind in self.encoder.kinds],
            "fitter": self._fitter.state_dict(),
        }

    @classmethod
    def of(cls, plan: Plan[N], state: Mapping[str, Any]) -> Fitted[N]:
        """Continue where `state` was taken."""
        seats, roles, dimensions = (state["layout"][name] for name in ("seats", "roles", "dimensions"))
        kinds = [Kind(role, int(hidden)) for role, hidden in state["kinds"]]
        fitted = cls(plan, Layout(tuple(seats), tuple(roles), int(dimensions)), kinds, int(state["seed"]))
        fitted._fitter.load_state_dict(state["fitter"])
        return fitted


def _check_listed(played: Sequence[Round]) -> None:
    for turn in (turn for each in played for turn in each.turns):
        if not turn.request.options:
            raise ValueError(
                f"targets: 'max' needs every move listed, but role {turn.role!r} may say any text (turn {turn.id}); "
                "choices: returns"
            )


class FittedRule(Generic[N]):
    """Base of the working parts: `judge` says what turns are worth once the networks are fitted to their step."""

    def __init__(self, plan: Plan[N]) -> None:
        self.needs = plan.settings.needs
        self._plan = plan
        self._fitted: Fitted[N] | None = None

    def judge(self, fitted: Fitted[N], evidence: Evidence, record: Record, turns: Sequence[Turn]) -> Tensor:
        """[M, A] what the turns of each round are worth."""
        raise NotImplementedError

    def __call__(self, evidence: Evidence) -> Credit:
        """Fit, then judge every turn of the teams; one that several episodes hold, in the first of them.

        Judged by networks that know the step already: on made-up teams of two with noisy rewards, that credit and the
        credit of networks that do not know it yet had the same correlation with the truth within 0.02 (0.77 and 0.75
        for VDN, 0.88 both for QMIX; outcomes themselves 0.23), and the first step is judged by something.
        """
        played = self.rounds(evidence)
        if not played:
            return {}
        fitted = self.fitted(evidence)
        record, turns = fitted.record(played, evidence)
        fitted.fit(record)
        judged = self.judge(fitted, evidence, record, turns)
        if self._plan.settings.rest == "keep":
            judged = judged + self._rest(fitted, record)
        worth = judged[record.turns >= 0].tolist()
        places = record.turns[record.turns >= 0].tolist()
        return credit_of((turns[place].id, value) for place, value in zip(places, worth, strict=True))

    def explained(self, fitted: Fitted[N], record: Record) -> Tensor:
        """[M, 1 or A] what the networks make of each round, or of each turn in it."""
        raise NotImplementedError

    @torch.no_grad()
    def _rest(self, fitted: Fitted[N], record: Record) -> Tensor:
        """[M, 1 or A] what was paid from each round on beyond what the networks make of it."""
        whole = Returns(self._plan.settings.gamma, 1.0)(record, fitted.networks, fitted.networks)
        return whole(torch.arange(len(record.reward)))[:, None] - self.explained(fitted, record)

    def fitted(self, evidence: Evidence) -> Fitted[N]:
        """The networks, made now if this is the first step."""
        if self._fitted is None:
            self._fitted = Fitted(self._plan, self._layout(evidence), (), evidence.seed)
        return self._fitted

    def rounds(self, evidence: Evidence) -> list[Round]:
        """Of all teams, episode by episode."""
        settings = self._plan.settings
        return [
            each
            for trajectory in evidence.trajectories
            for team in settings.teams_of(trajectory, evidence)
            for each in rounds(trajectory, team, settings.rounds)
        ]

    def _layout(self, evidence: Evidence) -> Layout:
        seats = [pair for t in evidence.trajectories for pair in t.deal.seats.items() if pair[1] not in evidence.rules]
        agents = dict.fromkeys(agent for agent, _ in seats)
        return Layout(tuple(agents), tuple(sorted({role for _, role in seats})), self._plan.settings.dimensions)

    def metrics(self) -> Metrics:
        """How well the last step was fitted: the mean loss, and the share of the targets' variance that the networks
        explain, before (`explained_ahead`: of a step that they had not seen) and after."""
        return self._fitted.metrics if self._fitted else {}

    def state_dict(self) -> dict[str, Any]:
        return self._fitted.state_dict() if self._fitted else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._fitted = Fitted.of(self._plan, state) if state else None
