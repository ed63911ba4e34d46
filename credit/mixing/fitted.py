"""Base of the rules that fit networks as a run goes: targets, the memory of recent steps, a target copy, a state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from credit.assign.teams import to_credit
from credit.mixing.networks import Mixture, Networks, RoundBatch
from credit.mixing.records import Encoder, Kind, Layout, Record, join
from credit.mixing.rounds import Round, rounds
from marl.seeds import seed_of
from marl.state import expect_alike
from marl.types import Credit, Metrics

if TYPE_CHECKING:
    from credit.assign.value_decomposition import Fit, FittedAssign
    from marl.protocols import Evidence
    from marl.types import Turn

N = TypeVar("N", bound=Networks)
Targets = Callable[[Tensor], Tensor]
"""Places of rounds [B] -> their targets [B]."""


@torch.no_grad()
def lambda_returns(record: Record, target: Networks, gamma: float, lam: float) -> Tensor:
    """Return [M]: G_t = r_t + gamma [(1 - lam) Q_target(t + 1) + lam G_(t + 1)]; in an episode's last round r_t, or
    Q_target(t) if it was cut."""
    bootstraps = lam < 1 or bool(record.cut.any())
    values = target.total(RoundBatch(record)).tolist() if bootstraps else [0.0] * len(record.reward)
    returns, more, cut = record.reward.tolist(), record.more.tolist(), record.cut.tolist()
    for t in reversed(range(len(returns))):
        if more[t]:
            returns[t] += gamma * ((1 - lam) * values[t + 1] + lam * returns[t + 1])
        elif cut[t]:
            returns[t] = values[t]
    return torch.tensor(returns)


@torch.no_grad()
def double_q_targets(record: Record, rounds: Tensor, online: Mixture, target: Mixture, gamma: float) -> Tensor:
    """Return [B]: r + gamma Q_target(t + 1) at the moves that `online` prefers; r in an episode's last round.

    Each agent prefers by itself: a monotonic mixer makes those moves the joint best.
    """
    targets, more = record.reward[rounds].float(), record.more[rounds]
    if bool(more.any()):
        following = RoundBatch(record, rounds[more] + 1)
        moves = online.move_utilities(following).argmax(2, keepdim=True)
        q = target.move_utilities(following).gather(2, moves)[..., 0]
        targets[more] += gamma * target.mixer(q, following.state)
    return targets


@contextmanager
def seeded(*parts: object) -> Iterator[None]:
    """Let torch's random numbers depend on `parts`; afterwards they go on as if none had been drawn."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(*parts) >> 1)
        yield


class FittedRule(Generic[N]):
    """Base of the working parts: `judge` values turns once the networks are fitted to their step."""

    options = False
    """True if the targets depend on what other moves are worth, so that all must be listed."""

    def __init__(self, settings: FittedAssign) -> None:
        self.settings, self.needs = settings, settings.needs
        self._fitted: Fitted[N] | None = None

    def make_networks(self, layout: Layout) -> N:
        """Return new networks."""
        raise NotImplementedError

    def targets(self, record: Record, online: N, target: N) -> Targets:
        """Return the targets of a record, by the networks and their target copy."""
        returns = lambda_returns(record, target, self.settings.gamma, self.settings.lam)
        return lambda places: returns[places]

    def judge(self, fitted: Fitted[N], evidence: Evidence, record: Record, turns: Sequence[Turn]) -> Tensor:
        """Return [M, A], what the turns of each round earned."""
        raise NotImplementedError

    def predict(self, networks: N, record: Record) -> Tensor:
        """Return [M, 1 or A], the networks' value of each round, or of each turn in it."""
        raise NotImplementedError

    def __call__(self, evidence: Evidence) -> Credit:
        """Fit, then judge every turn of the teams; one that several episodes share, in the first of them.

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
        if self.settings.rest == "keep":
            # What was paid from each round on beyond the networks' value; of a round that was cut, nobody knows.
            with torch.no_grad():
                returns = lambda_returns(record, fitted.networks, self.settings.gamma, 1.0)
                rest = returns[:, None] - self.predict(fitted.networks, record)
                judged = judged + torch.where(record.cut[:, None], 0.0, rest)
        present = record.turns >= 0
        pairs = zip(record.turns[present].tolist(), judged[present].tolist(), strict=True)
        return to_credit((turns[place].id, value) for place, value in pairs)

    def fitted(self, evidence: Evidence) -> Fitted[N]:
        """Return the networks, made now if this is the first step."""
        if self._fitted is None:
            seats = [pair for trajectory in evidence.trajectories for pair in trajectory.deal.seats.items()]
            agents = dict.fromkeys(agent for agent, role in seats if role not in evidence.rules)
            roles = sorted({role for _, role in seats} - evidence.rules)
            layout = Layout(tuple(agents), tuple(roles), self.settings.dimensions)
            self._fitted = Fitted(self, layout, (), evidence.seed)
        return self._fitted

    def rounds(self, evidence: Evidence) -> list[Round]:
        """Return the rounds of all teams, episode by episode."""
        return [
            each
            for trajectory in evidence.trajectories
            for team in self.settings.teams_of(trajectory, evidence)
            for each in rounds(trajectory, team, self.settings.rounds, self.settings.along)
        ]

    def metrics(self) -> Metrics:
        """Return the mean loss of the last fit, and the explained share of the targets' variance (`ahead`: before)."""
        return self._fitted.metrics if self._fitted else {}

    def state_dict(self) -> dict[str, Any]:
        return self._fitted.state_dict() if self._fitted else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._fitted = Fitted.from_state(self, state) if state else None


class Fitted(Generic[N]):
    """Networks that are fitted to the rounds of recent steps, each time a step is added."""

    def __init__(self, rule: FittedRule[N], layout: Layout, kinds: Sequence[Kind], seed: int) -> None:
        self._rule, self._fit, self._seed = rule, rule.settings.fit, seed
        self.encoder = Encoder(layout, rule.settings.features == "hidden", kinds)
        with seeded(seed, "mixing"):
            self.networks = rule.make_networks(layout)
        self._target = deepcopy(self.networks)
        self._memory: list[Record] = []
        self._steps = self._updates = 0
        """Steps of the run that were added; gradient steps."""
        self._moments: dict[str, Any] = {}
        """The optimizer's, by parameter."""
        self.metrics: Metrics = {}
        self._grow(kinds)

    def record(self, played: Sequence[Round], evidence: Evidence) -> tuple[Record, list[Turn]]:
        """Return rounds as tensors, and their turns [N]; the networks can read them.

        Raises:
            ValueError: if the targets depend on moves that are not listed.
        """
        for turn in (turn for each in played for turn in each.turns) if self._rule.options else ():
            if not turn.request.options:
                raise ValueError(
                    f"targets: 'max' needs every move listed, but role {turn.role!r} may say any text (turn "
                    f"{turn.id}); choices: returns"
                )
        known = len(self.encoder.kinds)
        record, turns = self.encoder(played, evidence.readings, options=self._rule.options)
        self._grow(self.encoder.kinds[known:])
        if self._rule.settings.truncated == "end":
            record = replace(record, cut=torch.zeros_like(record.cut))
        return record, turns

    def fit(self, record: Record) -> None:
        """Remember a step's record, and fit the networks to it and to those before."""
        ahead = self._explained(record) if self._steps else None
        loss = self._descend(record)
        figures = {"loss": loss, "explained_ahead": ahead, "explained": self._explained(record)}
        name = type(self._rule.settings).__name__.lower()
        self.metrics = {f"credit/{name}/{key}": value for key, value in figures.items() if value is not None}

    def _grow(self, kinds: Sequence[Kind]) -> None:
        """Read these kinds as well, with weights that depend on the seed and the kind alone."""
        for kind in kinds:
            for networks in (self.networks, self._target):
                with seeded(self._seed, "mixing", *kind):
                    networks.grow(kind)

    def _descend(self, record: Record) -> float:
        """Remember a step and fit; return the mean loss of the gradient steps."""
        self._memory = [*self._memory, record][-self._fit.memory :]
        joined = join(self._memory)
        # Made anew from its moments each time, since the networks may have grown.
        descent, losses = Descent(self._fit, self.networks, self._moments), list[Tensor]()
        targets, known = None, (~joined.cut).nonzero()[:, 0]
        for places in islice(self._minibatches(known), self._fit.updates):
            targets = targets or self._targets(joined)
            losses.append(descent(self.networks.loss(RoundBatch(joined, places), targets(places))))
            self._updates += 1
            if self._updates % self._fit.target_every == 0:
                self._target.load_state_dict(self.networks.state_dict())
                targets = None
        self._moments, self._steps = descent.moments(), self._steps + 1
        return float(torch.stack(losses).mean()) if losses else 0.0

    @torch.no_grad()
    def _explained(self, record: Record) -> float | None:
        """Return 1 - Var(target - Q_tot) / Var(target) over the rounds of `record` that are fitted; None if all targets
        are equal."""
        known = (~record.cut).nonzero()[:, 0]
        if not len(known):
            return None
        targets = self._targets(record)(known)
        spread = float(targets.var(correction=0))
        error = targets - self.networks.total(RoundBatch(record, known))
        return 1 - float(error.var(correction=0)) / spread if spread > 0 else None

    def _targets(self, record: Record) -> Targets:
        return self._rule.targets(record, self.networks, self._target)

    def _minibatches(self, rounds: Tensor) -> Iterator[Tensor]:
        """Yield parts of `rounds` in a random order, again and again; if one part holds all, in their own order."""
        generator = torch.Generator().manual_seed(seed_of(self._seed, "mixing", "minibatches", self._steps) >> 1)
        parts = -(-len(rounds) // self._fit.batch)
        while parts:
            order = rounds[torch.randperm(len(rounds), generator=generator)] if parts > 1 else rounds
            yield from order.tensor_split(parts)

    def state_dict(self) -> dict[str, Any]:
        fitter = {
            "online": _copied(self.networks),
            "target": _copied(self._target),
            "moments": {name: dict(moments) for name, moments in self._moments.items()},
            "memory": [record.state_dict() for record in self._memory],
            "steps": self._steps,
            "updates": self._updates,
        }
        layout, kinds = asdict(self.encoder.layout), [list(kind) for kind in self.encoder.kinds]
        return {"seed": str(self._seed), "layout": layout, "kinds": kinds, "fitter": fitter}

    @classmethod
    def from_state(cls, rule: FittedRule[N], state: Mapping[str, Any]) -> Fitted[N]:
        """Return the networks whose `state_dict` this is."""
        seats, roles, dimensions = (state["layout"][name] for name in ("seats", "roles", "dimensions"))
        kinds = [Kind(role, int(hidden)) for role, hidden in state["kinds"]]
        fitted = cls(rule, Layout(tuple(seats), tuple(roles), int(dimensions)), kinds, int(state["seed"]))
        fitter = state["fitter"]
        for name in ("online", "target"):
            expect_alike(fitter[name], fitted.networks.state_dict(), f"{name} networks of credit do not fit")
        fitted.networks.load_state_dict(fitter["online"])
        fitted._target.load_state_dict(fitter["target"])
        fitted._moments = {name: dict(moments) for name, moments in fitter["moments"].items()}
        fitted._memory = [Record.from_state(record) for record in fitter["memory"]]
        fitted._steps, fitted._updates = int(fitter["steps"]), int(fitter["updates"])
        return fitted


def _copied(networks: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in networks.state_dict().items()}


class Descent:
    """Adam, or RMSprop as in pymarl, with the gradient's norm limited."""

    def __init__(self, fit: Fit, networks: nn.Module, moments: Mapping[str, Any]) -> None:
        """`moments`: of the parameters that were stepped before; the rest start anew."""
        self._named = dict(networks.named_parameters())
        self._max_norm = fit.max_norm
        parameters = list(self._named.values())
        if fit.optimizer == "adam":
            self._optimizer: torch.optim.Optimizer = torch.optim.Adam(parameters, lr=fit.lr, fused=True)
        else:
            self._optimizer = torch.optim.RMSprop(parameters, lr=fit.lr, alpha=0.99, eps=1e-5)
        indexed = {i: dict(moments[name]) for i, name in enumerate(self._named) if name in moments}
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": indexed, "param_groups": groups})

    def __call__(self, loss: Tensor) -> Tensor:
        """Make one step; return the loss before it."""
        loss.backward()
        nn.utils.clip_grad_norm_(self._named.values(), self._max_norm)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return loss.detach()

    def moments(self) -> dict[str, Any]:
        """Return parameter -> its moments and step count, copied."""
        names, state = list(self._named), self._optimizer.state_dict()["state"]
        return {names[i]: {key: value.clone() for key, value in moments.items()} for i, moments in state.items()}
