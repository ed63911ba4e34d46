"""A dry run: what random play shows of a scenario before a weight is loaded."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import marl
from marl.evaluation import dry_run as module
from marl.evaluation.dry_run import DryRun, play_dry_run
from marl.evaluation.dry_run_findings import scenario_errors, scenario_warnings
from marl.games.base import FinalRewards, NextAgent, TextGame, TextGameConfig
from marl.models.tiny import Tiny
from marl.models.tiny_build import build_tiny_model
from marl.scenario.load import validate
from tests.support.addition_task import AdditionTask
from tests.support.calling_programs import ASK
from tests.support.paths import SCENARIOS
from tests.support.solver_critic_game import quiz_scenario
from tests.support.trl_templates import TEMPLATES

SOLVE = {"role": "solver", "examples": ["{{ answer }}", "{{ wrong[0] }}"]}
CRITIC = {"role": "critic", "hears": ["solver"], "legal": ["yes", "no"]}
TINY = {"model": {"kind": "tiny"}, "learner": "grpo"}


class Aimless(TextGame):
    """Two moves for ever, or until a number of turns."""

    name = "aimless"
    turns = 0

    def start_new_game(self, rng: Any, options: Mapping[str, Any]) -> NextAgent:
        self.played = 0
        return self.seats[0]

    def start_state_key(self) -> str:
        return "only"

    def describe_observation(self, agent: str) -> str:
        return "[left] or [right]"

    def information_state(self, agent: str) -> str:
        return str(self.played)

    def apply_action(self, action: str) -> NextAgent | FinalRewards:
        self.played += 1
        if self.turns and self.played == self.turns:
            raise RuntimeError(f"the {action} path ends")
        return self.seats[0]


class AimlessConfig(TextGameConfig):
    kind: str = "test_dry_run:AimlessConfig"
    turns: int = 0

    def build(self) -> Aimless:
        game = Aimless(("walker",), self.illegal, ("left", "right"))
        game.turns = self.turns
        return game


def walk(settings: Mapping[str, Any] | None = None, **more: Any) -> DryRun:
    data = {
        "game": {"kind": AimlessConfig().kind, **(settings or {})},
        "seats": {"walker": "walker"},
        "roles": {"walker": {"kind": "player", "policy": "actor"}},
        "policies": {"actor": TINY},
        "schedule": {"steps": 1, "groups": 1, "group_size": 2},
    }
    return play_dry_run(validate(data | more))


def play(*stages: Mapping[str, Any], actor: Mapping[str, Any] = TINY, **more: Any) -> DryRun:
    """A dry run of a solver and whoever else speaks in these stages, all with the policy `actor`."""
    speaking = dict.fromkeys(each["role"] for stage in stages for each in stage.get("stages", [stage]))
    data = {
        "game": {
            "kind": "team",
            "task": {"kind": AdditionTask().kind},
            "stages": stages,
            "rewards": {role: {"readable": "own.readable"} for role in speaking},
        },
        "roles": {role: {"kind": role, "policy": "actor"} | more.pop(role, {}) for role in speaking},
        "policies": {"actor": actor},
        "schedule": {"steps": 1, "groups": 2, "group_size": 2},
    }
    return play_dry_run(validate(data | more))


def test_the_prompts_are_those_of_play_and_the_answers_those_that_the_game_offers() -> None:
    run = play(SOLVE, CRITIC)
    assert len(run.episodes) == module.EPISODES
    solver, critic = run.turns_by_role["solver"][0], run.turns_by_role["critic"][0]
    assert solver.request.messages[-1].content.startswith(solver.problem)
    assert solver.completion.text in solver.request.examples
    assert critic.completion.text in ("<verdict>yes</verdict>", "<verdict>no</verdict>")
    assert solver.action
    assert f"```\n{solver.completion.text}\n```" in critic.request.messages[-1].content
    assert (list(scenario_errors(run)), list(scenario_warnings(run))) == ([], [])


def test_the_same_scenario_is_played_alike_every_time() -> None:
    assert play(SOLVE, CRITIC).episodes == play(SOLVE, CRITIC).episodes


def test_who_may_say_anything_without_examples_says_something_and_is_no_problem_for_a_large_model() -> None:
    run = play({"role": "solver"}, CRITIC, actor={"model": "someone/model", "learner": "grpo"})
    assert run.free_text_roles == {"solver"}
    assert run.turns_by_role["solver"][0].completion.text == "<answer>1</answer>"
    assert list(scenario_errors(run)) == []


def test_random_play_without_examples_is_refused_where_an_evaluation_needs_it() -> None:
    large = {"model": "someone/model", "learner": "grpo"}
    (problem,) = scenario_errors(play({"role": "solver"}, actor=large, evaluate={"against": {"random": 2}}))
    assert problem.startswith("roles.solver: any text is a move and the game gives no examples of moves, but ")
    assert problem.endswith("`random` of evaluate.against plays")


def test_a_role_that_cannot_read_what_it_is_to_say_is_refused() -> None:
    (problem,) = scenario_errors(play(SOLVE, CRITIC | {"legal": ["fine", "bad"]}))
    assert problem.startswith("roles.critic: reads no move in what it is to say itself, such as '<verdict>")


def test_more_minibatches_than_an_update_has_samples_are_refused() -> None:
    def learner(minibatches: int) -> dict[str, Any]:
        return {**TINY, "learner": {"kind": "grpo", "minibatches": minibatches}}

    assert list(scenario_errors(play(SOLVE, CRITIC, actor=learner(8)))) == []
    assert list(scenario_errors(play(SOLVE, CRITIC, actor=learner(9)))) == [
        "policies.actor.learner.minibatches: 9, but an update has about 8 samples: 4 episodes with up to 2 turns each"
    ]
    assert list(scenario_errors(play(SOLVE, CRITIC, actor=learner(16) | {"update_every": 2}, schedule=twice()))) == []
    assert list(scenario_errors(play(SOLVE, CRITIC, actor=learner(8), critic={"trainable": False})))


def twice() -> dict[str, Any]:
    return {"steps": 2, "groups": 2, "group_size": 2}


def test_a_chat_template_that_refuses_a_prompt_is_told(tmp_path: Path) -> None:
    build_tiny_model(Tiny(vocabulary="bytes"), tmp_path / "model", ())
    (tmp_path / "model" / "chat_template.jinja").write_text("{{ raise_exception('no user may speak') }}")
    run = play(SOLVE, actor={"model": str(tmp_path / "model"), "learner": "grpo"})
    assert [problem.split(":")[0] for problem in scenario_errors(run)] == ["roles.solver"]
    assert "no user may speak" in next(scenario_errors(run))


def test_a_game_that_raises_is_named_with_the_moves_that_led_there() -> None:
    with pytest.raises(
        ValueError, match=r"a random episode failed: game Aimless raised RuntimeError: the \w+ path ends"
    ):
        walk({"turns": 3})


def test_an_episode_with_more_turns_than_the_schedule_allows_is_refused() -> None:
    with pytest.raises(ValueError, match=r"random episode failed: game Aimless is not over after 40 turns"):
        walk(schedule={"steps": 1, "groups": 1, "group_size": 2, "max_turns": 40})


def test_an_episode_without_end_is_broken_off_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIMIT_S", 0.2)
    run = walk(schedule={"steps": 1, "groups": 1, "group_size": 2, "max_turns": 10**6})
    assert run.unfinished_requests
    assert re.fullmatch(
        r"an episode had not ended after 0\.2 s and [\d,]+ questions? of random play; the last went to role 'walker'",
        next(scenario_warnings(run)),
    )


def test_prompts_that_take_long_to_write_are_broken_off_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIMIT_S", 0.2)
    began = time.process_time()
    crowd = {"role": "solver", "n": 1000, "hears": ["solver"], "examples": ["{{ answer }}"]}
    run = play({"repeat": 1000, "stages": [crowd]})
    assert run.unfinished_requests is not None
    assert time.process_time() - began < 5


def test_a_role_that_never_speaks_is_told() -> None:
    silent = CRITIC | {"when": "split == 'held_out'"}
    assert list(scenario_warnings(play(SOLVE, silent))) == ["roles.critic: did not speak in 8 random episodes"]


def test_a_prompt_and_an_answer_that_do_not_fit_the_model_are_told() -> None:
    run = play(SOLVE, actor={"model": {"kind": "tiny", "context": 100}, "learner": "grpo"})
    (note,) = scenario_warnings(run)
    assert note.startswith("roles.solver: a prompt of ")
    assert note.endswith("more than what the model of policies.actor was made for, 100")


def test_a_measure_that_no_random_episode_had_is_told() -> None:
    assert list(scenario_warnings(play_dry_run(validate(quiz_scenario())))) == []
    wrong = quiz_scenario(evaluate={"held_out": 6, "keep_best": "succes"})
    (note,) = scenario_warnings(play_dry_run(validate(wrong)))
    assert note.startswith("evaluate.keep_best: no random episode had a measure 'succes'; did you mean 'success'")


def test_who_hears_words_that_no_prompt_of_its_uses_is_named() -> None:
    deaf = {"prompt": "{{ observation }}"}
    (note,) = scenario_warnings(play(SOLVE, CRITIC, critic=deaf))
    assert note.startswith("roles.critic: hears role 'solver', but no prompt in")
    shown = {**CRITIC, "tell": "{{ question }} {{ solver.move }}"}
    assert not list(scenario_warnings(play(SOLVE, shown, critic=deaf))), "the game tells of them"


# --- what cannot learn -----------------------------------------------------------------------------------------------


def team(**changes: Any) -> dict[str, Any]:
    """A solver whose answers a verifier checks; `changes` replace parts of the game."""
    game = {
        "kind": "team",
        "task": {"kind": "arithmetic", "train": 20, "held_out": 5},
        "stages": [{"role": "solver", "examples": ["{{ answer }}"]}, {"role": "verifier", "verifies": "solver"}],
        "rewards": {"solver": {"correct": "own.correct"}},
    }
    game["stages"][1]["scores"] = ["correct"]
    return {
        "game": game | changes,
        "roles": {
            "solver": {"kind": "solver", "policy": "actor"},
            "verifier": {"kind": "verifier", "policy": "checker"},
        },
        "policies": {"actor": TINY, "checker": {"engine": {"kind": "verifiers", "checks": {"correct": "exact"}}}},
        "schedule": {"steps": 1, "groups": 4, "group_size": 4},
    }


def problems(scenario: dict[str, Any]) -> list[str]:
    return list(scenario_errors(play_dry_run(validate(scenario))))


def test_a_team_that_learns_has_no_problem() -> None:
    assert problems(team()) == []


def test_a_team_without_any_reward_is_refused() -> None:
    (problem,) = problems(team(rewards={}))
    assert problem.startswith("game.rewards: empty, so no role is ever paid or learns; write rewards: {ROLE:")
    # A penalty for unreadable answers teaches their form.
    assert problems(team(rewards={}, unreadable={"penalty": 0.5})) == []


def test_a_reward_that_is_always_the_same_is_refused() -> None:
    assert problems(team(rewards={"solver": {"correct": 1, "more": "0.5"}})) == [
        "game.rewards.solver: 1.5 whatever the role does, so that it learns nothing"
    ]


def test_a_check_that_accepts_no_right_answer_is_refused(tmp_path: Path) -> None:
    rows = ["question,answer", "Capital of Spain?,Madrid", "Capital of Italy?,Rome", "Capital of France?,Paris"]
    (tmp_path / "capitals.csv").write_text("\n".join(rows))
    scenario = team(task={"kind": "file", "path": str(tmp_path / "capitals.csv"), "held_out": 1})
    assert problems(scenario) == []
    scenario["policies"]["checker"]["engine"]["checks"]["correct"] = "numeric"
    (problem,) = problems(scenario)
    assert problem.startswith(
        "policies.checker.engine.checks.correct: 'numeric' accepts none of the right answers of 2"
    )
    assert "Madrid" in problem or "Rome" in problem or "Paris" in problem


@pytest.mark.parametrize(("limit", "is_refused"), [(1, True), (2, True), (3, False)])
def test_answers_that_are_all_too_long_for_max_tokens_are_refused(limit: int, is_refused: bool) -> None:
    scenario = {
        "game": "kuhn_poker",
        "seats": {"player_0": "player", "player_1": "player"},
        "roles": {"player": {"kind": "player", "policy": "actor", "sampling": {"max_tokens": limit}}},
        "policies": {"actor": TINY},
        "schedule": {"steps": 1, "groups": 4, "group_size": 4},
    }
    expected = f"roles.player.sampling.max_tokens: {limit}, but its shortest answer here, '[check]', has 3 tokens; "
    assert [problem.startswith(expected) for problem in problems(scenario)] == [True] * is_refused


@pytest.mark.parametrize(("illegal", "is_cheap"), [({}, False), ({"penalty": 0.5}, True), ({"penalty": 2}, False)])
def test_fouls_that_cost_less_than_a_loss_are_told(illegal: dict[str, Any], is_cheap: bool) -> None:
    scenario = {
        "game": {"kind": "kuhn_poker", "illegal": illegal},
        "seats": {"player_0": "player", "player_1": "player"},
        "roles": {"player": {"kind": "player", "policy": "actor"}},
        "policies": {"actor": TINY},
        "schedule": {"steps": 1, "groups": 4, "group_size": 4},
    }
    notes = [note for note in scenario_warnings(play_dry_run(validate(scenario))) if "illegal.penalty" in note]
    assert [note.split(":")[0] for note in notes] == ["game.illegal.penalty"] * is_cheap
    assert all("an illegal move costs 0.5, but a loss up to 2 in random play" in note for note in notes)


def test_a_template_that_refuses_a_role_with_legal_moves_is_told_once(tmp_path: Path) -> None:
    build_tiny_model(Tiny(vocabulary="bytes"), tmp_path / "model", ())
    (tmp_path / "model" / "chat_template.jinja").write_text("{{ raise_exception('no user may speak') }}")
    run = play(SOLVE, CRITIC, actor={"model": str(tmp_path / "model"), "learner": "grpo"})
    assert [problem.split(":")[0] for problem in scenario_errors(run)] == ["roles.solver", "roles.critic"]


def test_a_context_that_no_prompt_fits_is_an_error_and_one_that_cuts_answers_a_warning() -> None:
    kuhn = SCENARIOS / "kuhn_self_play.yaml"
    [error] = scenario_errors(play_dry_run(marl.load(kuhn, ["policies.actor.model.context=8"])))
    assert error.startswith("roles.player: its shortest prompt has ")
    assert error.endswith("was made for, 8, so that no answer fits")
    run = play_dry_run(marl.load(kuhn, ["policies.actor.model.context=16"]))
    assert list(scenario_errors(run)) == []
    assert "are more than what the model of policies.actor was made for, 16" in "".join(scenario_warnings(run))


def test_examples_that_max_tokens_would_cut_are_an_error() -> None:
    team = marl.load(SCENARIOS / "solver_critic.yaml", ["roles.solver.sampling.max_tokens=1"])
    assert "roles.solver.sampling.max_tokens: 1, but its shortest answer here, " in "".join(
        scenario_errors(play_dry_run(team))
    )


def test_a_learning_role_that_nothing_pays_is_refused_unless_it_is_not_trainable() -> None:
    scenario = team(stages=[SOLVE, CRITIC, {"role": "verifier", "verifies": "solver", "scores": ["correct"]}])
    scenario["roles"]["critic"] = {"kind": "critic", "policy": "actor"}
    (problem,) = problems(scenario)
    assert problem.startswith("game.rewards.critic: missing or 0, so that the role learns nothing; pay it, such as ")
    scenario["roles"]["critic"]["trainable"] = False
    assert problems(scenario) == []


def test_pay_that_is_the_same_for_every_legal_move_is_told() -> None:
    scenario = {
        "game": "kuhn_poker",
        "seats": {"player_0": "player", "player_1": "player"},
        "roles": {"player": {"kind": "player", "policy": "actor"}},
        "policies": {"actor": TINY},
        "schedule": {"steps": 1, "groups": 4, "group_size": 4},
    }
    told = "roles.player: was paid 0 in each of 8 random episodes; "
    run = play_dry_run(validate(scenario))
    assert not list(scenario_warnings(run))
    for episode in run.episodes:
        episode.rewards.clear()
    (warning,) = scenario_warnings(run)
    assert warning.startswith(told)


def test_a_context_of_the_engine_that_no_prompt_fits_is_an_error() -> None:
    engine = "policies.actor.engine={kind: transformers, max_context: 8}"
    (error,) = scenario_errors(play_dry_run(marl.load(SCENARIOS / "kuhn_self_play.yaml", [engine])))
    assert error.endswith("more than policies.actor.engine.max_context, 8, so that no answer fits")


@pytest.mark.parametrize("kind", ["kuhn_poker", "leduc_poker", "liars_dice"])
@pytest.mark.parametrize(("shown", "leaks"), [("turn.text", True), ("turn.move", False)])
def test_a_prompt_that_shows_what_an_opponent_says_of_its_hidden_cards_is_told(
    kind: str, shown: str, leaks: bool
) -> None:
    prompt = "{{ observation }}{% for turn in heard %} {{ " + shown + " }}{% endfor %}"
    scenario = {
        "game": kind,
        "seats": {"player_0": "player", "player_1": "player"},
        "roles": {"player": {"kind": "player", "policy": "actor", "prompt": prompt}},
        "policies": {"actor": TINY},
        "schedule": {"steps": 1, "groups": 4, "group_size": 4},
    }
    told = [
        warning for warning in scenario_warnings(play_dry_run(validate(scenario))) if "`heard` shows all" in warning
    ]
    assert [warning.split(":")[0] for warning in told] == ["roles.player.prompt"] * leaks


def play_program(folder: Path, source: str, actor: Any = TINY, **role: Any) -> DryRun:
    """Random play of a program that may ask a planner and a solver."""
    (folder / "agents_here.py").write_text(ASK + source)
    caller = {"kind": "caller", "policy": "actor", **role}
    scenario = {
        "game": {
            "kind": "team",
            "task": {"kind": "arithmetic"},
            "stages": [{"role": "crew", "callers": {name: {"examples": ["1"]} for name in ("planner", "solver")}}],
            "rewards": {"solver": {"right": "own.spoke"}},
        },
        "roles": {"crew": {"kind": "program", "policy": "program"}, "planner": caller, "solver": caller},
        "policies": {
            "program": {"engine": {"kind": "program", "call": "agents_here:main", "folder": str(folder)}},
            "actor": actor,
        },
        "schedule": {"steps": 1, "groups": 1, "group_size": 2},
    }
    return play_dry_run(validate(scenario))


@pytest.mark.skipif(not TEMPLATES, reason="TRL is not installed")
@pytest.mark.parametrize(("template", "is_refused"), [("gemma4", True), (None, False)])
def test_a_caller_whose_tokens_cannot_continue_after_a_call_of_the_programs_tool_is_refused(
    template: str | None, is_refused: bool, tmp_path: Path
) -> None:
    build_tiny_model(Tiny(vocabulary="bytes", context=8192), tmp_path / "model", ())
    if template:
        (tmp_path / "model" / "chat_template.jinja").write_text(TEMPLATES[template].read_text(encoding="utf-8"))
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
    source = f"json_dumps = json.dumps\njson.dumps = lambda body: json_dumps(body | {{'tools': [{tool}]}})\n"
    source += "def main(task): return [ask('add', agent) for agent in ('planner', 'solver')][1]\n"
    actor = {"model": str(tmp_path / "model"), "learner": "grpo"}
    errors = list(scenario_errors(play_program(tmp_path, source, actor, history="append")))
    refused = [error.split(": append")[0] for error in errors if "cannot continue after a tool call: " in error]
    assert refused == ["roles.planner.history", "roles.solver.history"] * is_refused


def test_a_caller_that_the_program_never_asks_is_told(tmp_path: Path) -> None:
    run = play_program(tmp_path, "def main(task): return ask('add')\n")
    assert "roles.planner: did not speak in 8 random episodes" in scenario_warnings(run)


def test_a_program_that_always_fails_is_told_with_its_error(tmp_path: Path) -> None:
    run = play_program(tmp_path, "def main(task): raise KeyError('plan')\n")
    message = "roles.crew: its program failed in each of 8 random episodes; the last: KeyError: 'plan'"
    assert next(scenario_errors(run)) == message


def test_a_program_that_asks_without_end_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIMIT_S", 1.0)
    run = play_program(tmp_path, "def main(task):\n    while True: ask('again')\n")
    assert run.unfinished_requests
    assert next(scenario_warnings(run)).startswith(
        f"roles.crew: its program had not ended after 1 s and {run.unfinished_requests:,} question"
    )


def test_a_program_that_never_returns_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIMIT_S", 0.5)
    run = play_program(tmp_path, "import time\ndef main(task): time.sleep(3600)\n")
    assert next(scenario_warnings(run)) == (
        "roles.crew: its program had not ended after 0.5 s and 1 question of random play; a program without end is "
        "stopped by policies.program.engine.timeout_s, and an episode is left out after engine.attempts such programs"
    )


def test_a_program_whose_module_is_missing_is_refused_by_the_name_of_the_module(tmp_path: Path) -> None:
    cause = "a random episode failed: policy 'program': engine.call: ModuleNotFoundError: No module named 'no_module'"
    with pytest.raises(ValueError, match=cause):
        play_program(tmp_path, "import no_module\n")


@pytest.mark.parametrize(
    ("name", "override", "message"),
    [
        (
            "two_step_q",
            "policies.actor.model.actions=[a, c]",
            "policies.actor.model.actions: a, c, but role 'player' chooses among a, b; add b",
        ),
        (
            "kuhn_self_play",
            "experience={kind: dynamic, inside: [0.2, 0.8]}",
            "experience.success: no random episode had a measure 'success'; choices: none",
        ),
        (
            "kuhn_self_play",
            "experience={kind: pool}",
            "experience.success: no random episode had a measure 'success'; choices: none",
        ),
        (
            "two_games",
            "experience={kind: pool, success: won}",
            "experience.success: no random episode of game 'kuhn' had a measure 'won'; choices: none",
        ),
        (
            "kuhn_self_play",
            "credit.baseline={kind: group, like: problem}",
            "credit.baseline.like: 'problem', but role 'player' works on none: its game gives no `problem` in `infos`; "
            "choices: start, prompt",
        ),
    ],
)
def test_what_would_end_the_first_step_is_found_in_random_play(name: str, override: str, message: str) -> None:
    path = SCENARIOS / f"{name}.yaml"
    assert next(scenario_errors(play_dry_run(marl.load(path, [override])))) == message
    assert not list(scenario_errors(play_dry_run(marl.load(path))))


def test_a_critic_that_warms_up_for_the_whole_run_is_warned_of() -> None:
    learner = {"kind": "ppo", "lr": 1.0e-3, "critic": {"warm_up": 4}}
    changes = [
        f"policies.actor.learner={learner}",
        "credit={assign: gae, baseline: whiten}",
        "roles.player.sampling.top_p=1",
        "evaluate.every=2",
    ]
    too_short, long_enough = (
        list(scenario_warnings(play_dry_run(marl.load(SCENARIOS / "kuhn_self_play.yaml", [*changes, steps]))))
        for steps in ("schedule.steps=4", "schedule.steps=5")
    )
    assert too_short == [
        "policies.actor.learner.critic.warm_up: 4 updates train the critic alone, and the run has 4, so that the "
        "policy never changes; give fewer, or more schedule.steps"
    ]
    assert not long_enough
