"""A dry run: what random play shows of a scenario before a weight is loaded."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from marl.evaluation import dry_run as module
from marl.evaluation.dry_run import DryRun, dry_run
from marl.games.base import TextGame, TextGameConfig
from marl.models.tiny import Tiny
from marl.models.tiny_build import build_tiny
from marl.scenario.load import validate
from tests.support.addition_task import AdditionTask
from tests.support.solver_critic_game import quiz_scenario

SOLVE = {"role": "solver", "examples": ["{{ answer }}", "{{ wrong[0] }}"]}
CRITIC = {"role": "critic", "hears": ["solver"], "legal": ["yes", "no"]}
TINY = {"model": {"kind": "tiny"}, "learner": "grpo"}


class Aimless(TextGame):
    """Two moves for ever, or until a number of turns."""

    name = "aimless"

    def deal(self, rng: Any, options: Mapping[str, Any]) -> str:
        self.played = 0
        return self.seats[0]

    def start_key(self) -> str:
        return "only"

    def describe(self, agent: str) -> str:
        return "[left] or [right]"

    def information_state(self, agent: str) -> str:
        return str(self.played)

    def apply_action(self, action: str) -> str | Mapping[str, float]:
        self.played += 1
        if self.turns and self.played == self.turns:
            raise RuntimeError(f"the {action} path ends")
        return self.seats[0]


class AimlessConfig(TextGameConfig):
    kind: str = "test_dry_run:AimlessConfig"
    turns: int = 0

    def build(self) -> Aimless:
        game = Aimless(("walker",), self.illegal, ("left", "right"))
        game.turns = self.turns  # type: ignore[attr-defined]
        return game


def walk(settings: Mapping[str, Any] | None = None, **more: Any) -> DryRun:
    data = {
        "game": {"kind": AimlessConfig().kind, **(settings or {})},
        "seats": {"walker": "walker"},
        "roles": {"walker": {"kind": "player", "policy": "actor"}},
        "policies": {"actor": TINY},
        "schedule": {"steps": 1, "groups": 1, "group_size": 2},
    }
    return dry_run(validate(data | more))


def play(*stages: Mapping[str, Any], actor: Mapping[str, Any] = TINY, **more: Any) -> DryRun:
    """A dry run of a solver and whoever else speaks in these stages, all with the policy `actor`."""
    speaking = dict.fromkeys(each["role"] for stage in stages for each in stage.get("stages", [stage]))
    data = {
        "game": {"kind": "team", "task": {"kind": AdditionTask().kind}, "stages": stages},
        "roles": {role: {"kind": role, "policy": "actor"} | more.pop(role, {}) for role in speaking},
        "policies": {"actor": actor},
        "schedule": {"steps": 1, "groups": 2, "group_size": 2},
    }
    return dry_run(validate(data | more))


def test_the_prompts_are_those_of_play_and_the_answers_those_that_the_game_offers() -> None:
    run = play(SOLVE, CRITIC)
    assert len(run.episodes) == module.EPISODES
    solver, critic = run.turns["solver"][0], run.turns["critic"][0]
    assert solver.request.messages[-1].content.startswith(solver.problem)
    assert solver.completion.text in solver.request.examples
    assert critic.completion.text in ("<verdict>yes</verdict>", "<verdict>no</verdict>")
    assert solver.action
    assert f"```\n{solver.completion.text}\n```" in critic.request.messages[-1].content
    assert (list(run.problems()), list(run.notes())) == ([], [])


def test_the_same_scenario_is_played_alike_every_time() -> None:
    assert play(SOLVE, CRITIC).episodes == play(SOLVE, CRITIC).episodes


def test_who_may_say_anything_without_examples_says_something_and_is_no_problem_for_a_large_model() -> None:
    run = play({"role": "solver"}, CRITIC, actor={"model": "someone/model", "learner": "grpo"})
    assert run.free_text_roles == {"solver"}
    assert run.turns["solver"][0].completion.text == "<answer>1</answer>"
    assert list(run.problems()) == []


def test_random_play_without_examples_is_refused_where_an_evaluation_needs_it() -> None:
    large = {"model": "someone/model", "learner": "grpo"}
    (problem,) = play({"role": "solver"}, actor=large, evaluate={"against": {"random": 2}}).problems()
    assert problem.startswith("roles.solver: any text is a move and the game gives no examples of moves, but ")
    assert problem.endswith("`random` of evaluate.against plays")


def test_a_role_that_cannot_read_what_it_is_to_say_is_refused() -> None:
    (problem,) = play(SOLVE, CRITIC | {"legal": ["fine", "bad"]}).problems()
    assert problem.startswith("roles.critic: reads no move in what it is to say itself, such as '<verdict>")


def test_more_minibatches_than_an_update_has_samples_are_refused() -> None:
    def learner(minibatches: int) -> dict[str, Any]:
        return {**TINY, "learner": {"kind": "grpo", "minibatches": minibatches}}

    assert list(play(SOLVE, CRITIC, actor=learner(8)).problems()) == []
    assert list(play(SOLVE, CRITIC, actor=learner(9)).problems()) == [
        "policies.actor.learner.minibatches: 9, but an update has about 8 samples: 4 episodes with up to 2 turns each"
    ]
    assert list(play(SOLVE, CRITIC, actor=learner(16) | {"update_every": 2}, schedule=twice()).problems()) == []
    assert list(play(SOLVE, CRITIC, actor=learner(8), critic={"trainable": False}).problems())


def twice() -> dict[str, Any]:
    return {"steps": 2, "groups": 2, "group_size": 2}


def test_a_chat_template_that_refuses_a_prompt_is_told(tmp_path: Path) -> None:
    build_tiny(Tiny(vocabulary="bytes"), tmp_path / "model", ())
    (tmp_path / "model" / "chat_template.jinja").write_text("{{ raise_exception('no user may speak') }}")
    run = play(SOLVE, actor={"model": str(tmp_path / "model"), "learner": "grpo"})
    assert [problem.split(":")[0] for problem in run.problems()] == ["roles.solver"]
    assert "no user may speak" in next(run.problems())


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
    assert run.unfinished
    assert next(run.notes()) == (
        f"an episode had not ended after 0.2 s and {run.unfinished:,} questions of random play"
    )


def test_prompts_that_take_long_to_write_are_broken_off_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIMIT_S", 0.2)
    began = time.process_time()
    crowd = {"role": "solver", "n": 1000, "hears": ["solver"], "examples": ["{{ answer }}"]}
    run = play({"repeat": 1000, "stages": [crowd]})
    assert run.unfinished is not None
    assert time.process_time() - began < 5


def test_a_role_that_never_speaks_is_told() -> None:
    silent = CRITIC | {"when": "split == 'held_out'"}
    assert list(play(SOLVE, silent).notes()) == ["roles.critic: did not speak in 8 random episodes"]


def test_a_prompt_and_an_answer_that_do_not_fit_the_model_are_told() -> None:
    run = play(SOLVE, actor={"model": {"kind": "tiny", "context": 100}, "learner": "grpo"})
    (note,) = run.notes()
    assert note.startswith("roles.solver: a prompt of ")
    assert note.endswith("more than the 100 that the model of policies.actor was made for")


def test_a_measure_that_no_random_episode_had_is_told() -> None:
    assert list(dry_run(validate(quiz_scenario())).notes()) == []
    wrong = quiz_scenario(evaluate={"held_out": 6, "keep_best": "succes"})
    (note,) = dry_run(validate(wrong)).notes()
    assert note.startswith("evaluate.keep_best: no random episode had a measure 'succes'; did you mean 'success'")


def test_who_hears_words_that_no_prompt_of_its_uses_is_named() -> None:
    deaf = {"prompt": "{{ observation }}"}
    (note,) = play(SOLVE, CRITIC, critic=deaf).notes()
    assert note.startswith("roles.critic: hears role 'solver', but no prompt in")
    shown = {**CRITIC, "tell": "{{ question }} {{ solver.move }}"}
    assert not list(play(SOLVE, shown, critic=deaf).notes()), "the game tells of them"
