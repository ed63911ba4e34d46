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
from marl.evaluation.game_tree import Node, build_game_tree
from marl.protocols import Evidence, GameConfig, RoleConfig
from marl.rollout.casting import RoleCasting
from marl.rollout.episode import Episode
from marl.rollout.simulator import RolloutSimulator
from marl.scenario.schema import CreditConfig

Numbers = Sequence[float]
Moves = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KnownAnswer:
    """Expected credit of a case, and the credit that a rule computes."""

    case: str
    method: str
    expected: Numbers
    computed: Numbers
    tolerance: float
    """Maximum absolute difference of two numbers."""

    @property
    def recovered(self) -> bool:
        """True if `computed` is as long as `expected`, and each number is within the tolerance."""
        pairs = zip(self.expected, self.computed, strict=False)
        close = all(abs(expected - computed) <= self.tolerance for expected, computed in pairs)
        return len(self.expected) == len(self.computed) and close


def known_answers(seeds: Sequence[int]) -> Iterator[KnownAnswer]:
    """Yield every known answer; rules that fit networks run with each of `seeds`."""
    yield from _coalitions()
    yield from _baselines()
    yield from _counterfactuals()
    yield from _stopping()
    yield from _mixers(seeds)


class SampledCase:
    """A game of uniformly random agents, in which a rule assigns credit to given episodes.

    `rule` is as under `credit:` in a scenario.
    """

    def __init__(self, game: Mapping[str, Any], rule: Mapping[str, Any], seed: int = 0) -> None:
        config, role = find_plugin("games", game["kind"], GameConfig), find_plugin("roles", "player", RoleConfig)
        self.config: GameConfig = config.model_validate(game)  # type: ignore[assignment]
        player: RoleConfig = role.model_validate({"kind": "player", "policy": "actor"})  # type: ignore[assignment]
        casting = RoleCasting({"player": player}, seed)
        self.simulator = RolloutSimulator(self.config, casting, {"actor": Random().build(None)})
        self.seats = dict.fromkeys(self.config.build().possible_agents, "player")
        self._credit_stage = CreditStage(CreditConfig.model_validate({"baseline": {"kind": "none"}, **rule}))

    def episode(self, name: str, moves: Moves) -> Trajectory:
        """Return the episode in which the agents make `moves`."""
        episode = Episode(self.config.build(), Deal(name, "known", 0, self.seats), self.simulator.casting)
        for move in moves:
            episode.force_action(move)
        return episode.trajectory

    def __call__(self, *episodes: Moves) -> list[list[float]]:
        """Return the credit of every turn of each episode; all `episodes` belong to one training step."""
        trajectories = [self.episode(f"course.{index}", moves) for index, moves in enumerate(episodes)]
        seed = self.simulator.casting.seed
        credit = self._credit_stage(
            Evidence(trajectories, self.config.kind, simulator=self.simulator, seed=seed)
        ).credit
        values = []
        for trajectory in trajectories:
            values.append([credit[turn.id].value for turn in trajectory.turns])
        return values


def _move_sequences(node: Node) -> Iterator[Moves]:
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
"""Setting under which a rule credits the team's mean return."""


def _coalitions() -> Iterator[KnownAnswer]:
    """Yield Shapley values of coalition games, and marginal credit in AND and OR of three agents."""
    shapley = {"assign": {"kind": "shapley", "default": "out", **_MEAN}}
    for preset, expected in _SHAPLEY.items():
        [credit] = SampledCase({"kind": "coalition", "preset": preset}, shapley)(("in",) * len(expected))
        yield KnownAnswer(f"Shapley: {preset}", "shapley", expected, credit, 1e-9)
    for table, alone in (("and", 1.0), ("or", 0.0)):
        for kind, expected in (("shapley", 1 / 3), ("leave_one_out", alone)):
            rule = {"assign": {"kind": kind, "default": "a", **_MEAN}}
            [credit] = SampledCase({"kind": "matrix", "table": table}, rule)(("b", "b", "b"))
            yield KnownAnswer(f"{table.upper()} of 3", kind, (expected,) * 3, credit, 1e-9)


_RAE = {
    "update_first": (0.95, -0.9975, 0.952375, 0.90475625, -0.0904815625),
    "subtract_first": (1.0, -1.05, 1.0025, 0.952375, -0.09524375),
}


def _baselines() -> Iterator[KnownAnswer]:
    """Yield the role average of SPIRAL on a short series, and the zero advantages of groups with equal returns."""
    game = {"kind": "matrix", "table": [1, -1, 0]}
    for order, expected in _RAE.items():
        case = SampledCase(game, {"baseline": {"kind": "role_average", "alpha": 0.95, "order": order}})
        credit = [*chain(*case(("a",), ("b",), ("a",), ("a",), ("c",)))]
        yield KnownAnswer(f"RAE, {order}", "role_average", expected, credit, 1e-9)
    for kind in ("group", "rloo", "agent_group", "agent_turn_group", "joint", "decoupled", "whiten"):
        credit = []
        # Numbers without an exact binary form: a mean that is off by one bit would show.
        for number in (0.1, 0.3, 0.7):
            case = SampledCase({"kind": "matrix", "table": [number]}, {"baseline": {"kind": kind}})
            credit += chain(*case(*[("a",)] * 7))
        yield KnownAnswer("a constant group", kind, (0.0,) * 21, credit, 0.0)


_COMA = (-0.5, -0.5, -3.5, 0.5, 0.5, -3.5, 3.5, 3.5)
_FIT = {"lr": 1e-2, "updates": 250, "target_every": 50, "memory": 1}
"""Settings of fitted networks: all episodes are in one minibatch."""


def _counterfactuals() -> Iterator[KnownAnswer]:
    rules = {
        "difference": ({"against": "policy"}, 1e-9),
        "coma": ({"features": "text", "rest": "drop", "fit": {**_FIT, "updates": 500}}, 0.2),
    }
    for kind, (settings, tolerance) in rules.items():
        case = SampledCase({"kind": "matrix", "table": "qmix_2b"}, {"assign": {"kind": kind, **settings, **_MEAN}})
        credit = [*chain(*case(*product("ab", repeat=2)))]
        yield KnownAnswer("COMA: [[0, 1], [1, 8]]", kind, _COMA, credit, tolerance)


def _stopping() -> Iterator[KnownAnswer]:
    """Yield the bias of rules towards continuing at the first step, where stopping and continuing are equally good."""
    steps = {"kind": "process", "rewards": ["intermediate"]}
    rules: Mapping[str, Mapping[str, Any]] = {
        "outcome / group": {"baseline": {"kind": "group"}},
        "outcome to go / group": {"assign": {"kind": "outcome", "to_go": True}, "baseline": {"kind": "group"}},
        "outcome / agent_turn_group": {"baseline": {"kind": "agent_turn_group"}},
        "process (sum) / rloo": {"assign": steps, "baseline": {"kind": "rloo"}},
        "process (decoupled)": {"assign": {**steps, "combine": "decoupled"}},
        "process (prime_paper)": {"assign": {**steps, "combine": "prime_paper"}},
    }
    copies = 64
    episodes = [("stop",), ("stop",), ("go", "stop"), ("go", "go")] * copies
    for name, rule in rules.items():
        first: dict[str, list[float]] = {"stop": [], "go": []}
        for moves, credit in zip(episodes, SampledCase({"kind": "stopping"}, rule)(*episodes), strict=True):
            first[moves[0]].append(credit[0])
        # A leave-one-out baseline depends on the other peers, whose moves have fixed shares here: the bias is not 0.
        bias = fmean(first["go"]) - fmean(first["stop"])
        yield KnownAnswer("stopping bias", name, (0.0,), (bias,), 1 / copies)


_SLOW = {**_FIT, "lr": 1e-3, "updates": 400}
"""Slow enough for QMIX to end at PyMARL's solution: with a higher learning rate some seeds leave the additive fit of
the climbing game for a better one, whose best move has a payoff of 6."""
_PREFERRED_PAYOFFS: Mapping[str, Mapping[str, float]] = {
    "two-step": {"vdn": 7.0, "qmix": 8.0},
    "climbing": {"vdn": 5.0, "qmix": 5.0},
    "qtran": {"vdn": 0.0, "qmix": 0.0},
    "penalty": {"vdn": 2.0, "qmix": 2.0},
}
"""Game -> rule -> payoff if every agent makes the move with its highest credit, by PyMARL's mixers.

The penalty game has k = -100.
"""


def _mixers(seeds: Sequence[int]) -> Iterator[KnownAnswer]:
    """Yield the payoffs of the moves that VDN and QMIX prefer in published games."""
    base: dict[str, Any] = {"features": "text", "rest": "drop", "fit": _SLOW, **_MEAN}
    # In the two-step game the first move matters only through the values of the second step.
    longer = {"targets": "max", "gamma": 0.99, "fit": {**_FIT, "lr": 5e-3, "updates": 500}}
    for name, payoffs in _PREFERRED_PAYOFFS.items():
        game = {"kind": "two_step"} if name == "two-step" else {"kind": "matrix", "table": name}
        settings = base | longer if name == "two-step" else base
        for kind, expected in payoffs.items():
            rule = {"assign": {"kind": kind, **settings}}
            computed = [preferred_payoff(SampledCase(game, rule, seed)) for seed in seeds]
            case = f"{name}: what is picked, {len(seeds)} seeds"
            yield KnownAnswer(case, kind, (expected,) * len(seeds), computed, 1e-9)


def preferred_payoff(case: SampledCase) -> float:
    """Return the team's payoff if every agent makes the move with its highest mean credit in each situation."""
    sequences: list[Moves] = []
    for _, root in build_game_tree(case.config, case.simulator.casting, case.seats).roots:
        sequences += _move_sequences(root)
    trajectories = [case.episode("", moves) for moves in sequences]
    credit: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for trajectory, values in zip(trajectories, case(*sequences), strict=True):
        for turn, value in zip(trajectory.turns, values, strict=True):
            credit[turn.agent, turn.request.state][turn.action or ""].append(value)

    best = {}
    for situation, credit_of_moves in credit.items():
        means = {move: fmean(values) for move, values in credit_of_moves.items()}
        best[situation] = max(means, key=means.__getitem__)
    # The preferred moves form exactly one play, because every sequence of moves was played.
    [episode] = [
        trajectory
        for trajectory in trajectories
        if all(best[turn.agent, turn.request.state] == turn.action for turn in trajectory.turns)
    ]
    return fmean(episode.returns.get(agent, 0.0) for agent in case.seats)
