"""Demonstrations and preferences from files, in the tokens of the policy that learns from them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import zstandard
from test_tree_sampling import Spelled

from marl.core.types import Completion, CompletionFailure, Deal, Message, Request
from marl.experience.datasets import Demonstrations, Preferences
from marl.games.kuhn_poker import KuhnPokerConfig
from marl.roles.answering import PlayerRole
from marl.rollout.simulator import RolloutSimulator
from marl.scenario.load import ScenarioError, load, validate
from marl.training.build import build
from marl.training.run import Run
from tests.support.run_processes import RunWorkspace, SignalTrigger, kuhn_scenario, outcome, tiny_model, train_to_end
from tests.support.small_games import PAIR, make_simulator

GAME = KuhnPokerConfig()
CHAT = [{"role": "user", "content": "hi"}]


def written(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def solo(**roles: Any) -> RolloutSimulator:
    return make_simulator(
        GAME, Spelled(lambda request: request.forced or ""), **(roles or {"player": PlayerRole(policy="actor")})
    )


def groups(many: int, size: int = 1, first: int = 0) -> list[Deal]:
    seats: dict[str, str] = dict.fromkeys(map(str, PAIR), "player")
    return [Deal(f"{g}.{i}", str(g), g, seats) for g in range(first, first + many) for i in range(size)]


def replies(many: int) -> list[dict[str, str]]:
    return [{"prompt": f"p{i}", "completion": f"c{i}"} for i in range(many)]


def taught(tmp_path: Path, experience: dict[str, Any], learner: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A scenario that learns from a file, with Kuhn poker to be tested on."""
    scenario = kuhn_scenario(**{"experience": experience, "evaluate": {"every": 100}, "credit": {}, **more})
    return scenario | {"policies": {"actor": {"model": tiny_model(), "learner": {"lr": 1e-2, **learner}}}}


def states(made: Path) -> Run:
    """A run with a tiny model that knows Kuhn poker."""
    return build(validate(kuhn_scenario(schedule={"steps": 1, "groups": 20, "group_size": 2, "threads": 1})))


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, made: Path) -> None:
    monkeypatch.setenv("MARL_CACHE", str(made))


def test_a_told_turn_is_token_for_token_the_one_that_was_played(tmp_path: Path) -> None:
    run = states(tmp_path)
    played = [turn for episode in run.simulator.play(run.deals(0)) for turn in episode.turns]
    # What a model says in other tokens than its tokenizer would is told in the tokenizer's.
    turns = [turn for turn in played if turn.completion.text in (turn.request.options or {}).values()]
    rows = [{"messages": [m.to_dict() for m in t.request.messages] + [assistant(t.completion.text)]} for t in turns]
    rows += [{"prompt": t.request.messages[-1].content, "completion": t.completion.text} for t in turns]
    file = Demonstrations(path=written(tmp_path / "a.jsonl", rows), shuffle=False)
    episodes = [episode.turns[0] for episode in file.build().gather(0, lambda _: groups(len(rows)), run.simulator)]
    assert len(turns) > 30
    for turn, past in zip(episodes, [*turns, *turns], strict=True):
        assert turn.completion.token_ids == past.completion.token_ids
        assert turn.completion.logprobs == pytest.approx(past.completion.logprobs, abs=1e-4)
        if turn.request.messages == past.request.messages:
            assert turn.completion.prompt_ids == past.completion.prompt_ids
    assert [t.request.messages for t in episodes[: len(turns)]] == [t.request.messages for t in turns]


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def test_a_text_is_what_the_role_observes_and_messages_are_as_they_are(tmp_path: Path) -> None:
    rows = [{"prompt": "K", "completion": "bet"}, {"prompt": CHAT, "completion": [assistant("bet")]}]
    file = Demonstrations(path=written(tmp_path / "a.jsonl", rows), shuffle=False)
    first, second = file.build().gather(
        0, lambda _: groups(2), solo(player=PlayerRole(policy="actor", prompt="I see {{ observation }}"))
    )
    assert first.turns[0].request.messages[-1] == Message("user", "I see K")
    assert second.turns[0].request.messages == (Message("user", "hi"),)
    assert [t.turns[0].completion.text for t in (first, second)] == ["bet", "bet"]
    assert first.start != second.start


def test_a_preference_is_a_group_of_two_episodes_paid_one_and_zero(tmp_path: Path) -> None:
    rows = [{"prompt": f"p{i}", "chosen": f"good{i}", "rejected": f"bad{i}"} for i in range(3)]
    file = Preferences(path=written(tmp_path / "a.jsonl", rows), shuffle=False)
    episodes = file.build().gather(0, lambda _: groups(3, 2), solo())
    assert [(t.turns[0].completion.text, t.returns) for t in episodes[:2]] == [
        ("good0", {"player_0": 1.0}),
        ("bad0", {"player_0": 0.0}),
    ]
    assert [t.start for t in episodes[::2]] == [t.start for t in episodes[1::2]]
    assert len({t.start for t in episodes}) == 3
    assert {t.end for t in episodes} == {"terminated"}


def test_every_epoch_has_every_row_once_in_an_order_of_its_own_and_goes_on_where_it_stood(tmp_path: Path) -> None:
    settings = Demonstrations(path=written(tmp_path / "a.jsonl", replies(10)), seed=3)

    def texts(file: Any, many: int) -> list[str]:
        return [t.turns[0].completion.text for t in file.gather(0, lambda _: groups(many), solo())]

    file = settings.build()
    first = texts(file, 7)
    state = file.state_dict()
    second = texts(file, 13)
    epochs = (first + second)[:10], (first + second)[10:]
    assert [sorted(epoch) for epoch in epochs] == [sorted(f"c{i}" for i in range(10))] * 2
    assert epochs[0] != epochs[1]
    assert file.metrics() == {"written/epochs": 2.0}
    again = settings.build()
    again.load_state_dict(state)
    assert texts(again, 13) == second
    plain = settings.model_copy(update={"shuffle": False}).build()
    assert texts(plain, 12) == [f"c{i % 10}" for i in range(12)]
    written(tmp_path / "a.jsonl", replies(11))
    with pytest.raises(ValueError, match=r"a\.jsonl has 11 rows, but had 10 when the state was saved"):
        settings.build().load_state_dict(state)


def test_packed_json_lines_and_parquet_are_read_alike(tmp_path: Path) -> None:
    rows = [{"messages": [*CHAT, assistant(f"c{i}")]} for i in range(5)]
    plain = written(tmp_path / "a.jsonl", rows)
    packed = tmp_path / "a.jsonl.zst"
    packed.write_bytes(zstandard.compress(plain.read_bytes()))
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    cases = [Demonstrations(path=path).rows() for path in (plain, packed, tmp_path / "a.parquet")]
    assert cases[0] == cases[1] == cases[2]
    assert cases[0][1].answers == ("c1",)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "p"}, r"a\.jsonl, line 3, column 'completion': missing; .*choices: prompt"),
        ({"prompt": "p", "completion": ""}, "line 3, column 'completion': an empty answer"),
        ({"prompt": 7, "completion": "c"}, "line 3, column 'prompt': must be a text or a list of messages, got int"),
        ({"prompt": [], "completion": "c"}, "line 3, column 'prompt': no messages"),
        ({"messages": CHAT}, r"line 3, column 'messages': must end with an answer of the assistant, got \['user'\]"),
        ({"messages": ["hi"]}, "line 3, column 'messages': a message is an object with `role` and `content`"),
        (
            {"prompt": [{"role": "judge", "content": "x"}], "completion": "c"},
            "line 3, column 'prompt': role 'judge' is unknown; choices: system, user, assistant, tool",
        ),
        ({"prompt": "p", "completion": [*CHAT]}, r"must be one message of the assistant, got \['user'\]"),
    ],
)
def test_what_is_wrong_with_a_row_is_said_with_file_line_and_column(tmp_path: Path, row: Any, message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(replies(1)[0]) + "\n\n" + json.dumps(row) + "\n")
    with pytest.raises(ValueError, match=message):
        Demonstrations(path=path).build()


def test_marl_check_sees_a_missing_file_a_bad_row_and_an_unknown_role(tmp_path: Path) -> None:
    def problem(experience: dict[str, Any], **schedule: int) -> str:
        file = tmp_path / "scenario.yaml"
        sizes = {"steps": 1, "groups": 2, "group_size": 2} | schedule
        file.write_text(json.dumps(taught(tmp_path, experience, {"kind": "dpo"}, schedule=sizes)))
        with pytest.raises(ScenarioError) as caught:
            load(file)
        return str(caught.value)

    rows = [{"prompt": "p", "chosen": "c", "rejected": "r"}]
    path = str(written(tmp_path / "a.jsonl", rows))
    missing = problem({"kind": "preferences", "path": "nowhere.jsonl"})
    assert f"experience.path: no such file: {tmp_path / 'nowhere.jsonl'}" in missing
    (tmp_path / "a.txt").write_text("")
    assert "unknown format '.txt'; choices:" in problem({"kind": "preferences", "path": "a.txt"})
    bad = str(written(tmp_path / "b.jsonl", [*rows, {"prompt": "p", "chosen": "c"}]))
    assert "b.jsonl, line 2, column 'rejected': missing" in problem({"kind": "preferences", "path": bad})
    settings = {"kind": "preferences", "path": path}
    assert "experience.role: no seat has the role 'judge'" in problem(settings | {"role": "judge"})
    assert "experience.kind: a row of 'preferences' is 2 episodes" in problem(settings, group_size=3)
    assert "policies.actor.learner 'dpo' compares episodes" in problem({"kind": "rollouts"}, group_size=1)


def test_who_speaks_must_be_said_where_several_roles_sit() -> None:
    seats = {"one": "planner", "two": "solver"}
    file = Demonstrations(path=Path("a.jsonl"))
    assert list(file.seating_conflicts(seats, 1)) == ["role: missing: who gave the answers? choices: planner, solver"]
    assert not list(file.model_copy(update={"role": "solver"}).seating_conflicts(seats, 1))


def test_what_is_too_long_has_no_tokens_so_that_nobody_learns_it(tmp_path: Path) -> None:
    class Short(Spelled):
        def _answer(self, request: Request) -> Completion | CompletionFailure:
            return CompletionFailure("overflow", "too long") if request.forced == "c1" else super()._answer(request)

    file = Demonstrations(path=written(tmp_path / "a.jsonl", replies(3)), shuffle=False)
    episodes = file.build().gather(0, lambda _: groups(3), make_simulator(GAME, Short(lambda r: r.forced or "")))
    assert [t.turns[0].completion.token_ids for t in episodes] == [tuple(b"c0"), (), tuple(b"c2")]
    assert [t.turns[0].completion.finish for t in episodes] == ["stop", "overflow", "stop"]


def preferences(run: Run, path: Path) -> Path:
    """In each state of Kuhn poker that came up, the first legal move is preferred to the others."""
    turns = {t.request.messages: t for episode in run.simulator.play(run.deals(0)) for t in episode.turns}
    rows = []
    for messages, turn in turns.items():
        first, *rest = (turn.request.options or {}).values()
        chat = [message.to_dict() for message in messages]
        rows += [{"prompt": chat, "chosen": first, "rejected": other} for other in rest]
    return written(path, rows)


def test_offline_dpo_learns_what_a_file_prefers(tmp_path: Path) -> None:
    path = preferences(states(tmp_path), tmp_path / "a.jsonl")
    schedule = {"steps": 30, "groups": 8, "group_size": 2, "threads": 1}
    experience = {"kind": "preferences", "path": str(path)}
    run = build(validate(taught(tmp_path, experience, {"kind": "dpo", "beta": 0.5}, schedule=schedule)))
    metrics_of = trained(run)
    assert metrics_of[0]["pairs"] == 8
    assert metrics_of[0]["accuracy"] == 0
    assert all(metrics["accuracy"] >= 0.9 for metrics in metrics_of[-5:])
    assert metrics_of[-1]["margin"] > 1


def trained(run: Run) -> list[dict[str, float]]:
    """What the learner says of each step, without a run folder."""
    from marl.training.samples import collect_samples

    metrics_of = []
    for step in range(run.scenario.schedule.steps):
        episodes = run.experience.gather(step, run.deals, run.simulator)
        samples = collect_samples(episodes, run.assign_credit(episodes, run.read(episodes)), run.scenario.roles, {})[
            "actor"
        ]
        metrics_of.append(run.learners["actor"].update(samples))
    return metrics_of


def test_imitation_of_a_file_lowers_its_loss(tmp_path: Path) -> None:
    path = preferences(states(tmp_path), tmp_path / "a.jsonl")
    columns = {"prompt": "prompt", "completion": "chosen"}
    experience = {"kind": "demonstrations", "path": str(path), "columns": columns}
    schedule = {"steps": 20, "groups": 12, "group_size": 1, "threads": 1}
    losses = [
        m["loss"] for m in trained(build(validate(taught(tmp_path, experience, {"kind": "sft"}, schedule=schedule))))
    ]
    assert losses[-1] < 0.25 * losses[0]


@pytest.mark.slow
def test_a_killed_run_on_preferences_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    path = preferences(states(tmp_path), tmp_path / "a.jsonl")
    learner = {"kind": "dpo", "refresh": 2, "minibatches": 2}
    experience = {"kind": "preferences", "path": str(path)}
    schedule = {"steps": 6, "groups": 5, "group_size": 2, "threads": 1}
    scenario = taught(tmp_path, experience, learner, schedule=schedule, checkpoint={"every": 2})
    whole = train_to_end(tmp_path / "whole", scenario, ["--trust"])
    desk = RunWorkspace(tmp_path / "killed", scenario)
    assert desk.train("--trust", kill=SignalTrigger("open", "metrics.jsonl", 6)) == -9
    assert desk.train("--trust", "--resume", "auto") == 0, desk.take_output()
    assert outcome(desk.run) == outcome(whole.run)
