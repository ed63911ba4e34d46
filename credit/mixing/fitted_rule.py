"""Base of the rules that fit networks during a run: targets, replay of recent steps, target network, state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from marl.core.seeds import hash_to_seed
from marl.core.state import check_same_tensors
from marl.core.types import Credit, Metrics, Turn
from marl.credit.assign.fitted import FittedNetworkAssign
from marl.credit.assign.teams import credit_by_first_value
from marl.credit.mixing.networks import Networks, RoundBatch, UtilityNetworks
from marl.credit.mixing.round_tensors import (
    FeatureLayout,
    RoundEncoder,
    RoundTensors,
    TurnKind,
    concatenate_round_tensors,
)
from marl.credit.mixing.rounds import Round, team_rounds
from marl.protocols import Evidence

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
credit/KIND/loss | the fit's loss | mean loss of the step's fit (`vdn`, `qmix`, `coma`)
credit/KIND/explained_ahead | ratio | share of the variance of the targets explained by the networks before they
    were fitted to the step
credit/KIND/explained | ratio | the same after the fit
"""

N = TypeVar("N", bound=Networks)
TargetFunction = Callable[[Tensor], Tensor]
"""Function from the indices of rounds [B] to the targets of these rounds [B]."""


@torch.no_grad()
def lambda_returns(record: RoundTensors, target_networks: Networks, gamma: float, lam: float) -> Tensor:
    """Return the TD(lambda) targets [M] of all rounds: G_t = r_t + gamma [(1 - lam) Q_target(t + 1) + lam G_(t + 1)].

    In an episode's last round the target is r_t, or Q_target(t) if the round is `cut`.
    """
    bootstraps = lam < 1 or bool(record.cut.any())
    values = target_networks.round_values(RoundBatch(record)).tolist() if bootstraps else [0.0] * len(record.reward)
    returns, more, cut = record.reward.tolist(), record.more.tolist(), record.cut.tolist()
    for t in reversed(range(len(returns))):
        if more[t]:
            returns[t] += gamma * ((1 - lam) * values[t + 1] + lam * returns[t + 1])
        elif cut[t]:
            returns[t] = values[t]
    return torch.tensor(returns)


@torch.no_grad()
def double_q_targets(
    record: RoundTensors,
    round_indices: Tensor,
    online_networks: UtilityNetworks,
    target_networks: UtilityNetworks,
    gamma: float,
) -> Tensor:
    """Return the double-Q targets [B] of `round_indices`: r + gamma Q_target(t + 1) at the best moves under
    `online_networks`.

    In an episode's last round the target is r. Each agent's best move maximises its own utility: with a monotonic mixer
    these moves are the joint maximum.
    """
    targets, more = record.reward[round_indices].float(), record.more[round_indices]
    if bool(more.any()):
        following = RoundBatch(record, round_indices[more] + 1)
        moves = online_networks.legal_move_utilities(following).argmax(2, keepdim=True)
        q = target_networks.legal_move_utilities(following).gather(2, moves)[..., 0]
        targets[more] += gamma * target_networks.mixer(q, following.state)
    return targets


@contextmanager
def torch_seeded_by_labels(*labels: object) -> Iterator[None]:
    """Seed torch's random numbers from `labels` within the block, and restore the generator's state after it."""
    with torch.random.fork_rng(devices=[]):
        # Torch expects a signed 64-bit seed, so the lowest bit of the unsigned seed is dropped.
        torch.manual_seed(hash_to_seed(*labels) >> 1)
        yield


class FittedNetworkRule(Generic[N]):
    """Base of the rules that fit networks to a step and then credit its turns; built from `FittedNetworkAssign`."""

    needs_listed_moves = False
    """True if the targets depend on the values of other moves, so that the game must list all legal moves."""

    def __init__(self, settings: FittedNetworkAssign) -> None:
        self.settings, self.needed_reading_fields = settings, settings.needed_reading_fields
        self._fitted: FittedNetworks[N] | None = None

    def make_networks(self, layout: FeatureLayout) -> N:
        """Return new networks for turns of this layout; subclasses override this."""
        raise NotImplementedError

    def target_function(self, record: RoundTensors, online_networks: N, target_networks: N) -> TargetFunction:
        """Return a function from round indices [B] to the targets of these rounds [B].

        Args:
            record: all rounds.
            online_networks: networks that are being fitted.
            target_networks: target networks, from which returns are bootstrapped.
        """
        returns = lambda_returns(record, target_networks, self.settings.gamma, self.settings.lam)
        return lambda indices: returns[indices]

    def credit_by_seat(
        self, fitted: FittedNetworks[N], evidence: Evidence, record: RoundTensors, turns: Sequence[Turn]
    ) -> Tensor:
        """Return the credit of the turn at each seat of each round, [M, A]; subclasses override this."""
        raise NotImplementedError

    def predict_returns(self, networks: N, record: RoundTensors) -> Tensor:
        """Return the predicted return from each round on: one number per round [M, 1], or one per turn [M, A].

        Subclasses override this.
        """
        raise NotImplementedError

    def __call__(self, evidence: Evidence) -> Credit:
        """Fit the networks to the step, then return the credit of every turn of the teams.

        A turn that several forks share gets its credit in the first fork. Networks are fitted first, so that even the
        first step gets credit from fitted networks. Fitting before or after made no difference on synthetic teams of
        two with noisy rewards: correlation with the truth 0.77 and 0.75 for VDN, 0.88 both for QMIX (outcome: 0.23).
        """
        step_rounds = self.rounds_of_all_teams(evidence)
        if not step_rounds:
            return {}
        fitted = self.get_or_create_networks(evidence)
        record, turns = fitted.encode_rounds(step_rounds, evidence)
        fitted.fit(record)
        values = self.credit_by_seat(fitted, evidence, record, turns)
        if self.settings.rest == "keep":
            # The residual is the return minus the networks' prediction, and 0 for rounds that were cut off.
            with torch.no_grad():
                returns = lambda_returns(record, fitted.networks, self.settings.gamma, 1.0)
                residual = returns[:, None] - self.predict_returns(fitted.networks, record)
                values = values + torch.where(record.cut[:, None], 0.0, residual)
        present = record.turns >= 0
        pairs = zip(record.turns[present].tolist(), values[present].tolist(), strict=True)
        return credit_by_first_value((turns[index].id, value) for index, value in pairs)

    def get_or_create_networks(self, evidence: Evidence) -> FittedNetworks[N]:
        """Return the rule's networks. The first step creates the networks for its agents and roles."""
        if self._fitted is None:
            roles: set[str] = set()
            agents: dict[str, None] = {}
            for trajectory in evidence.trajectories:
                for agent in evidence.non_rule_based_agents(trajectory):
                    agents[agent] = None
                    roles.add(trajectory.deal.seats[agent])
            layout = FeatureLayout(tuple(agents), tuple(sorted(roles)), self.settings.dimensions)
            self._fitted = FittedNetworks(self, layout, (), evidence.seed)
        return self._fitted

    def rounds_of_all_teams(self, evidence: Evidence) -> list[Round]:
        """Return the rounds of all teams, episode by episode."""
        all_rounds: list[Round] = []
        for trajectory in evidence.trajectories:
            for team in self.settings.teams_in_trajectory(trajectory, evidence):
                all_rounds += team_rounds(trajectory, team, self.settings.rounds, self.settings.along)
        return all_rounds

    def metrics(self) -> Metrics:
        """Return the mean loss of the last fit, and the share of the targets' variance that the networks explain.

        `explained` is the share after the fit, and `explained_ahead` the share before the fit.
        """
        return self._fitted.metrics if self._fitted else {}

    def state_dict(self) -> dict[str, Any]:
        return self._fitted.state_dict() if self._fitted else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._fitted = FittedNetworks.from_state(self, state) if state else None


class FittedNetworks(Generic[N]):
    """Networks of one rule with their target networks, and the rounds of recent steps to which they are fitted."""

    def __init__(self, rule: FittedNetworkRule[N], layout: FeatureLayout, kinds: Sequence[TurnKind], seed: int) -> None:
        self._rule, self._fit, self._seed = rule, rule.settings.fit, seed
        self.encoder = RoundEncoder(layout, rule.settings.features == "hidden", kinds)
        with torch_seeded_by_labels(seed, "mixing"):
            self.networks = rule.make_networks(layout)
        self._target = deepcopy(self.networks)
        self._memory: list[RoundTensors] = []
        self._steps = self._updates = 0
        """Number of steps of the run that were added, and number of gradient steps."""
        self._moments: dict[str, Any] = {}
        """Parameter -> its moments and step count in the optimizer."""
        self.metrics: Metrics = {}
        self._add_turn_kinds(kinds)

    def encode_rounds(self, step_rounds: Sequence[Round], evidence: Evidence) -> tuple[RoundTensors, list[Turn]]:
        """Return `step_rounds` as tensors, and their turns [N]. The networks get input layers for new kinds of turns.

        Raises:
            ValueError: if the targets depend on moves that are not listed.
        """
        for round_ in step_rounds if self._rule.needs_listed_moves else ():
            for turn in round_.turns:
                if not turn.request.options:
                    raise ValueError(
                        f"targets: 'max' needs every move listed, but role {turn.role!r} may say any text (turn "
                        f"{turn.id}); choices: returns"
                    )
        count = len(self.encoder.kinds)
        record, turns = self.encoder(step_rounds, evidence.readings, options=self._rule.needs_listed_moves)
        self._add_turn_kinds(self.encoder.kinds[count:])
        if self._rule.settings.truncated == "end":
            record = replace(record, cut=torch.zeros_like(record.cut))
        return record, turns

    def fit(self, record: RoundTensors) -> None:
        """Add a step's record to the memory, and fit the networks to all records in the memory."""
        # The explained variance is measured before the fit, while the networks do not know the new rounds yet.
        explained_ahead = self._explained_variance_share(record) if self._steps else None
        self._memory = [*self._memory, record][-self._fit.memory :]
        joined = concatenate_round_tensors(self._memory)
        # Each fit builds a new optimizer with the saved moments, since the networks may have new parameters.
        parameters = dict(self.networks.named_parameters())
        if self._fit.optimizer == "adam":
            optimizer: torch.optim.Optimizer = torch.optim.Adam(parameters.values(), lr=self._fit.lr, fused=True)
        else:
            optimizer = torch.optim.RMSprop(parameters.values(), lr=self._fit.lr, alpha=0.99, eps=1e-5)
        # An optimizer's state dict names each parameter by its index.
        state = {i: dict(self._moments[name]) for i, name in enumerate(parameters) if name in self._moments}
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
        generator = torch.Generator().manual_seed(hash_to_seed(self._seed, "mixing", "minibatches", self._steps) >> 1)
        losses: list[Tensor] = []
        minibatches: list[Tensor] = []
        targets, fitted_rounds = None, (~joined.cut).nonzero()[:, 0]
        for _ in range(self._fit.updates if len(fitted_rounds) else 0):
            if not minibatches:
                # Rounds are shuffled in every epoch, unless a single minibatch contains all of them.
                count, order = -(-len(fitted_rounds) // self._fit.batch), fitted_rounds
                if count > 1:
                    order = fitted_rounds[torch.randperm(len(fitted_rounds), generator=generator)]
                minibatches += order.tensor_split(count)
            indices = minibatches.pop(0)
            targets = targets or self._rule.target_function(joined, self.networks, self._target)
            loss = self.networks.loss(RoundBatch(joined, indices), targets(indices))
            loss.backward()
            nn.utils.clip_grad_norm_(parameters.values(), self._fit.max_norm)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
            self._updates += 1
            if self._updates % self._fit.target_every == 0:
                self._target.load_state_dict(self.networks.state_dict())
                targets = None
        self._moments, names = {}, list(parameters)
        for index, moments in optimizer.state_dict()["state"].items():
            self._moments[names[index]] = {key: value.clone() for key, value in moments.items()}
        self._steps += 1
        mean_loss = float(torch.stack(losses).mean()) if losses else 0.0
        prefix = f"credit/{type(self._rule.settings).__name__.lower()}"
        self.metrics = {f"{prefix}/loss": mean_loss}
        explained = self._explained_variance_share(record)
        for name, share in (("explained_ahead", explained_ahead), ("explained", explained)):
            if share is not None:
                self.metrics[f"{prefix}/{name}"] = share

    def _add_turn_kinds(self, kinds: Sequence[TurnKind]) -> None:
        """Add input layers for new kinds of turns. Their initial weights depend on the seed and the kind alone."""
        for kind in kinds:
            for networks in (self.networks, self._target):
                with torch_seeded_by_labels(self._seed, "mixing", *kind):
                    networks.add_turn_kind_layers(kind)

    @torch.no_grad()
    def _explained_variance_share(self, record: RoundTensors) -> float | None:
        """Return 1 - Var(target - Q_tot) / Var(target) over the rounds of `record`, or None if all targets are equal.

        Rounds that are `cut` have no target.
        """
        fitted_rounds = (~record.cut).nonzero()[:, 0]
        if not len(fitted_rounds):
            return None
        targets = self._rule.target_function(record, self.networks, self._target)(fitted_rounds)
        spread = float(targets.var(correction=0))
        error = targets - self.networks.round_values(RoundBatch(record, fitted_rounds))
        return 1 - float(error.var(correction=0)) / spread if spread > 0 else None

    def state_dict(self) -> dict[str, Any]:
        fitter: dict[str, Any] = {}
        for name, networks in (("online", self.networks), ("target", self._target)):
            fitter[name] = {key: tensor.detach().clone() for key, tensor in networks.state_dict().items()}
        fitter |= {
            "moments": {name: dict(moments) for name, moments in self._moments.items()},
            "memory": list(map(RoundTensors.state_dict, self._memory)),
            "steps": self._steps,
            "updates": self._updates,
        }
        layout, kinds = asdict(self.encoder.layout), list(map(list, self.encoder.kinds))
        return {"seed": str(self._seed), "layout": layout, "kinds": kinds, "fitter": fitter}

    @classmethod
    def from_state(cls, rule: FittedNetworkRule[N], state: Mapping[str, Any]) -> FittedNetworks[N]:
        """Return the networks with the given `state_dict`."""
        saved = state["layout"]
        layout = FeatureLayout(tuple(saved["seats"]), tuple(saved["roles"]), int(saved["dimensions"]))
        kinds = [TurnKind(role, int(hidden)) for role, hidden in state["kinds"]]
        fitted = cls(rule, layout, kinds, int(state["seed"]))
        fitter = state["fitter"]
        for name in ("online", "target"):
            check_same_tensors(fitter[name], fitted.networks.state_dict(), f"{name} networks of credit do not fit")
        fitted.networks.load_state_dict(fitter["online"])
        fitted._target.load_state_dict(fitter["target"])
        fitted._moments = {name: dict(moments) for name, moments in fitter["moments"].items()}
        fitted._memory = list(map(RoundTensors.from_state, fitter["memory"]))
        fitted._steps, fitted._updates = int(fitter["steps"]), int(fitter["updates"])
        return fitted
