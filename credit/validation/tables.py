"""Published and worked-out numbers that credit rules must reproduce, each by the rule itself at a game's table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Any

from marl.engines.scripted import Random
from marl.evaluation.game_tree import Node, grow
from marl.graph import Trajectory
from marl.judging.judge import Judge
from marl.parts import find
from marl.protocols import Evidence, GameConfig, RoleConfig
from marl.rollout.casting import Cast
from marl.rollout.episode import Episode
from marl.rollout.simulator import Table
from marl.scenario.schema import CreditConfig
from marl.types import Deal

Numbers = Sequence[float]
Moves = tuple[str, ...]
Rule = Mapping[str, Any]
"""As under `credit:` in a scenario."""


@dataclass(frozen=True, slots=True)
class Fact:
    """Numbers that are known, and what a rule makes of the same case."""

    case: str
    method: str
    expected: Numbers
    found: Numbers
    tolerance: float

    @property
    def recovered(self) -> bool:
        """Whether all are as they must be."""
        pairs = zip(self.expected, self.found, strict=False)
        close = all(abs(expected - found) <= self.tolerance for expected, found in pairs)
        return len(self.expected) == len(self.found) and close


def facts(seeds: Sequence[int]) -> Iterator[Fact]:
    """All of them. `seeds`: of the rules that fit networks; each is tried with every one."""
    yield from _coalitions()
    yield from _averages()
    yield from _counterfactuals()
    yield from _stopping()
    yield from _mixers(seeds)


class Case:
    """A game at whose table every agent plays uniformly, and courses of it that are written down."""

    def __init__(self, game: Mapping[str, Any], rule: Rule, seed: int = 0) -> None:
        config, role = find("games", game["kind"], GameConfig), find("roles", "player", RoleConfig)
        self.config: GameConfig = config.model_validate(game)  # type: ignore[assignment]
        player: RoleConfig = role.model_validate({"kind": "player", "policy": "actor"})  # type: ignore[assignment]
        self.table = Table(self.config, Cast({"player": player}, seed), {"actor": Random().build(None)})
        self.seats = dict.fromkeys(self.config.build().possible_agents, "player")
        self._judge = Judge(CreditConfig.model_validate({"baseline": {"kind": "none"}, **rule}))

    def course(self, name: str, moves: Moves) -> Trajectory:
        """The episode in which these moves are made."""
        episode = Episode(self.config.build(), Deal(name, "known", 0, self.seats), self.table.cast)
        for move in moves:
            episode.force(move)
        return episode.trajectory

    def __call__(self, *courses: Moves) -> list[list[float]]:
        """The credit of every turn, course by course, when they are the episodes of one step."""
        trajectories = [self.course(f"course.{place}", moves) for place, moves in enumerate(courses)]
        self.table.hold(trajectories)
        evidence = Evidence(trajectories, self.config.kind, simulator=self.table, seed=self.table.cast.seed)
        credit = self._judge(evidence).credit
        return [[credit[turn.id].value for turn in trajectory.turns] for trajectory in trajectories]

    def whole(self) -> list[Moves]:
        """Every course there is, each once."""
        tree = grow(self.config, self.table.cast, self.seats)
        return [moves for _, root in tree.roots for moves in _courses(root)]


def _courses(node: Node) -> Iterator[Moves]:
    if node.situation is None:
        yield ()
    for move, child in node.moves.items():
        yield from ((move, *rest) for rest in _courses(child))


# --- cooperative games ----------------------------------------------------------------------------------------------

_SHAPLEY: Mapping[str, Numbers] = {
    "majority": (1 / 3, 1 / 3, 1 / 3),
    "glove": (2 / 3, 1 / 6, 1 / 6),
    "voting": (5 / 12, 1 / 4, 1 / 4, 1 / 12),
    "veto": (2 / 3, 1 / 6, 1 / 6),
    "dummy": (1 / 3, 1 / 3, 1 / 3, 0.0),
    "airport": (1 / 3, 5 / 6, 11 / 6),
    "additive": (1.0, 2.0, 3.0),
}
_MEAN = {"common": "mean"}


def _coalitions() -> Iterator[Fact]:
    shapley = {"assign": {"kind": "shapley", "default": "out", **_MEAN}}
    for preset, expected in _SHAPLEY.items():
        case = Case({"kind": "coalition", "preset": preset}, shapley)
        [found] = case(("in",) * len(expected))
        yield Fact(f"Shapley: {preset}", "shapley", expected, found, 1e-9)
    for table, alone in (("and", 1.0), ("or", 0.0)):
        for kind, expected in (("shapley", 1 / 3), ("leave_one_out", alone)):
            case = Case({"kind": "matrix", "table": table}, {"assign": {"kind": kind, "default": "a", **_MEAN}})
            [found] = case(("b", "b", "b"))
            yield Fact(f"{table.upper()} of 3", kind, (expected,) * 3, found, 1e-9)


# --- baselines --------------------------------------------------------------------------------------------------------

_RAE = {
    "update_first": (0.95, -0.9975, 0.952375, 0.90475625, -0.0904815625),
    "subtract_first": (1.0, -1.05, 1.0025, 0.952375, -0.09524375),
}


def _averages() -> Iterator[Fact]:
    paid = {"kind": "matrix", "table": [1, -1, 0]}
    for order, expected in _RAE.items():
        case = Case(paid, {"baseline": {"kind": "role_average", "alpha": 0.95, "order": order}})
        found = [value for turns in case(("a",), ("b",), ("a",), ("a",), ("c",)) for value in turns]
        yield Fact(f"RAE, {order}", "role_average", expected, found, 1e-9)
    for kind in ("group", "leave_one_out", "agent_group", "agent_turn_group", "joint", "decoupled", "whiten"):
        found = []
        for number in (0.1, 0.3, 0.7):
            case = Case({"kind": "matrix", "table": [number]}, {"baseline": {"kind": kind}})
            found += [value for turns in case(*[("a",)] * 7) for value in turns]
        yield Fact("a constant group", kind, (0.0,) * 21, found, 0.0)


# --- counterfactuals ----------------------------------------------------------------------------------------------

_COMA = (-0.5, -0.5, -3.5, 0.5, 0.5, -3.5, 3.5, 3.5)
_FIT = {"lr": 1e-2, "updates": 250, "target_every": 50, "memory": 1}
"""All courses in one minibatch."""
_SLOW = {**_FIT, "lr": 1e-3, "updates": 400}
"""Slow enough for QMIX to stay where PyMARL's does: with longer steps it leaves the additive fit of the climbing game
in some seeds, for a better one whose best move pays 6."""


def _counterfactuals() -> Iterator[Fact]:
    rules = {
        "difference": ({"against": "policy"}, 1e-9),
        "coma": ({"features": "text", "rest": "drop", "fit": {**_FIT, "updates": 500}}, 0.2),
    }
    for kind, (settings, tolerance) in rules.items():
        case = Case({"kind": "matrix", "table": "qmix_2b"}, {"assign": {"kind": kind, **settings, **_MEAN}})
        found = [value for turns in case(*product("ab", repeat=2)) for value in turns]
        yield Fact("COMA: [[0, 1], [1, 8]]", kind, _COMA, found, tolerance)


# --- stopping ---------------------------------------------------------------------------------------------------------


_COPIES = 64


def _stopping() -> Iterator[Fact]:
    """How much better going on looks than stopping, at the first step, when both are as likely: no better, so 0."""
    steps = {"kind": "process", "rewards": ["intermediate"]}
    rules: Mapping[str, Rule] = {
        "outcome / group": {"baseline": {"kind": "group"}},
        "outcome to go / group": {"assign": {"kind": "outcome", "to_go": True}, "baseline": {"kind": "group"}},
        "outcome / agent_turn_group": {"baseline": {"kind": "agent_turn_group"}},
        "process (sum) / leave_one_out": {"assign": steps, "baseline": {"kind": "leave_one_out"}},
        "process (decoupled)": {"assign": {**steps, "combine": "decoupled"}},
        "process (prime_paper)": {"assign": {**steps, "combine": "prime_paper"}},
    }
    courses = [("stop",), ("stop",), ("go", "stop"), ("go", "go")] * _COPIES
    for name, rule in rules.items():
        first: dict[str, list[float]] = {"stop": [], "go": []}
        for course, turns in zip(courses, Case({"kind": "stopping"}, rule)(*courses), strict=True):
            first[course[0]].append(turns[0])
        # A baseline that leaves one out depends on the others, whose share of moves is fixed here: hence not 0.
        yield Fact("stopping bias", name, (0.0,), (fmean(first["go"]) - fmean(first["stop"]),), 1 / _COPIES)


# --- value decomposition ----------------------------------------------------------------------------------------------

_PICKS: Mapping[str, Mapping[str, float]] = {
    "two-step": {"vdn": 7.0, "qmix": 8.0},
    "climbing": {"vdn": 5.0, "qmix": 5.0},
    "qtran": {"vdn": 0.0, "qmix": 0.0},
    "penalty": {"vdn": 2.0, "qmix": 2.0},
}
"""What is paid when every agent does what its own credit prefers, by PyMARL's mixers (penalty: k = -100)."""


def _mixers(seeds: Sequence[int]) -> Iterator[Fact]:
    for name, reached in _PICKS.items():
        game = {"kind": "two_step"} if name == "two-step" else {"kind": "matrix", "table": name}
        longer = {"targets": "max", "gamma": 0.99, "fit": {**_FIT, "lr": 5e-3, "updates": 500}}
        for kind, expected in reached.items():
            settings = {
                "features": "text",
                "rest": "drop",
                "fit": _SLOW,
                **(longer if name == "two-step" else {}),
                **_MEAN,
            }
            picked = [preferred(Case(game, {"assign": {"kind": kind, **settings}}, seed)) for seed in seeds]
            yield Fact(f"{name}: what is picked, {len(seeds)} seeds", kind, (expected,) * len(seeds), picked, 1e-9)


def preferred(case: Case) -> float:
    """What is paid if everybody makes, in each situation, the move whose mean credit is the highest."""
    courses = case.whole()
    trajectories = [case.course("", moves) for moves in courses]
    credit: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for trajectory, worths in zip(trajectories, case(*courses), strict=True):
        for turn, worth in zip(trajectory.turns, worths, strict=True):
            credit[turn.agent, turn.request.state][turn.action or ""].append(worth)

    def best(of: Mapping[str, Numbers]) -> str:
        return max(of, key=lambda move: fmean(of[move]))

    def chosen(trajectory: Trajectory) -> bool:
        return all(best(credit[turn.agent, turn.request.state]) == turn.action for turn in trajectory.turns)

    [course] = filter(chosen, trajectories)
    return fmean(course.returns.get(agent, 0.0) for agent in case.seats)
