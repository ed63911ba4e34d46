"""Playing: refusals, failures, seeds, forks, games that break, engines that stay silent."""

from collections.abc import Iterable
from typing import Any

import pytest

from marl.core.graph import Trajectory
from marl.core.types import Completion, CompletionFailure, Deal, Fork, Message, Request, Ticket
from marl.engines.scripted import Tabular
from marl.games.kuhn_poker import KuhnPokerConfig
from marl.games.tic_tac_toe import TicTacToeConfig
from marl.protocols import PromptContext
from marl.roles.answering import PlayerRole
from marl.roles.base import BaseRole
from marl.rollout.episode import Episode, GameError
from marl.scenario.schema import Scenario
from marl.training.run import Run
from tests.support.small_games import (
    PAIR,
    CircleConfig,
    FailingPenniesConfig,
    FunctionEngine,
    PenniesConfig,
    make_deal,
    make_simulator,
    random_move,
)

# --- refusals --------------------------------------------------------------------------------------------------------


def kuhn(retry: int = 0, then: str = "forfeit") -> KuhnPokerConfig:
    return KuhnPokerConfig.model_validate({"illegal": {"retry": retry, "then": then}})


def told(trajectory: Trajectory) -> list[tuple[str, int, str | None]]:
    return [(turn.agent, turn.attempt, turn.action) for turn in trajectory.turns]


def mumbler(first: str) -> FunctionEngine:
    """player_0 says `first` at the first attempt; everything else is a check, fold, ... (the first legal move)."""

    def say(request: Request) -> str:
        return first if len(spoken) == 1 else next(iter((request.options or {}).values()))

    spoken: list[Request] = []
    return FunctionEngine(lambda request: (spoken.append(request), say(request))[1])


def test_a_refused_answer_is_a_turn_without_action_and_the_next_attempt_another() -> None:
    [trajectory] = make_simulator(kuhn(retry=1), mumbler("[raise]")).play([make_deal("e", kuhn(), cards="KQ")])
    assert told(trajectory) == [("player_0", 0, None), ("player_0", 1, "check"), ("player_1", 0, "check")]
    assert trajectory.turns[0].completion.text == "[raise]"
    assert trajectory.returns == {"player_0": 1.0, "player_1": -1.0}


def test_a_forfeit_ends_the_episode_with_the_refused_turn() -> None:
    [trajectory] = make_simulator(kuhn(), mumbler("")).play([make_deal("e", kuhn(), cards="KQ")])
    assert told(trajectory) == [("player_0", 0, None)]
    assert trajectory.returns == {"player_0": -2.0, "player_1": 2.0}
    assert {reward.name for reward in trajectory.rewards} == {"illegal"}
    assert trajectory.end == "terminated"


@pytest.mark.parametrize(("then", "fee"), [("penalty", 2.0), ("random", 0.0)])
def test_a_move_played_instead_is_not_recorded_as_the_agents_action(then: str, fee: float) -> None:
    [trajectory] = make_simulator(kuhn(then=then), mumbler("?")).play([make_deal("e", kuhn(then=then), cards="KQ")])
    assert told(trajectory)[0] == ("player_0", 0, None)
    assert told(trajectory)[1][0] == "player_1"
    assert sum(reward.value for reward in trajectory.rewards if reward.name == "illegal") == 0.0
    paid = [r.value for r in trajectory.rewards if r.name == "illegal" and r.agent == "player_0"]
    assert paid == ([-fee] if fee else [])


def test_a_request_that_failed_is_an_illegal_answer() -> None:
    voice = FunctionEngine(lambda request: CompletionFailure("overflow", "too long"))
    [trajectory] = make_simulator(kuhn(), voice, player=Obliging(policy="actor")).play([make_deal("e", kuhn())])
    [turn] = trajectory.turns
    assert (turn.action, turn.completion.finish, turn.completion.token_ids) == (None, "overflow", ())
    assert trajectory.returns["player_0"] == -2.0


class Obliging(BaseRole):
    """Takes silence for a check."""

    kind: str = "obliging"

    def parse(self, text: str, legal: tuple[str, ...] | None) -> str | None:
        return text or "check"


# --- seeds and order -------------------------------------------------------------------------------------------------


def seeds(voice: FunctionEngine) -> set[int]:
    return {request.seed for request in voice.requests.values()}


def test_every_question_has_a_seed_of_its_own() -> None:
    game = TicTacToeConfig.model_validate({"illegal": {"retry": 2, "then": "random"}})
    voice = FunctionEngine(lambda request: random_move(request) if request.seed % 2 else "eh")
    deals = [Deal(f"e{i}", "g", 5, dict.fromkeys(PAIR, "player"), purpose) for i in range(5) for purpose in ("train",)]
    laid = make_simulator(game, voice)
    episodes = laid.play(deals)
    forks = laid.play_forks([Fork(episodes[0], 3, n=3)])[0]
    assert len(seeds(voice)) == len(voice.requests) == sum(len(t.turns) for t in episodes + forks) - 3 * 3


def test_the_seed_depends_on_the_runs_seed_and_on_what_the_play_is_for() -> None:
    base = make_deal("e", kuhn())
    requests = []
    for seed, purpose in ((0, "train"), (0, "eval"), (0, "credit"), (1, "train"), (0, "train")):
        voice = FunctionEngine(random_move)
        make_simulator(kuhn(), voice, seed).play([Deal("e", "g", 0, base.seats, purpose)])  # type: ignore[arg-type]
        requests.append(min(seeds(voice)))
    assert len(set(requests)) == 4
    assert requests[0] == requests[4]


def test_an_episode_is_the_same_alone_and_among_a_hundred_others() -> None:
    game = TicTacToeConfig.model_validate({"openings": 0.5, "illegal": {"then": "random"}})
    deals = [make_deal(f"e{i}", game, i) for i in range(101)]
    crowd = make_simulator(game, FunctionEngine(random_move, newest_first=True, batch=7)).play(deals)
    for i in (0, 50, 100):
        assert make_simulator(game, FunctionEngine(random_move)).play([deals[i]])[0] == crowd[i]


def test_episodes_come_back_in_the_order_of_their_deals() -> None:
    game = TicTacToeConfig()
    names = [f"e{i}" for i in range(30)]
    played = make_simulator(game, FunctionEngine(random_move, newest_first=True, batch=1)).play(
        [make_deal(n, game, i) for i, n in enumerate(names)]
    )
    assert [t.id for t in played] == names


def test_the_episodes_of_a_group_start_alike_and_then_part() -> None:
    run = Run(scenario(), make_simulator(kuhn(), FunctionEngine(random_move)), {}, None, None)  # type: ignore[arg-type]
    deals = run.deals(3)
    assert [d.episode for d in deals[:5]] == [f"000004.{i // 4}.{i % 4}" for i in range(5)]
    roles = {name: PlayerRole(policy="actor") for name in ("first", "second")}
    played = make_simulator(kuhn(), FunctionEngine(random_move), **roles).play(deals)
    groups = {d.group: {t.start for t in played if t.deal.group == d.group} for d in deals}
    assert all(len(starts) == 1 for starts in groups.values())
    assert len(set.union(*groups.values())) > 1
    assert len({tuple(told(t)) for t in played if t.deal.group == deals[0].group}) > 1


def scenario(**schedule: Any) -> Scenario:
    return Scenario.model_validate(
        {
            "game": {"kind": "kuhn_poker"},
            "seats": {"player_0": "first", "player_1": "second"},
            "roles": {"first": {"kind": "player", "policy": "a"}, "second": {"kind": "player", "policy": "a"}},
            "policies": {"a": {"model": {"kind": "tiny"}, "learner": {"kind": "grpo"}}},
            "schedule": {"steps": 1, "groups": 8, "group_size": 4, **schedule},
        }
    )


def test_rotating_seats_gives_every_role_every_seat_and_a_group_one_seating() -> None:
    run = Run(scenario(rotate_seats=True), make_simulator(kuhn(), FunctionEngine(random_move)), {}, None, None)  # type: ignore[arg-type]
    seatings = [tuple(d.seats.items()) for step in range(2) for d in run.deals(step)]
    ahead, behind = (("player_0", "first"), ("player_1", "second")), (("player_0", "second"), ("player_1", "first"))
    assert seatings == ([ahead] * 4 + [behind] * 4) * 8
    fixed = Run(scenario(), make_simulator(kuhn(), FunctionEngine(random_move)), {}, None, None)  # type: ignore[arg-type]
    assert {tuple(d.seats.items()) for d in fixed.deals(0)} == {ahead}


# --- deaths ----------------------------------------------------------------------------------------------------------


def test_an_agent_that_is_gone_is_not_asked_again_and_the_others_play_on() -> None:
    table_of_quits = {"player_1 1 0": {"quit": 1.0}, "player_0 2 1": {"quit": 1.0}}
    stay = Tabular.model_validate({"table": table_of_quits | {s: {"stay": 1.0} for s in STAYING}})
    [trajectory] = make_simulator(CircleConfig(), stay.build(None)).play([make_deal("e", CircleConfig())])
    assert [(t.agent[-1], t.action) for t in trajectory.turns] == [
        ("0", "stay"), ("1", "quit"), ("2", "stay"), ("0", "quit"), ("2", "stay"), ("2", "stay"),
    ]  # fmt: skip
    assert trajectory.returns == {"player_1": 1.0, "player_0": 2.0, "player_2": 10.0}
    assert trajectory.end == "terminated"


STAYING = ("player_0 1 0", "player_2 1 1", "player_2 2 2", "player_2 3 2")


def test_an_episode_in_which_all_leave_one_by_one_ends() -> None:
    [trajectory] = make_simulator(CircleConfig(), FunctionEngine(lambda request: "[quit]")).play(
        [make_deal("e", CircleConfig())]
    )
    assert len(trajectory.turns) == 3
    assert (trajectory.end, list(trajectory.returns.values())) == ("terminated", [1.0, 1.0, 1.0])


# --- games that raise, engines that do not answer --------------------------------------------------------------------


def cracks(*episodes: int) -> FunctionEngine:
    """`crack` from both players in these deals' second round."""
    game_seeds = {f"broken {i}" for i in episodes}
    return FunctionEngine(lambda request: "[crack]" if request.messages[0].content in game_seeds else "[safe]")


class Telling(PlayerRole):
    """Tells its policy which episode this is."""

    kind: str = "telling"

    def messages(self, context: PromptContext) -> tuple[Message, ...]:
        name = context.own_turns[0].id[0] if context.own_turns else "?"
        return (Message("user", name),)


def test_a_game_that_raises_ends_the_play_naming_game_seed_and_actions() -> None:
    laid = make_simulator(FailingPenniesConfig(), cracks(0), player=Telling(policy="actor"))
    with pytest.raises(GameError, match=r"FailingPennies raised ZeroDivisionError: the glass broke") as caught:
        laid.play([make_deal("broken 0", FailingPenniesConfig(), seed=77)])
    assert "seed 77" in str(caught.value)
    assert "actions ['safe', 'safe', 'crack']" in str(caught.value)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_the_game_is_blamed_for_a_start_it_cannot_make() -> None:
    with pytest.raises(GameError, match=r"KuhnPoker raised ValueError.*options \{'cards': 'JJ'\}, actions \[\]"):
        make_simulator(kuhn(), FunctionEngine(random_move)).play([make_deal("e", kuhn(), cards="JJ")])


def test_dropping_leaves_the_episode_out_up_to_the_cap_and_takes_its_questions_back() -> None:
    voice = cracks(1, 3)
    voice._batch = 1
    laid = make_simulator(FailingPenniesConfig(), voice, player=Telling(policy="actor"))
    laid.drops.limit = 2
    played = laid.play([make_deal(f"broken {i}", FailingPenniesConfig(), i) for i in range(5)])
    assert [t.id for t in played] == ["broken 0", "broken 2", "broken 4"]
    assert laid.drops.count == 2
    assert len(voice.cancelled) == 2
    with pytest.raises(GameError, match="broken 1"):
        laid.play([make_deal("broken 1", FailingPenniesConfig())])
    with pytest.raises(GameError):
        make_simulator(FailingPenniesConfig(), cracks(1), player=Telling(policy="actor")).play(
            [make_deal("broken 1", FailingPenniesConfig())]
        )


def test_questions_of_an_episode_that_is_over_are_taken_back() -> None:
    voice = FunctionEngine(lambda request: "nonsense", batch=1)
    [trajectory] = make_simulator(PenniesConfig(), voice).play([make_deal("e", PenniesConfig())])
    assert told(trajectory) == [("player_0", 0, None)]
    assert voice.cancelled == [1]


class Silent(FunctionEngine):
    """Never answers."""

    def __init__(self) -> None:
        super().__init__(random_move)

    def step(self, wait_s: float) -> list[tuple[Ticket, Completion | CompletionFailure]]:
        return []

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        self.cancelled += tickets


def test_an_engine_that_never_answers_is_named_at_the_deadline() -> None:
    mute = Silent()
    roles = {"first": PlayerRole(policy="talker"), "second": PlayerRole(policy="mute")}
    laid = make_simulator(kuhn(), {"talker": FunctionEngine(random_move), "mute": mute}, **roles)
    laid.router.deadline_s = 0.05
    seats = {"player_0": "first", "player_1": "second"}
    with pytest.raises(TimeoutError, match=r"within 0\.05 s \(schedule\.deadline_s\).*: mute: 3 \(of Silent\)$"):
        laid.play([Deal(f"e{i}", "g", i, seats) for i in range(3)])
    assert len(mute.cancelled) == 3


# --- tokens and episodes by hand -------------------------------------------------------------------------------------


def test_tokens_are_counted_by_purpose() -> None:
    laid = make_simulator(kuhn(), FunctionEngine(random_move))
    [past] = laid.play([make_deal("e", kuhn())])
    assert laid.tokens == {"train": 2 * len(past.turns)}
    [fork] = laid.play_forks([Fork(past, 0, n=1)])[0]
    assert laid.tokens == {"train": 2 * len(past.turns), "credit": 2 * len(fork.turns)}


def test_an_answer_waits_until_the_game_wants_it() -> None:
    episode = Episode(
        PenniesConfig().build(),
        make_deal("e", PenniesConfig()),
        make_simulator(PenniesConfig(), FunctionEngine(random_move)).casting,
    )
    assert [agent for agent, _ in episode.take_new_requests()] == list(PAIR)
    assert episode.take_new_requests() == []
    heads = Completion("[heads]", (), (), (), "stop")
    episode.play_agent_answer("player_1", heads)
    assert (episode.trajectory.turns, episode.done) == ([], False)
    episode.play_agent_answer("player_0", heads)
    assert ([turn.agent for turn in episode.trajectory.turns], episode.done) == (list(PAIR), True)
