"""How sound credit is said to be, where that is known by hand."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from marl.core.graph import Trajectory
from marl.core.types import Advantage, Completion, Credit, Deal, Message, Metrics, Request
from marl.credit.assign.teams import TeamAssign
from marl.credit_stage.diagnostics import continuation_bias_metrics, credit_rule_agreement
from marl.credit_stage.stage import CreditStage
from marl.games.kuhn_poker import KuhnPoker, KuhnPokerConfig
from marl.games.stopping import StoppingConfig
from marl.protocols import BaselineConfig, Evidence, PeerGroups, SharedProperty
from marl.scenario.load import load
from marl.scenario.schema import CreditConfig
from marl.training.placement import simulator_from_engines
from tests.support.handmade_episodes import make_episode, make_evidence
from tests.support.small_games import FunctionEngine, Pennies, PenniesConfig, make_deal, make_simulator, random_move
from tests.support.small_team_scenarios import SCENARIOS

SEATS = {"a": "x", "b": "y"}


def diagnosed(episodes: Sequence[Trajectory], **settings: Any) -> Metrics:
    """`credit/ROLE/...`, without `credit/`."""
    plain = {"assign": "outcome", "baseline": "none"}
    metrics = CreditStage(CreditConfig.model_validate(plain | settings))(make_evidence(*episodes)).metrics
    return {name.removeprefix("credit/"): value for name, value in metrics.items()}


# --- conservation, zero ----------------------------------------------------------------------------------------


def test_what_is_given_for_each_unit_paid_is_its_number_of_turns_where_each_gets_the_whole() -> None:
    paid = [("a", 2.0, 0), ("b", -1.0, 1)]
    metrics = diagnosed([make_episode("e", "abaa", paid, seats=SEATS), make_episode("f", "bab", paid, seats=SEATS)])
    # Role x: 3 turns of 2, then 1 turn of 2; role y: 1 turn of -1, then 2.
    assert metrics["x/conservation"] == (6 + 2) / 4
    assert metrics["y/conservation"] == (1 + 2) / 2
    assert (metrics["x/earned"], metrics["y/earned"]) == ((6 + 2) / 2, (-1 - 2) / 2)


def test_agents_that_are_paid_against_one_another_are_not_added_up() -> None:
    metrics = diagnosed([make_episode("e", "aba", [("a", 2.0, 0), ("b", -2.0, 1)])])
    assert metrics["player/conservation"] == (4 + 2) / 4


def test_nothing_paid_is_nothing_to_conserve() -> None:
    assert "x/conservation" not in diagnosed([make_episode("e", "ab", seats=SEATS)])


def test_scaled_rewards_are_conserved_alike() -> None:
    episodes = [make_episode("e", "aba", [("a", 3.0, 2)], seats=SEATS)]
    assert diagnosed(episodes, scale=0.1)["x/conservation"] == pytest.approx(2.0)


class ByQuarters(TeamAssign):
    """A quarter of the team's pay for each of its first turns."""

    kind: str = "by_quarters"

    def __call__(self, evidence: Evidence) -> Credit:
        return {
            turn.id: Advantage(team.total_reward(trajectory) / 4 if turn.nth == 0 else 0.0)
            for trajectory in evidence.trajectories
            for team in self.teams_in_trajectory(trajectory, evidence)
            for turn in team.turns(trajectory)
        }


@pytest.mark.parametrize(("common", "worth"), [("sum", 4.0), ("mean", 2.0)])
def test_a_team_shares_one_pot_with_all_its_roles(common: str, worth: float) -> None:
    both = [make_episode("e", "abab", [("a", 2.0, 3), ("b", 2.0, 3)], seats=SEATS)]
    metrics = diagnosed(both, assign=ByQuarters.model_validate({"common": common}))
    assert (metrics["x/conservation"], metrics["y/conservation"]) == (0.5, 0.5)
    assert metrics["x/earned"] == worth / 4


def test_who_answers_by_rule_has_no_pot() -> None:
    t = make_episode("e", "ab", [("a", 1.0, 0), ("b", 5.0, 1)], seats=SEATS)
    judge = CreditStage(CreditConfig.model_validate({"assign": ByQuarters(), "baseline": "none"}))
    metrics = judge(Evidence([t], "a_game", rule_based_roles=frozenset({"y"}))).metrics
    assert metrics["credit/x/conservation"] == 0.25
    assert "credit/y/conservation" not in metrics


def test_a_role_with_a_rule_of_its_own_is_diagnosed_by_that_rule() -> None:
    episodes = [make_episode(f"{i}", "abab", [("a", 1.0, 3), ("b", float(i), 3)], seats=SEATS) for i in range(2)]
    own = {"y": {"assign": "outcome", "baseline": {"kind": "group", "std": False}}}
    metrics = diagnosed(episodes, assign=ByQuarters(), roles=own)
    assert (metrics["x/conservation"], metrics["y/conservation"]) == (0.5, 2.0)
    assert (metrics["x/zero"], metrics["y/zero"]) == (0.5, 0.0)
    assert metrics["y/purity"] == 1.0
    assert "x/purity" not in metrics


def test_the_zero_share_counts_turns_whose_every_number_is_exactly_zero() -> None:
    episodes = [make_episode(f"{i}", "ab", [("a", 0.3, 1), ("b", float(i), 1)], seats=SEATS) for i in range(3)]
    metrics = diagnosed(episodes, baseline={"kind": "group"})
    assert metrics["x/zero"] == 1.0
    assert metrics["y/zero"] == pytest.approx(1 / 3)  # the mean itself


# --- purity ----------------------------------------------------------------------------------------------------


class Declared(BaselineConfig):
    """Says that turns with equal indices have something in common."""

    kind: str = "declared"
    like: SharedProperty | None = None

    def __call__(self, evidence: Evidence, earned: Credit) -> tuple[Credit, Metrics]:
        return dict(earned), {}

    def compared_turn_groups(self, evidence: Evidence, earned: Credit) -> PeerGroups:
        return PeerGroups(self.like, [[turn for turn in earned if turn[1] == index] for index in range(4)])


def changed(whole: Trajectory, **fields: Sequence[Any]) -> Trajectory:
    """The same episode with other fields of its turns."""
    other = Trajectory(whole.deal, whole.start)
    for index, turn in enumerate(whole.turns):
        other.add(replace(turn, **{name: values[index] for name, values in fields.items()}), ())
    other.rewards = whole.rewards
    return other


def test_groups_like_their_prompts_are_pure_where_token_ids_are_equal() -> None:
    prompts = [[(1,), (2,), (3,)], [(1,), (2,), (4,)]]
    episodes = [make_episode(f"{i}", "aab", prompts=given, seats=SEATS) for i, given in enumerate(prompts)]
    metrics = diagnosed(episodes, baseline=Declared(like="prompt"))
    assert (metrics["x/purity"], metrics["y/purity"]) == (1.0, 0.0)


def test_without_token_ids_messages_tell_prompts_apart() -> None:
    episodes = [make_episode(f"{i}", "ab", prompts=[(), ()], seats=SEATS) for i in range(2)]
    assert diagnosed(episodes, baseline=Declared(like="prompt"))["y/purity"] == 1.0
    requests = replace(episodes[1].turns[1].request, messages=(Message("user", "something else"),))
    other = changed(episodes[1], request=[episodes[1].turns[0].request, requests])
    assert diagnosed([episodes[0], other], baseline=Declared(like="prompt"))["y/purity"] == 0.0


def test_groups_like_their_problem_are_pure_where_the_keys_are_equal() -> None:
    first, second = (make_episode(f"{i}", "ab", seats=SEATS) for i in range(2))
    episodes = [changed(first, problem=["p", "q"]), changed(second, problem=["p", "r"])]
    metrics = diagnosed(episodes, baseline=Declared(like="problem"))
    assert (metrics["x/purity"], metrics["y/purity"]) == (1.0, 0.0)


def test_what_has_nobody_to_be_compared_with_or_declares_nothing_is_neither_pure_nor_impure() -> None:
    alone = make_episode("e", "ab", seats=SEATS)
    assert "x/purity" not in diagnosed([alone], baseline=Declared(like="start"))
    assert "x/purity" not in diagnosed([alone, make_episode("f", "ab", seats=SEATS)], baseline=Declared())


class MislabelledConfig(KuhnPokerConfig):
    """Kuhn poker whose start key forgets the second player's card."""

    kind: str = "mislabelled"

    def build(self) -> KuhnPoker:
        return Mislabelled(self.illegal)


class Mislabelled(KuhnPoker):
    def start_state_key(self) -> str:
        return super().start_state_key()[0]


class Unheard(FunctionEngine):
    """Without tokens, so that messages are all there is to tell prompts by."""

    def _answer(self, request: Request) -> Completion:
        return Completion(random_move(request), (), (), (), "stop")


def played(game: Any, episodes: int, **options: Any) -> list[Trajectory]:
    return make_simulator(game, Unheard(random_move)).play(
        [make_deal(f"{i}", game, i, **options) for i in range(episodes)]
    )


def test_a_game_that_gives_different_starts_one_key_is_found_out() -> None:
    group = {"kind": "group", "std": False}
    right, wrong = KuhnPokerConfig(), MislabelledConfig()
    assert diagnosed(played(right, 60), baseline=group)["player/purity"] == 1.0
    assert diagnosed(played(wrong, 60), baseline=group)["player/purity"] == 0.0
    # The key is wrong only where the deals are.
    assert diagnosed(played(wrong, 20, cards="KQ"), baseline=group)["player/purity"] == 1.0


def test_a_problem_that_differs_though_the_prompt_does_not_makes_a_start_impure() -> None:
    first, second = (make_episode(f"{i}", "ab", start="s", seats=SEATS) for i in range(2))
    metrics = diagnosed([changed(first, problem="pp"), changed(second, problem="pq")], baseline="group")
    assert metrics["x/purity"] == 0.0


def test_problems_that_were_posed_to_peers_are_starts_of_their_own() -> None:
    sage = load(SCENARIOS / "sage.yaml")

    def say(request: Request) -> str:
        asked = request.messages[-1].content
        number = request.seed % 20
        return sage.game.problems(20)[number].question if asked == "pose" else request.examples[1]

    rules = sage.build_rule_based_engines()
    play = simulator_from_engines(sage, {"team": FunctionEngine(say), "critic": FunctionEngine(say), **rules}).play
    names = [f"{start}.{i}" for start in range(2) for i in range(4)]
    played = play([Deal(name, name[0], int(name[0]), sage.seats) for name in names])
    by_start = diagnosed(played, baseline={"kind": "group", "like": "start"})
    assert (by_start["challenger/purity"], by_start["planner/purity"], by_start["critic/purity"]) == (1.0, 0.0, 0.0)
    by_problem = diagnosed(played, baseline={"kind": "group", "like": "problem"})
    assert by_problem["solver/purity"] == 1.0, "the solvers of an episode work on one problem"


def test_a_problem_that_was_dealt_to_one_and_posed_to_another_is_the_same_problem() -> None:
    first, second = (make_episode(f"{i}", "ab", start=f"{i}", seats=SEATS) for i in range(2))
    episodes = [changed(first, problem=["p", "q"]), changed(second, problem=["q", "q"])]
    baseline = {"kind": "group", "like": "problem"}
    assert diagnosed(episodes, baseline=baseline)["y/purity"] == 1.0


@pytest.mark.parametrize(("poser", "purity"), [("a", 1.0), ("b", 0.0)])
def test_a_problem_that_an_agent_posed_itself_is_no_start_of_its_own(poser: str, purity: float) -> None:
    episodes = []
    for problem in ("p", "q"):
        posing = changed(make_episode(problem, "aba", start="s", seats=SEATS), problem=["dealt", "dealt", problem])
        source, last = next(turn.id for turn in posing.turns if turn.agent == poser), posing.turns[-1].id
        posing.reads[last] = {**posing.reads[last], source: frozenset({"posed"})}
        episodes.append(posing)
    assert diagnosed(episodes, baseline="group")["x/purity"] == purity


class LuckConfig(PenniesConfig):
    """Pennies in two rounds; before the second, luck says something."""

    kind: str = "luck"
    rounds: int = 2

    def build(self) -> Luck:
        return Luck(self)


class Luck(Pennies):
    def describe_observation(self, agent: str) -> str:
        return super().describe_observation(agent) + (f", luck {self.luck}" if len(self.shown) >= 2 else "")

    def apply_action(self, action: str) -> Any:
        self.luck = self.rng.choice(("good", "bad"))
        return super().apply_action(action)


def test_luck_after_the_first_questions_does_not_make_a_start_impure() -> None:
    episodes = played(LuckConfig(), 40)
    second = [turn.request.messages[-1].content for t in episodes for turn in t.turns if turn.nth]
    assert any("good" in requests for requests in second)
    assert any("bad" in requests for requests in second)
    assert diagnosed(episodes, baseline="group")["player/purity"] == 1.0


# --- stopping bias ---------------------------------------------------------------------------------------------


class PerIndex(BaselineConfig):
    """A mean reward for each turn index, subtracted at the turn and again at every one before: the known mistake."""

    kind: str = "per_index"

    def __call__(self, evidence: Evidence, earned: Credit) -> tuple[Credit, Metrics]:
        paid: dict[int, list[float]] = defaultdict(list)
        for trajectory in evidence.trajectories:
            for turn, reward in zip(trajectory.turns, trajectory.rewards, strict=True):
                paid[turn.nth].append(reward.value)
        means = {nth: sum(values) / len(values) for nth, values in paid.items()}
        credit: Credit = {}
        for trajectory in evidence.trajectories:
            for turn in trajectory.turns:
                later = [means[other.nth] for other in trajectory.turns if other.nth >= turn.nth]
                credit[turn.id] = Advantage(earned[turn.id].value - sum(later))
        return credit, {}


TO_GO = {"kind": "outcome", "to_go": True}


def test_a_baseline_that_is_added_up_over_turns_is_caught_paying_for_when_to_stop() -> None:
    episodes = played(StoppingConfig(intermediate=0.4), 64)
    metrics = diagnosed(episodes, assign=TO_GO, baseline=PerIndex())
    # GROUND_TRUTHS.md: going on costs the mean of what is paid after it, here always 0.6.
    assert metrics["player/stopping_bias"] == pytest.approx(-0.6)
    assert metrics["player/stopping_bias_t"] < -100


@pytest.mark.parametrize("baseline", ["none", "group"])
def test_credit_that_follows_from_what_was_earned_has_exactly_none(baseline: str) -> None:
    metrics = diagnosed(played(StoppingConfig(intermediate=0.4), 64), assign=TO_GO, baseline=baseline)
    assert (metrics["player/stopping_bias"], metrics["player/stopping_bias_t"]) == (0.0, 0.0)


def test_a_moving_average_pays_for_nothing_but_by_chance() -> None:
    metrics = diagnosed(played(StoppingConfig(intermediate=0.4), 64), assign=TO_GO, baseline="role_average")
    assert abs(metrics["player/stopping_bias_t"]) < 4


@pytest.mark.parametrize("seed", range(3))
def test_stopping_bias_is_the_regression_with_a_line_for_every_group(seed: int) -> None:
    rng = np.random.default_rng(seed)
    keys = rng.integers(0, 5, 80)
    earned, goes_on = rng.normal(size=80), rng.integers(0, 2, 80).astype(float)
    credit = 2 * earned + 0.3 * goes_on + 0.1 * keys * earned + rng.normal(size=80)
    found = continuation_bias_metrics(keys.tolist(), list(zip(credit, earned, goes_on, strict=True)))
    # By another route: one least-squares fit of 5 intercepts, 5 slopes and going on.
    dummies = np.eye(5)[keys]
    design = np.hstack([dummies, dummies * earned[:, None], goes_on[:, None]])
    weights, *_ = np.linalg.lstsq(design, credit, rcond=None)
    noise = credit - design @ weights
    variance = noise @ noise / (80 - 11) * np.linalg.inv(design.T @ design)[-1, -1]
    assert found["stopping_bias"] == pytest.approx(weights[-1])
    assert found["stopping_bias_t"] == pytest.approx(weights[-1] / np.sqrt(variance))


def test_credit_that_is_a_line_through_what_was_earned_has_exactly_zero() -> None:
    rng = np.random.default_rng(0)
    keys, earned = rng.integers(0, 4, 60).tolist(), rng.normal(size=60) * 1e3
    columns = [(0.1 * k + 0.7 * e, e, float(g)) for k, e, g in zip(keys, earned, rng.integers(0, 2, 60), strict=True)]
    assert continuation_bias_metrics(keys, columns) == {"stopping_bias": 0.0, "stopping_bias_t": 0.0}


def test_where_nothing_can_be_told_apart_nothing_is_said() -> None:
    assert continuation_bias_metrics([], []) == {}
    assert continuation_bias_metrics([0, 0, 0, 0], [(float(i), 0.0, 1.0) for i in range(4)]) == {}  # all go on
    assert (
        continuation_bias_metrics([0, 1, 2], [(1.0, 0.0, 0.0), (2.0, 0.0, 1.0), (3.0, 0.0, 0.0)]) == {}
    )  # nobody is compared
    # What was earned tells who went on.
    assert (
        continuation_bias_metrics([0] * 4, [(1.0, 1.0, 1.0), (2.0, 0.0, 0.0), (3.0, 1.0, 1.0), (0.0, 0.0, 0.0)]) == {}
    )


# --- agreement -------------------------------------------------------------------------------------------------


def test_agreement_of_two_rules_worked_out_by_hand() -> None:
    found = credit_rule_agreement([(1.0, 1.0), (2.0, 3.0), (2.0, 2.0), (4.0, 4.0)])
    # Ranks 1, 2.5, 2.5, 4 and 1, 3, 2, 4.
    assert found["rank_correlation"] == pytest.approx(4.5 / (4.5 * 5.0) ** 0.5)
    assert found["correlation"] == pytest.approx(4.5 / (4.75 * 5.0) ** 0.5)
    assert found["difference"] == 0.25
    assert found["sign_agreement"] == 1.0


def test_signs_agree_where_both_are_nonzero_with_the_same_sign() -> None:
    pairs = [(1.0, 2.0), (-1.0, -3.0), (1.0, -1.0), (0.0, 1.0), (0.0, 0.0)]
    assert credit_rule_agreement(pairs)["sign_agreement"] == 0.5


def test_what_is_constant_correlates_with_nothing() -> None:
    assert credit_rule_agreement([(1.0, 2.0), (1.0, 3.0)]) == {"difference": 1.5, "sign_agreement": 1.0}
    assert credit_rule_agreement([]) == {}
