"""Base of the rules that fit networks during a run: targets, replay of recent steps, target network, state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, replace
from itertools import islice
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from marl.core.seeds import seed_of
from marl.core.state import check_same_tensors
from marl.core.types import Credit, Metrics, Turn
from marl.credit.assign.fitted import Fit, FittedAssign
from marl.credit.assign.teams import credit_from_first
from marl.credit.mixing.networks import Networks, RoundBatch, UtilityNetworks
from marl.credit.mixing.round_tensors import Encoder, FeatureLayout, RoundTensors, TurnKind, join
from marl.credit.mixing.rounds import Round, rounds
from marl.protocols import Evidence

N = TypeVar("N", bound=Networks)
Targets = Callable[[Tensor], Tensor]
"""Indices of rounds [B] -> their targets [B]."""


@torch.no_grad()
def lambda_returns(record: RoundTensors, target: Networks, gamma: float, lam: float) -> Tensor:
    """Return the targets [M]: G_t = r_t + gamma [(1 - lam) Q_target(t + 1) + lam G_(t + 1)]; in an episode's last round
    r_t, or Q_target(t) if the round is `cut`."""
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
def double_q_targets(
    record: RoundTensors, rounds: Tensor, online: UtilityNetworks, target: UtilityNetworks, gamma: float
) -> Tensor:
    """Return the targets [B]: r + gamma Q_target(t + 1) at the moves that `online` prefers; r in an episode's last
    round.

    Each agent's preferred move maximises its own utility: with a monotonic mixer these moves are the joint maximum.
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
    """Seed torch's random numbers from `parts` within the block, and restore the generator's state after it."""
    with torch.random.fork_rng(devices=[]):
        # Torch takes a signed seed, so one bit is dropped.
        torch.manual_seed(seed_of(*parts) >> 1)
        yield


class FittedRule(Generic[N]):
    """Base of the built rules: fits the networks to a step, then calls `credit` for the step's turns."""

    options = False
    """True if the targets depend on the values of other moves, so that all legal moves must be listed."""

    def __init__(self, settings: FittedAssign) -> None:
        self.settings, self.needs = settings, settings.needs
        self._fitted: FittedNetworks[N] | None = None

    def make_networks(self, layout: FeatureLayout) -> N:
        """Return new networks; subclasses override this."""
        raise NotImplementedError

    def targets(self, record: RoundTensors, online: N, target: N) -> Targets:
        """Return the targets of a record, from the networks and the target networks."""
        returns = lambda_returns(record, target, self.settings.gamma, self.settings.lam)
        return lambda indices: returns[indices]

    def credit(
        self, fitted: FittedNetworks[N], evidence: Evidence, record: RoundTensors, turns: Sequence[Turn]
    ) -> Tensor:
        """Return the credit of each round's turns, [M, A]; subclasses override this."""
        raise NotImplementedError

    def predict(self, networks: N, record: RoundTensors) -> Tensor:
        """Return the networks' value of each round or of each turn, [M, 1 or A]; subclasses override this."""
        raise NotImplementedError

    def __call__(self, evidence: Evidence) -> Credit:
        """Fit, then return the credit of every turn of the teams; a turn of several forks gets it from the first fork.

        The networks are fitted to the step first: on synthetic teams of two with noisy rewards, this credit and the
        credit of networks before the fit had the same correlation with the truth within 0.02 (0.77 and 0.75 for VDN,
        0.88 both for QMIX; outcomes themselves 0.23), and even the first step gets credit from fitted networks.
        """
        step_rounds = self.rounds(evidence)
        if not step_rounds:
            return {}
        fitted = self.get_networks(evidence)
        record, turns = fitted.encode(step_rounds, evidence)
        fitted.fit(record)
        values = self.credit(fitted, evidence, record, turns)
        if self.settings.rest == "keep":
            # The residual: rewards from each round on, minus the networks' value; unknown for a round that was cut.
            with torch.no_grad():
                returns = lambda_returns(record, fitted.networks, self.settings.gamma, 1.0)
                residual = returns[:, None] - self.predict(fitted.networks, record)
                values = values + torch.where(record.cut[:, None], 0.0, residual)
        present = record.turns >= 0
        pairs = zip(record.turns[present].tolist(), values[present].tolist(), strict=True)
        return credit_from_first((turns[index].id, value) for index, value in pairs)

    def get_networks(self, evidence: Evidence) -> FittedNetworks[N]:
        """Return the networks; the first step creates them, for its agents and roles."""
        if self._fitted is None:
            roles: dict[str, str] = {}
            agents: dict[str, None] = {}
            for trajectory in evidence.trajectories:
                for agent, role in trajectory.deal.seats.items():
                    if role not in evidence.rule_based_roles:
                        agents[agent], roles[role] = None, role
            layout = FeatureLayout(tuple(agents), tuple(sorted(roles)), self.settings.dimensions)
            self._fitted = FittedNetworks(self, layout, (), evidence.seed)
        return self._fitted

    def rounds(self, evidence: Evidence) -> list[Round]:
        """Return the rounds of all teams, episode by episode."""
        all_rounds: list[Round] = []
        for trajectory in evidence.trajectories:
            for team in self.settings.teams_of(trajectory, evidence):
                all_rounds += rounds(trajectory, team, self.settings.rounds, self.settings.along)
        return all_rounds

    def metrics(self) -> Metrics:
        """Return the mean loss of the last fit, and the explained share of the targets' variance (`ahead`: before
        it)."""
        return self._fitted.metrics if self._fitted else {}

    def state_dict(self) -> dict[str, Any]:
        return self._fitted.state_dict() if self._fitted else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._fitted = FittedNetworks.from_state(self, state) if state else None


class FittedNetworks(Generic[N]):
    """Networks that are fitted to the rounds of recent steps, whenever a step is added."""

    def __init__(self, rule: FittedRule[N], layout: FeatureLayout, kinds: Sequence[TurnKind], seed: int) -> None:
        self._rule, self._fit, self._seed = rule, rule.settings.fit, seed
        self.encoder = Encoder(layout, rule.settings.features == "hidden", kinds)
        with seeded(seed, "mixing"):
            self.networks = rule.make_networks(layout)
        self._target = deepcopy(self.networks)
        self._memory: list[RoundTensors] = []
        self._steps = self._updates = 0
        """Number of added steps of the run, and number of gradient steps."""
        self._moments: dict[str, Any] = {}
        """Moments of the optimizer, by parameter."""
        self.metrics: Metrics = {}
        self._grow(kinds)

    def encode(self, step_rounds: Sequence[Round], evidence: Evidence) -> tuple[RoundTensors, list[Turn]]:
        """Return rounds as tensors, and their turns [N]; the networks grow for new kinds of turns.

        Raises:
            ValueError: if the targets depend on moves that are not listed.
        """
        for round_ in step_rounds if self._rule.options else ():
            for turn in round_.turns:
                if not turn.request.options:
                    raise ValueError(
                        f"targets: 'max' needs every move listed, but role {turn.role!r} may say any text (turn "
                        f"{turn.id}); choices: returns"
                    )
        count = len(self.encoder.kinds)
        record, turns = self.encoder(step_rounds, evidence.readings, options=self._rule.options)
        self._grow(self.encoder.kinds[count:])
        if self._rule.settings.truncated == "end":
            record = replace(record, cut=torch.zeros_like(record.cut))
        return record, turns

    def fit(self, record: RoundTensors) -> None:
        """Add a step's record to the memory, and fit the networks to the records in it."""
        ahead = self._explained(record) if self._steps else None
        loss = self._descend(record)
        # `explained_ahead` is measured before the fit: the networks have not seen these rounds yet.
        figures = {"loss": loss, "explained_ahead": ahead, "explained": self._explained(record)}
        name = type(self._rule.settings).__name__.lower()
        self.metrics = {f"credit/{name}/{key}": value for key, value in figures.items() if value is not None}

    def _grow(self, kinds: Sequence[TurnKind]) -> None:
        """Add inputs for new kinds of turns, with initial weights that depend on the seed and the kind alone."""
        for kind in kinds:
            for networks in (self.networks, self._target):
                with seeded(self._seed, "mixing", *kind):
                    networks.grow(kind)

    def _descend(self, record: RoundTensors) -> float:
        """Add a record to the memory and fit; return the mean loss of the gradient steps."""
        self._memory = [*self._memory, record][-self._fit.memory :]
        joined = join(self._memory)
        # A new optimizer from the saved moments each time, since the networks may have new parameters.
        optimizer, losses = NetworkOptimizer(self._fit, self.networks, self._moments), list[Tensor]()
        targets, fitted_rounds = None, (~joined.cut).nonzero()[:, 0]
        for indices in islice(self._minibatches(fitted_rounds), self._fit.updates):
            targets = targets or self._targets(joined)
            losses.append(optimizer(self.networks.loss(RoundBatch(joined, indices), targets(indices))))
            self._updates += 1
            if self._updates % self._fit.target_every == 0:
                self._target.load_state_dict(self.networks.state_dict())
                targets = None
        self._moments, self._steps = optimizer.moments(), self._steps + 1
        return float(torch.stack(losses).mean()) if losses else 0.0

    @torch.no_grad()
    def _explained(self, record: RoundTensors) -> float | None:
        """Return 1 - Var(target - Q_tot) / Var(target) over the fitted rounds of `record`, or None if all targets are
        equal."""
        fitted_rounds = (~record.cut).nonzero()[:, 0]
        if not len(fitted_rounds):
            return None
        targets = self._targets(record)(fitted_rounds)
        spread = float(targets.var(correction=0))
        error = targets - self.networks.total(RoundBatch(record, fitted_rounds))
        return 1 - float(error.var(correction=0)) / spread if spread > 0 else None

    def _targets(self, record: RoundTensors) -> Targets:
        return self._rule.targets(record, self.networks, self._target)

    def _minibatches(self, rounds: Tensor) -> Iterator[Tensor]:
        """Yield minibatches of `rounds` without end, shuffled in every epoch; a single minibatch keeps the given
        order."""
        generator = torch.Generator().manual_seed(seed_of(self._seed, "mixing", "minibatches", self._steps) >> 1)
        count = -(-len(rounds) // self._fit.batch)
        while count:
            order = rounds[torch.randperm(len(rounds), generator=generator)] if count > 1 else rounds
            yield from order.tensor_split(count)

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
    def from_state(cls, rule: FittedRule[N], state: Mapping[str, Any]) -> FittedNetworks[N]:
        """Return the networks with the given `state_dict`."""
        seats, roles, dimensions = (state["layout"][name] for name in ("seats", "roles", "dimensions"))
        kinds = [TurnKind(role, int(hidden)) for role, hidden in state["kinds"]]
        fitted = cls(rule, FeatureLayout(tuple(seats), tuple(roles), int(dimensions)), kinds, int(state["seed"]))
        fitter = state["fitter"]
        for name in ("online", "target"):
            check_same_tensors(fitter[name], fitted.networks.state_dict(), f"{name} networks of credit do not fit")
        fitted.networks.load_state_dict(fitter["online"])
        fitted._target.load_state_dict(fitter["target"])
        fitted._moments = {name: dict(moments) for name, moments in fitter["moments"].items()}
        fitted._memory = [RoundTensors.from_state(record) for record in fitter["memory"]]
        fitted._steps, fitted._updates = int(fitter["steps"]), int(fitter["updates"])
        return fitted


def _copied(networks: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in networks.state_dict().items()}


class NetworkOptimizer:
    """Adam, or RMSprop as in pymarl, with gradient clipping by norm."""

    def __init__(self, fit: Fit, networks: nn.Module, moments: Mapping[str, Any]) -> None:
        """`moments`: moments of parameters that were updated before; other parameters start without moments."""
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
        """Make one gradient step, and return the loss before the step."""
        loss.backward()
        nn.utils.clip_grad_norm_(self._named.values(), self._max_norm)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return loss.detach()

    def moments(self) -> dict[str, Any]:
        """Return parameter -> a copy of its moments and step count."""
        names, state = list(self._named), self._optimizer.state_dict()["state"]
        return {names[i]: {key: value.clone() for key, value in moments.items()} for i, moments in state.items()}
