"""Published and hand-computed credit that the rules must reproduce in simulated games."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from statistics import fmean
from typing import Any

from marl.core.graph import Trajectory
from marl.core.plugins import find_plugin
from marl.core.types import Deal
from marl.credit_stage.stage import CreditStage
from marl.engines.scripted import Random
from marl.evaluation.game_tree import GameTreeNode, build_game_tree
from marl.protocols import Evidence, GameConfig, RoleConfig
from marl.rollout.casting import RoleRequestBuilder
from marl.rollout.episode import Episode
from marl.rollout.simulator import RolloutSimulator
from marl.scenario.schema import CreditConfig

Numbers = Sequence[float]
Moves = tuple[str, ...]
"""Moves of one episode, in order of play."""


@dataclass(frozen=True, slots=True)
class ExpectedAndComputedCredit:
    """Expected credit in a case from the literature, and the credit that a rule computes there."""

    case: str
    method: str
    expected: Numbers
    computed: Numbers
    tolerance: float
    """Maximum absolute difference between an expected and a computed number."""

    @property
    def recovered(self) -> bool:
        """True if every number of `computed` equals its counterpart in `expected` within the tolerance."""
        if len(self.expected) != len(self.computed):
            return False
        pairs = zip(self.expected, self.computed, strict=True)
        return all(abs(expected - computed) <= self.tolerance for expected, computed in pairs)


class CreditRuleOnTestGame:
    """A game with uniformly random agents, and a credit rule that assigns credit to given episodes.

    `rule` has the form of the section `credit:` of a scenario.
    """

    def __init__(self, game: Mapping[str, Any], rule: Mapping[str, Any], seed: int = 0) -> None:
        config, role = find_plugin("games", game["kind"], GameConfig), find_plugin("roles", "player", RoleConfig)
        self.config: GameConfig = config.model_validate(game)  # type: ignore[assignment]
        player: RoleConfig = role.model_validate({"kind": "player", "policy": "actor"})  # type: ignore[assignment]
        casting = RoleRequestBuilder({"player": player}, seed)
        self.simulator = RolloutSimulator(self.config, casting, {"actor": Random().build(None)})
        self.seats = dict.fromkeys(self.config.build().possible_agents, "player")
        self._credit_stage = CreditStage(CreditConfig.model_validate({"baseline": {"kind": "none"}, **rule}))

    def play_moves(self, episode_name: str, moves: Moves) -> Trajectory:
        """Return the episode `episode_name` in which the agents make `moves`."""
        episode = Episode(self.config.build(), Deal(episode_name, "known", 0, self.seats), self.simulator.casting)
        for move in moves:
            episode.force_action(move)
        return episode.trajectory

    def __call__(self, *episodes: Moves) -> list[list[float]]:
        """Return the credit of every turn of each episode, as if all `episodes` were played in one training step."""
        trajectories = [self.play_moves(f"course.{index}", moves) for index, moves in enumerate(episodes)]
        seed = self.simulator.casting.seed
        evidence = Evidence(trajectories, self.config.kind, simulator=self.simulator, seed=seed)
        credit = self._credit_stage(evidence).credit
        values = []
        for trajectory in trajectories:
            values.append([credit[turn.id].value for turn in trajectory.turns])
        return values


def _move_sequences(node: GameTreeNode) -> Iterator[Moves]:
    """Yield every sequence of legal moves from `node` to the end of the game."""
    if node.situation is None:
        yield ()
    for move, child in node.moves.items():
        for later_moves in _move_sequences(child):
            yield (move, *later_moves)


_SHAPLEY: Mapping[str, Numbers] = {
    "majority": (1 / 3, 1 / 3, 1 / 3),
    "glove": (2 / 3, 1 / 6, 1 / 6),
    "voting": (5 / 12, 1 / 4, 1 / 4, 1 / 12),
    "veto": (2 / 3, 1 / 6, 1 / 6),
    "dummy": (1 / 3, 1 / 3, 1 / 3, 0.0),
    "airport": (1 / 3, 5 / 6, 11 / 6),
    "additive": (1.0, 2.0, 3.0),
}
"""Preset of the coalition game -> Shapley values of its players."""
_MEAN = {"common": "mean"}
"""Setting of an `assign` rule: it credits the team's mean return."""


_ROLE_AVERAGE_ADVANTAGES = {
    "update_first": (0.95, -0.9975, 0.952375, 0.90475625, -0.0904815625),
    "subtract_first": (1.0, -1.05, 1.0025, 0.952375, -0.09524375),
}
"""Setting `order` of the baseline `role_average` -> advantages for the rewards 1, -1, 1, 1, 0."""
_COMA_ADVANTAGES = (-0.5, -0.5, -3.5, 0.5, 0.5, -3.5, 3.5, 3.5)
"""COMA's advantages of both agents in the joint moves aa, ab, ba and bb of the payoffs [[0, 1], [1, 8]]."""
_FIT = {"lr": 1e-2, "updates": 250, "target_every": 50, "memory": 1}
"""Training settings of a mixer's networks. All episodes are in one minibatch."""


def compute_credit_of_known_cases(seeds: Sequence[int]) -> Iterator[ExpectedAndComputedCredit]:
    """Yield each credit rule's check against a known answer. Rules that fit networks run once with each of `seeds`."""
    # Known answers: Shapley values of coalition games, and marginal credit in AND and OR games of three agents.
    shapley = {"assign": {"kind": "shapley", "default": "out", **_MEAN}}
    for preset, expected in _SHAPLEY.items():
        [credit] = CreditRuleOnTestGame({"kind": "coalition", "preset": preset}, shapley)(("in",) * len(expected))
        yield ExpectedAndComputedCredit(f"Shapley: {preset}", "shapley", expected, credit, 1e-9)
    for table, alone in (("and", 1.0), ("or", 0.0)):
        for kind, marginal in (("shapley", 1 / 3), ("leave_one_out", alone)):
            rule = {"assign": {"kind": kind, "default": "a", **_MEAN}}
            [credit] = CreditRuleOnTestGame({"kind": "matrix", "table": table}, rule)(("b", "b", "b"))
            yield ExpectedAndComputedCredit(f"{table.upper()} of 3", kind, (marginal,) * 3, credit, 1e-9)
    # Known answers: SPIRAL's role-average advantages of a short series, and advantage 0 if all returns are equal.
    game = {"kind": "matrix", "table": [1, -1, 0]}
    for order, expected in _ROLE_AVERAGE_ADVANTAGES.items():
        case = CreditRuleOnTestGame(game, {"baseline": {"kind": "role_average", "alpha": 0.95, "order": order}})
        credit = [*chain(*case(("a",), ("b",), ("a",), ("a",), ("c",)))]
        yield ExpectedAndComputedCredit(f"RAE, {order}", "role_average", expected, credit, 1e-9)
    for kind in ("group", "rloo", "agent_group", "agent_turn_group", "joint", "decoupled", "whiten"):
        credit = []
        # 0.1, 0.3 and 0.7 are inexact in binary, so a mean with a wrong last bit gives an advantage other than 0.
        for number in (0.1, 0.3, 0.7):
            case = CreditRuleOnTestGame({"kind": "matrix", "table": [number]}, {"baseline": {"kind": kind}})
            credit += chain(*case(*[("a",)] * 7))
        yield ExpectedAndComputedCredit("a constant group", kind, (0.0,) * 21, credit, 0.0)
    # Known answers: COMA's advantages in a 2 x 2 matrix game, by the rules `difference` and `coma`.
    rules = {
        "difference": ({"against": "policy"}, 1e-9),
        "coma": ({"features": "text", "rest": "drop", "fit": {**_FIT, "updates": 500}}, 0.2),
    }
    for kind, (settings, tolerance) in rules.items():
        case = CreditRuleOnTestGame(
            {"kind": "matrix", "table": "qmix_2b"}, {"assign": {"kind": kind, **settings, **_MEAN}}
        )
        credit = [*chain(*case(*product("ab", repeat=2)))]
        yield ExpectedAndComputedCredit("COMA: [[0, 1], [1, 8]]", kind, _COMA_ADVANTAGES, credit, tolerance)
    yield from _compute_stopping_game_bias()
    yield from _compute_mixer_payoffs(seeds)


def _compute_stopping_game_bias() -> Iterator[ExpectedAndComputedCredit]:
    """Yield each rule's bias towards continuing in the stopping game, whose first moves are equally good."""
    process = {"kind": "process", "rewards": ["intermediate"]}
    rules: Mapping[str, Mapping[str, Any]] = {
        "outcome / group": {"baseline": {"kind": "group"}},
        "outcome to go / group": {"assign": {"kind": "outcome", "to_go": True}, "baseline": {"kind": "group"}},
        "outcome / agent_turn_group": {"baseline": {"kind": "agent_turn_group"}},
        "process (sum) / rloo": {"assign": process, "baseline": {"kind": "rloo"}},
        "process (decoupled)": {"assign": {**process, "combine": "decoupled"}},
        "process (prime_paper)": {"assign": {**process, "combine": "prime_paper"}},
    }
    copies = 64
    episodes = [("stop",), ("stop",), ("go", "stop"), ("go", "go")] * copies
    for name, rule in rules.items():
        first_credit: dict[str, list[float]] = {"stop": [], "go": []}
        for moves, credit in zip(episodes, CreditRuleOnTestGame({"kind": "stopping"}, rule)(*episodes), strict=True):
            first_credit[moves[0]].append(credit[0])
        # With fixed shares of moves, a leave-one-out baseline depends on the left-out move; hence a tolerance above 0.
        bias = fmean(first_credit["go"]) - fmean(first_credit["stop"])
        yield ExpectedAndComputedCredit("stopping bias", name, (0.0,), (bias,), 1 / copies)


_SLOW_FIT = {**_FIT, "lr": 1e-3, "updates": 400}
"""Settings with which QMIX ends at PyMARL's solution. With a higher learning rate some seeds leave the additive fit of
the climbing game for a better fit, whose best move has a payoff of 6."""
_PREFERRED_PAYOFFS: Mapping[str, Mapping[str, float]] = {
    "two-step": {"vdn": 7.0, "qmix": 8.0},
    "climbing": {"vdn": 5.0, "qmix": 5.0},
    "qtran": {"vdn": 0.0, "qmix": 0.0},
    "penalty": {"vdn": 2.0, "qmix": 2.0},
}
"""Game -> rule -> payoff if every agent makes the move with its highest credit, by PyMARL's mixers.

The penalty game has k = -100.
"""


def _compute_mixer_payoffs(seeds: Sequence[int]) -> Iterator[ExpectedAndComputedCredit]:
    """Yield the payoffs of the moves that VDN and QMIX prefer in published games, as fitted with each of `seeds`."""
    base: dict[str, Any] = {"features": "text", "rest": "drop", "fit": _SLOW_FIT, **_MEAN}
    # In the two-step game, the first move pays only through the values of the second step, so targets bootstrap.
    longer = {"targets": "max", "gamma": 0.99, "fit": {**_FIT, "lr": 5e-3, "updates": 500}}
    for name, payoffs in _PREFERRED_PAYOFFS.items():
        game = {"kind": "two_step"} if name == "two-step" else {"kind": "matrix", "table": name}
        settings = base | longer if name == "two-step" else base
        for kind, expected in payoffs.items():
            rule = {"assign": {"kind": kind, **settings}}
            computed = [_payoff_of_most_credited_moves(CreditRuleOnTestGame(game, rule, seed)) for seed in seeds]
            case = f"{name}: what is picked, {len(seeds)} seeds"
            yield ExpectedAndComputedCredit(case, kind, (expected,) * len(seeds), computed, 1e-9)


def _payoff_of_most_credited_moves(case: CreditRuleOnTestGame) -> float:
    """Return the team's payoff if every agent makes the move with its highest mean credit in each situation."""
    sequences: list[Moves] = []
    for _, root in build_game_tree(case.config, case.simulator.casting, case.seats).roots:
        sequences += _move_sequences(root)
    trajectories = [case.play_moves("", moves) for moves in sequences]
    credit: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for trajectory, values in zip(trajectories, case(*sequences), strict=True):
        for turn, value in zip(trajectory.turns, values, strict=True):
            credit[turn.agent, turn.request.state][turn.action or ""].append(value)

    best = {}
    for situation, credit_of_moves in credit.items():
        means = {move: fmean(values) for move, values in credit_of_moves.items()}
        best[situation] = max(means, key=means.__getitem__)
    preferred = []
    for trajectory in trajectories:
        if all(best[turn.agent, turn.request.state] == turn.action for turn in trajectory.turns):
            preferred.append(trajectory)
    # Every sequence of moves was played once, so exactly one episode has only preferred moves.
    [episode] = preferred
    return fmean(episode.returns.get(agent, 0.0) for agent in case.seats)
