"""What the page is told of a run is what lies on disk, and what `marl why` says of it."""

from __future__ import annotations

import json
import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pydantic_core import to_json

from marl.commands.web_view import OfflineCreditRecomputation
from marl.games.kuhn_poker import KuhnEquilibrium
from marl.games.tic_tac_toe import TicTacToeConfig
from marl.runs.run_folder import RunFolder
from marl.view.closing_report import closing_report
from marl.view.credit_explanation import explain_advantage
from marl.view.page.page_data import NotFoundError, PageApi
from marl.view.page.reference_players import render_information_state_if_possible
from tests.support.recorded_runs import HOSTILE, WORDS, kuhn_run, with_forecasts, with_role_worth


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("page")
    return kuhn_run(folder / "a", steps=3, said=HOSTILE), kuhn_run(folder / "b", "credit.scale=2", seed=1)


@pytest.fixture
def data(runs: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PageApi:
    monkeypatch.setenv("MARL_CACHE", str(tmp_path))
    made = PageApi(runs, OfflineCreditRecomputation())
    for run in made.runs.values():
        run.index.index_new_steps()
    return made


def answer(data: PageApi, path: str, **query: object) -> Any:
    """The answer as the browser gets it."""
    return json.loads(to_json(data.answer(path, {k: str(v) for k, v in query.items()}), inf_nan_mode="strings"))


def test_an_episode_is_told_turn_by_turn_as_it_was_recorded(data: PageApi, runs: tuple[Path, Path]) -> None:
    home = RunFolder(runs[0])
    for step in home.recorded_steps():
        for trajectory in home.load_trajectories(step):
            told = answer(data, "episode", run="a", step=step, episode=trajectory.id)
            assert len(told["turns"]) == len(trajectory.turns)
            for turn, shown in zip(trajectory.turns, told["turns"], strict=True):
                assert (shown["text"], shown["action"], shown["agent"]) == (
                    turn.completion.text,
                    turn.action,
                    turn.agent,
                )
                assert shown["messages"] == [message.to_dict() for message in turn.request.messages]
                assert shown["tokens"]["logprobs"] == list(turn.completion.logprobs)
                assert shown["tokens"]["ids"] == list(turn.completion.token_ids)
            edges = {(edge["source"], edge["reader"]): set(edge["kinds"]) for edge in told["edges"]}
            assert edges == {(a[1], b[1]): set(k) for a, b, k in trajectory.graph.edges(data="kinds")}
            assert told["returns"] == trajectory.returns
            assert [reward["cause"] for reward in told["rewards"]] == [reward.cause for reward in trajectory.rewards]


def test_the_credit_chain_of_every_turn_equals_the_judgement_and_what_marl_why_says(
    data: PageApi, runs: tuple[Path, Path]
) -> None:
    record = RunFolder(runs[0]).read_credit_of_step(2)
    chains = record.turns()
    for (episode, index), chain in chains.items():
        told = answer(data, "episode", run="a", step=2, episode=episode)["chains"][index]
        for name in ("pool_reward", "assigned", "earned", "baseline", "scale", "advantage"):
            assert told[name] == getattr(chain, name)
        assert chain.group is not None
        group = record.groups[chain.group]
        assert {(peer["episode"], peer["turn"]) for peer in told["peers"]} == set(group.turns) - {chain.turn}
        assert all(peer["earned"] == chains[peer["episode"], peer["turn"]].earned for peer in told["peers"])
        words = explain_advantage(runs[0], f"{episode}:{index}")
        assert f"in all {told['pool_reward']:+.4g} (times scale 0.5)" in words
        assert f"= {told['advantage']:+.4g}" in words
        assert f"{told['peer_count']} peers with the same start" in words


def test_another_rule_judges_the_same_episode_and_one_that_needs_weights_says_so(data: PageApi) -> None:
    query = {"run": "a", "step": 1, "episode": "000001.0.0"}
    told = answer(data, "judgement", rule="flow/role_average", **query)
    assert told["chains"][0]["assign"].startswith("flow")
    assert told["chains"][0]["baseline_rule"].startswith("role_average")
    refused = answer(data, "judgement", rule="outcome/greedy", **query)
    assert "needs weights" in refused["problem"]
    assert refused["chains"] is None


def test_another_rule_keeps_the_runs_other_settings_and_is_compared_by_role(
    data: PageApi, runs: tuple[Path, Path]
) -> None:
    query = {"run": "a", "step": 1, "episode": "000001.0.0"}
    own = answer(data, "judgement", rule="outcome", **query)
    assert own["chains"] == answer(data, "episode", **query)["chains"]
    assert own["differences"] == []
    other = answer(data, "judgement", rule="flow", **query)
    assert other["chains"][0]["reward_scale"] == own["chains"][0]["reward_scale"] == 0.5
    assert other["chains"][0]["baseline_rule"] == own["chains"][0]["baseline_rule"]
    assert [line.partition(":")[0] for line in other["differences"]] == ["credit.assign"]
    (row,) = other["summary"]
    turns = RunFolder(runs[0]).read_credit_of_step(1).turns().values()
    assert row["role"] == "player"
    assert row["own"]["turns"] == row["other"]["turns"] == len(turns)
    assert row["own"]["advantage"] == pytest.approx(sum(turn.advantage for turn in turns) / len(turns))
    assert set(row["agreement"]) >= {"sign_agreement", "correlation"}


def test_rules_that_cannot_work_are_named_with_the_reason_and_the_command(
    data: PageApi, runs: tuple[Path, Path]
) -> None:
    told = answer(data, "rules", run="a")
    assert (told["assign"], told["baseline"]) == ("outcome", "group")
    assigns = {offer["kind"]: offer for offer in told["assigns"]}
    assert {kind for kind, offer in assigns.items() if not offer["problem"]} == {"outcome", "flow"}
    assert "zero-sum" in assigns["shapley"]["problem"]
    assert assigns["shapley"]["command"] == ""
    greedy = next(offer for offer in told["baselines"] if offer["kind"] == "greedy")
    assert greedy["problem"] == "greedy plays or samples, which needs weights"
    assert greedy["command"] == f"marl credit {runs[0]} --with /greedy"
    with_flow = answer(data, "rules", run="a", assign="flow")["baselines"]
    assert next(offer for offer in with_flow if offer["kind"] == "greedy")["command"].endswith("--with flow/greedy")
    with pytest.raises(NotFoundError, match="no rule"):
        data.answer("rules", {"run": "a", "assign": "os:system"})


@pytest.mark.parametrize(
    "rule",
    [
        "os:system",
        "marl.credit.assign.reward_rules:AgentReturnAssign",
        "{kind: outcome}",
        "",
        "flow/os:system",
        "flow/",
        "/",
        "/os:system",
    ],
)
def test_no_rule_but_an_installed_one_can_be_asked_for(rule: str, data: PageApi) -> None:
    with pytest.raises(NotFoundError, match="no rule"):
        data.answer("judgement", {"run": "a", "step": "1", "episode": "000001.0.0", "rule": rule})


def test_tokens_have_the_texts_of_the_checkpoints_tokenizer(data: PageApi) -> None:
    turn = answer(data, "episode", run="a", step=1, episode="000001.0.0")["turns"][0]
    assert [text.strip() for text in turn["tokens"]["texts"]] == [WORDS[token] for token in turn["tokens"]["ids"]]
    prompt = answer(data, "prompt", run="a", step=1, episode="000001.0.0", turn=0)
    assert prompt == {"text": "check bet", "ids": [3, 4]}


def test_a_turn_stands_below_what_led_to_it_in_its_agents_column(data: PageApi) -> None:
    told = answer(data, "episode", run="a", step=1, episode="000001.0.0")
    assert [turn["column"] for turn in told["turns"]] == [int(turn["agent"][-1]) for turn in told["turns"]]
    assert all(a["row"] < b["row"] for a, b in pairwise(told["turns"]))


def test_information_states_are_counted_and_compared_with_the_equilibrium(
    data: PageApi, runs: tuple[Path, Path]
) -> None:
    turns = [turn for trajectory in RunFolder(runs[1]).load_trajectories(1) for turn in trajectory.turns]
    for row in answer(data, "states", run="b", step=1)["states"]:
        here = [turn for turn in turns if turn.request.state == row["state"]]
        assert row["turns"] == len(here)
        for move, part in row["made"].items():
            assert part == sum(turn.action == move for turn in here) / len(here)
        assert row["reference"]["nash"] == KuhnEquilibrium().move_probabilities(row["state"], tuple(row["moves"]))
        assert row["drawing"]["rows"][0][0] == row["state"][0]


def test_figures_of_tokens_are_those_that_the_update_computed(data: PageApi) -> None:
    shown = answer(data, "episode", run="a", step=1, episode="000001.0.0")
    for chain in shown["chains"]:
        assert chain["entropy"] == [0.25, 1.0, 2.5, 0.0]
        assert chain["mismatch"] == [0.0, -0.05, 0.0, 0.0]
    sibling = answer(data, "episode", run="a", step=1, episode="000001.0.1")
    assert all(chain["entropy"] == [] for chain in sibling["chains"])


def test_recorded_strategies_stand_beside_their_average_and_the_equilibrium(data: PageApi) -> None:
    shown = answer(data, "strategies", run="a")
    assert (shown["steps"], shown["step"], shown["averaged"], shown["problem"]) == ([1, 2, 3], 3, 2, "")
    assert len(shown["states"]) == 12
    for row in shown["states"]:
        exact = KuhnEquilibrium().move_probabilities(row["state"], tuple(row["moves"]))
        assert row["reference"]["nash"] == exact
        assert row["newest"] == {move: pytest.approx(chance * 0.97) for move, chance in exact.items()}
        # The last half of three steps: steps 2 and 3, weighted by the policy's own reach, which is nearly the same.
        assert row["average"] == {move: pytest.approx(chance * 0.975, abs=1e-3) for move, chance in exact.items()}
        assert row["distance"] == pytest.approx(0.03)
    assert answer(data, "strategies", run="a", step=1)["averaged"] == 0
    with pytest.raises(ValueError, match="no strategies of step 9"):
        answer(data, "strategies", run="a", step=9)


def test_a_state_that_its_game_cannot_draw_is_shown_as_text() -> None:
    assert render_information_state_if_possible(TicTacToeConfig(), "xxx") is None
    assert render_information_state_if_possible(None, "xo") is None


def test_runs_are_described_with_alarms_costs_and_differences(data: PageApi) -> None:
    told = answer(data, "runs")["runs"][0]
    assert told["ledger"] == {"step/tokens": 300.0, "time/step": 1.5}
    assert (told["step_s"], told["best"]) == (0.5, None)
    figure, returns = (
        told["figure"],
        [row["episode/return/player_0"] for row in RunFolder(data.runs["a"].home.path).rows()],
    )
    assert (figure["metric"], figure["first"]["value"], figure["last"]["value"]) == (
        "episode/return/player_0",
        returns[0],
        returns[-1],
    )
    (alarm,) = told["alarms"]
    assert (alarm["role"], alarm["kind"], alarm["ranges"]) == ("player", "constant", [[2, 2]])
    assert alarm["summary"] == "gives nearly always the same answer"
    compared = answer(data, "settings")
    assert set(compared["differing"]) == {"credit.scale", "schedule.steps"}
    few = answer(data, "curves", points=1, band="")["panels"][0]["lines"][0]["points"]
    assert [point[0] for point in few] == [1, 3]
    panels = {panel["metric"] for panel in answer(data, "curves")["panels"]}
    assert {"episode/return/player_0", "policy/actor/loss"} <= panels
    assert [each["step"] for each in answer(data, "episodes", run="a", alarm="alarm/player/constant")["episodes"]] == [
        2
    ] * 8


def test_curves_have_units_and_the_runs_say_how_many_tokens_and_seconds_a_step_took(data: PageApi) -> None:
    panels = {panel["metric"]: panel for panel in answer(data, "curves")["panels"]}
    assert panels["episode/return/player_0"]["unit"] == "reward"
    assert answer(data, "runs")["runs"][0]["clock"] == [[1, 100.0, 0.5], [2, 200.0, 1.0], [3, 300.0, 1.5]]


def test_the_main_figure_of_a_run_is_the_first_curve_and_says_which_direction_is_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARL_CACHE", str(tmp_path / "cache"))
    home = RunFolder(kuhn_run(tmp_path / "run"))
    rows = [dict(row) | {f"policy/p{i}/loss": 0.5 for i in range(12)} | {"eval/nashconv": 0.3} for row in home.rows()]
    home.metrics_file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    made = PageApi([home.path])
    assert answer(made, "runs")["runs"][0]["figure"]["metric"] == "eval/nashconv"
    panels = answer(made, "curves")["panels"]
    assert [(panel["metric"], panel["goal"]) for panel in panels][:2] == [
        ("eval/nashconv", "min"),
        ("episode/return/player_0", None),
    ]
    assert len(panels) == 12


def test_distributions_are_quantiles_of_the_recorded_turns(data: PageApi, runs: tuple[Path, Path]) -> None:
    told = answer(data, "distributions", run="a")
    panels = {panel["metric"]: panel["lines"] for panel in told["panels"]}
    assert (told["read"], told["recorded"], list(panels)) == (3, 3, ["advantage", "length", "entropy"])
    advantages = sorted(turn.advantage for turn in RunFolder(runs[0]).read_credit_of_step(2).turns().values())
    (line,) = panels["advantage"]
    step, median, _, _, _, lower, upper = line["points"][1]
    assert (line["name"], step) == ("player", 2)
    assert median == pytest.approx(statistics.median(advantages))
    assert [lower, upper] == pytest.approx(statistics.quantiles(advantages, n=4, method="inclusive")[::2])
    # Every answer has four tokens; entropies were recorded for one episode, as 0, 0.25, 1 and 2.5 for each turn.
    assert panels["length"][0]["points"][0] == [1, 4.0, 4.0, 4.0, 1, 4.0, 4.0]
    assert panels["entropy"][0]["points"][0][1] == pytest.approx((0.25 + 1.0) / 2)


def test_credit_far_from_the_reward_at_the_end_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARL_CACHE", str(tmp_path / "cache"))
    run = kuhn_run(tmp_path / "run", steps=1)
    rows = [
        {"step": step, "credit/player/zero": 0.0, "credit/player/conservation": 1.0 if step < 5 else 2.0}
        for step in range(1, 11)
    ]
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (warning,) = answer(PageApi([run]), "runs")["runs"][0]["warnings"]
    assert warning.startswith("role player: its credit is 2 times its reward: each reward is credited several times")
    report = closing_report(RunFolder(run), is_finished=True)
    assert f"WARNING {warning}" in report.splitlines()
    (run / "metrics.jsonl").write_text(f"{json.dumps(rows[0])}\n")
    assert answer(PageApi([run]), "runs")["runs"][0]["warnings"] == []


def test_a_run_that_has_only_begun_is_shown_too(
    runs: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARL_CACHE", str(tmp_path / "cache"))
    begun = tmp_path / "begun"
    begun.mkdir()
    (begun / "scenario.yaml").write_bytes((runs[0] / "scenario.yaml").read_bytes())
    data = PageApi([begun])
    assert answer(data, "runs")["runs"][0]["step"] == 0
    assert answer(data, "episodes") == {
        "count": 0,
        "episodes": [],
        "index": {"recorded": 0, "indexed": 0, "episodes": 0, "problems": []},
    }
    for path in ("curves", "settings", "rows", "held_out"):
        answer(data, path)


def test_held_out_starts_stand_beside_themselves_before_and_after(data: PageApi, runs: tuple[Path, Path]) -> None:
    told = answer(data, "held_out", run="a")
    assert (told["steps"], told["before"], told["after"]) == ([0, 3], 0, 3)
    for side in ("before", "after"):
        played = {trajectory.id: trajectory for trajectory in RunFolder(runs[0]).read_held_out_episodes(told[side])}
        for pair in told["episodes"]:
            assert (pair[side] is None) == (pair["episode"] not in played)
            if pair[side]:
                assert pair[side]["returns"] == played[pair["episode"]].returns
                said = [turn.completion.text for turn in played[pair["episode"]].turns]
                assert [turn["text"] for turn in pair[side]["turns"]] == said
    assert len(told["episodes"]) == 2


def test_a_held_out_episode_is_told_as_it_was_recorded_and_without_credit(
    data: PageApi, runs: tuple[Path, Path]
) -> None:
    query = {"run": "a", "step": 3, "episode": "held_out.1", "held_out": 1}
    told = answer(data, "episode", **query)
    (recorded,) = [each for each in RunFolder(runs[0]).read_held_out_episodes(3) if each.id == "held_out.1"]
    assert [turn["text"] for turn in told["turns"]] == [turn.completion.text for turn in recorded.turns]
    assert (told["held_out"], told["chains"], told["siblings"]) == (True, None, [])
    assert told["same_start"] == [[0, "held_out.1"], [3, "held_out.1"]]
    assert answer(data, "prompt", turn=0, **query)["ids"] == list(recorded.turns[0].completion.prompt_ids)
    for changed in ({"step": 2}, {"episode": "000001.0.0"}, {"game": "other"}):
        with pytest.raises(NotFoundError, match="no held-out episode"):
            answer(data, "episode", **(query | changed))


def test_words_have_the_meanings_of_the_documents(data: PageApi) -> None:
    told = answer(data, "words")
    assert told["assign"]["outcome"] == "Each turn earns its agent's return in the episode."
    assert told["baseline"]["none"] == "No baseline: the advantage of a turn is the credit that `assign` gave the turn."
    assert told["metrics"]["episode/return/player_0"] == {"unit": "reward", "meaning": "mean return of a seat"}
    assert told["glossary"]["turn"] == "one decision of one agent: prompt, completion, move"
    assert {"advantage", "assign", "baseline", "reward"} <= told["glossary"].keys(), "words that the page explains"
    for kind in ("assign", "baseline"):
        assert [name for name, sentence in told[kind].items() if not sentence.endswith(".")] == []


def test_a_team_shows_what_its_roles_corrected_and_what_it_loses_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARL_CACHE", str(tmp_path / "cache"))
    home = RunFolder(with_role_worth(kuhn_run(tmp_path / "team")))
    made = PageApi([home.path])
    (corrected,) = answer(made, "runs")["runs"][0]["corrections"]
    # A quarter of 32 wrong answers, and a tenth of all 40 answers.
    assert [corrected[name] for name in ("role", "step", "fixed", "wrong", "spoilt", "right")] == [
        "critic",
        3,
        8,
        32,
        4,
        40,
    ]
    assert "role critic corrected 8 of 32 wrong answers and spoilt 4 of 40" in closing_report(home, is_finished=True)
    (home.path / "without" / "damaged.json").write_text("{")
    measured, other = answer(made, "runs")["runs"][0]["without_roles"]
    assert (other["measure"], other["worth"]) == ("bug_fixes", 0.5)
    assert measured == {
        **{"scope": "eval/", "role": "critic", "measure": "success", "checkpoint": 3, "episodes": 40.0},
        **{"present": 0.5, "absent": 0.375, "worth": 0.125, "low": -0.1, "high": 0.3},
    }


def test_a_critics_forecasts_are_shown_with_their_skill_and_their_calibration_curve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARL_CACHE", str(tmp_path / "cache"))
    home = RunFolder(with_forecasts(kuhn_run(tmp_path / "team")))
    (found,) = answer(PageApi([home.path]), "runs")["runs"][0]["forecasts"]
    assert found == {
        **{"scope": "eval/held_out", "name": "verdict", "step": 4, "brier": 0.2, "brier_skill": 0.2},
        **{"correlation": 0.5, "calibration_error": 0.1, "outcomes": [0.0, None, 0.5, None, 0.75]},
    }
    report = closing_report(home, is_finished=True)
    assert "forecast verdict (held_out): Brier skill -0.040 -> 0.200, correlation 0.500 (step 4)" in report


def test_a_measure_of_the_game_that_is_named_like_corrections_is_not_reported_as_those_of_a_role(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARL_CACHE", str(tmp_path / "cache"))
    home = RunFolder(with_role_worth(kuhn_run(tmp_path / "team")))
    assert [each["role"] for each in answer(PageApi([home.path]), "runs")["runs"][0]["corrections"]] == ["critic"]
    report = closing_report(home, is_finished=True)
    assert "bug_fixes on held-out starts 2.500 at step 3" in report
    assert "role bug" not in report
    assert "critic_fixes" not in report, "it has the line of corrections"


@pytest.mark.parametrize(
    ("path", "query", "message"),
    [
        ("nothing", {}, "nothing is called"),
        ("episodes", {"run": "../a"}, "no run"),
        ("episode", {"run": "a", "step": "9", "episode": "x"}, "no episode x in step 9"),
        ("episode", {"run": "a", "step": "one"}, "step: must be a whole number"),
        ("episodes", {"order": "random"}, "order: 'random': Input should be 'newest'"),
        ("episodes", {"low": "a"}, "low: 'a': Input should be a valid number"),
        ("prompt", {"run": "a", "step": "1", "episode": "000001.0.0", "turn": "-1"}, "no turn -1"),
        ("states", {"run": "a", "step": "77"}, "was not recorded"),
        ("held_out", {"after": "2"}, "no held-out episodes of step 2; there are: 0, 3"),
        ("curves", {"metrics": "no/such"}, "not in these runs"),
    ],
)
def test_what_is_not_there_is_named(path: str, query: dict[str, str], message: str, data: PageApi) -> None:
    with pytest.raises((NotFoundError, ValueError), match=message):
        data.answer(path, query)


def test_a_board_is_drawn_cell_by_cell() -> None:
    drawing = TicTacToeConfig().render_state("xo..x...o")
    assert drawing.rows == (("x", "o", ""), ("", "x", ""), ("", "", "o"))
