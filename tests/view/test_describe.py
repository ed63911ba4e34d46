"""`marl describe`: every setting with type, default and meaning, and an example that is valid."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, create_model

from marl.core.config import Config
from marl.core.plugins import GROUPS, find_plugin, known_kinds
from marl.scenario.load import validate
from marl.scenario.schema import Scenario
from marl.scenario.yaml_text import read_yaml
from marl.view.settings_reference import describe_plugin_or_setting
from marl.view.type_descriptions import describe_default, describe_type


class Sizes(Config):
    small: int | None = Field(default=None, ge=1, le=9)
    share: Annotated[float, Field(gt=0, lt=1)] | Literal["all"] = 0.5
    names: tuple[str, ...] = Field(default=(), min_length=1)
    limits: tuple[float, float] = (0.2, 5.0)
    by_name: dict[str, bool] = Field(default_factory=dict)
    path: Path
    word: Literal["one", "two"] = "one"
    anything: Any = "two words"


def entry(text: str, name: str) -> str:
    """The lines about one setting, as one line."""
    start = text.index(f"\n  {name}: ")
    return " ".join(text[start : text.index("\n\n", start)].split())


def example_of(text: str) -> dict[str, Any]:
    return read_yaml(text.split("\nexample:\n")[1], "example")


def check_example(text: str) -> None:
    """Validate the sections of the printed example, as far as it holds them; of a game on problems, its task."""
    for section, value in example_of(text).items():
        info = Scenario.model_fields[section]
        if ", one of tasks:" in text:  # a game would read the file that it names
            value, info = value["task"], find_plugin("games", "team").model_fields["task"]
        annotation: Any = info.annotation
        create_model("Section", section=(annotation, info))(section=value)


def test_types_and_defaults_are_in_words_for_people() -> None:
    words = {name: (describe_type(info), describe_default(info)) for name, info in Sizes.model_fields.items()}
    assert words == {
        "small": ("whole number ≥ 1 and ≤ 9 or null", "default null"),
        "share": ("number > 0 and < 1 or all", "default 0.5"),
        "names": ("[text, ...] (not empty)", "default []"),
        "limits": ("[number, number]", "default [0.2, 5.0]"),
        "by_name": ("{name: true or false}", "default {}"),
        "path": ("path", "must be given"),
        "word": ("one of one, two", "default one"),
        "anything": ("anything", 'default "two words"'),
    }


def test_a_kind_is_described_with_all_settings_and_those_within_them() -> None:
    text = describe_plugin_or_setting(["grpo"])
    assert text.startswith("grpo, one of trainers:\n    GRPO (2402.03300): clipped policy gradient")
    assert (
        entry(text, "lr")
        == "lr: number > 0; default 1e-06 Learning rate at the end of `warm_up`, from which `schedule` starts."
    )
    assert entry(text, "old").startswith("old: one of sampler, read; default sampler Log-probabilities in the")
    assert "part of losses (awr, cispo, gmpo, gspo, gspo_token, ppo_clip," in entry(text, "loss")
    assert 'default {"kind": "ppo_clip"}' in entry(text, "loss")
    assert "\nreference, magnet, proximal:\n    Penalty on the KL divergence" in text
    assert entry(text, "refresh").endswith("Null: the anchor keeps the initial weights.")
    assert example_of(text) == {"policies": {"actor": {"learner": {"kind": "grpo", "lr": 1e-5}}}}


def test_every_kind_has_an_example_that_is_valid() -> None:
    for group in GROUPS:
        for kind in known_kinds(group):
            text = describe_plugin_or_setting([group, kind])
            assert text.startswith(f"{kind}, one of {group}:\n    ")
            check_example(text)


def test_every_section_has_an_example_that_is_valid_and_they_are_one_scenario() -> None:
    assert describe_plugin_or_setting([]) == describe_plugin_or_setting(["scenario"])
    assert validate(example_of(describe_plugin_or_setting([]))).game.kind == "nim"
    for section in Scenario.model_fields:
        text = describe_plugin_or_setting(["scenario", section])
        assert list(example_of(text)) == [section]
        check_example(text)


@pytest.mark.parametrize(
    ("words", "beginning"),
    [
        ("role solver", "solver, one of roles:"),
        ("roles solver", "solver, one of roles:"),
        ("verifier exact", "exact, one of verifiers:"),
        ("verifier", "verifier, one of roles:"),
        ("learner.sft", "sft, one of trainers:"),
        ("trainers rloo", "rloo, one of trainers:"),
        ("baseline rloo", "rloo, one of baselines:"),
        ("schedule", "schedule: settings; must be given\n    Amount of play"),
        ("policies", "policies: {name: settings} (not empty); must be given"),
        ("schedule threads", "threads, a setting of schedule: whole number ≥ 1 and ≤ 4096 or null; default null\n"),
        ("credit.kl", "kl, a setting of credit: settings or null; default null\n"),
        ("grpo.reference.clamp", "clamp, a setting of reference, a setting of grpo, one of trainers: number > 0"),
        (
            "marl.trainers.policy_gradient.settings:Grpo lr",
            "lr, a setting of marl.trainers.policy_gradient.settings:Grpo,",
        ),
    ],
)
def test_a_subject_is_found_by_the_words_that_people_use(words: str, beginning: str) -> None:
    text = describe_plugin_or_setting(words.split())
    assert text.startswith(beginning)
    check_example(text)


def test_an_example_shows_where_a_nested_setting_stands() -> None:
    learner = {"kind": "grpo", "lr": 1e-5, "reference": {"coefficient": 0.01}}
    assert example_of(describe_plugin_or_setting(["grpo.reference"])) == {"policies": {"actor": {"learner": learner}}}
    policy = example_of(describe_plugin_or_setting(["policies.alternate"]))["policies"]["actor"]
    assert policy["alternate"] == {"period": 20, "steps": 10}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "grpp",
            "nothing is called 'grpp'; did you mean 'grpo' or 'group'? choices: game, games, seats",
        ),
        ("role solvr", "unknown kind 'solvr'; did you mean 'solver'? choices: aggregator, caller, challenger, critic"),
        (
            "roles solvr",
            "roles has no setting 'solvr'; did you mean 'solver'? nearest of 22 choices: solver",
        ),
        ("models", "'models' is a group of parts, so name one of it; choices: adapter, pretrained, q_network"),
        ("verifier polcy", "verifier, one of roles has no setting 'polcy'; did you mean 'policy'?"),
        ("schedule stepz", "schedule has no setting 'stepz'; did you mean 'steps'? choices: deadline_s, group_size"),
        ("grpo.lr.high", "lr, a setting of grpo, one of trainers has no setting 'high'; choices: none"),
    ],
)
def test_a_subject_that_is_not_there_is_answered_with_the_nearest(words: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        describe_plugin_or_setting(words.split())


def test_all_forms_of_a_setting_with_several_are_described_and_can_be_looked_into() -> None:
    text = describe_plugin_or_setting(["team.stages"])
    for name in ("verifies", "repeat", "keep"):
        assert f"\n  {name}: " in text
    assert describe_plugin_or_setting(["team.stages.repeat"]).startswith(
        "repeat, a setting of stages, a setting of team, one of games: whole"
    )


def test_a_kind_in_two_groups_says_which() -> None:
    code = (
        "import marl, sys; from marl.core.plugins import find_plugin as find; from marl.commands.cli import main;"
        "marl.register('twin', find('games', 'nim')); marl.register('twin', find('roles', 'player'));"
        "sys.argv = ['marl', 'describe', 'twin']; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    choices = "`marl describe games twin` or `marl describe roles twin`"
    assert (done.returncode, done.stderr) == (2, f"marl: 'twin' stands in games and roles: write {choices}\n")


def test_a_part_of_ones_own_is_described_from_its_own_source_without_further_consent(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from marl.protocols import LossConfig\n\n\nclass Mine(LossConfig):\n"
        '    """A loss of mine."""\n\n    slope: float = 1.0\n    """Nats a point."""\n    bare: int\n'
        "    def __call__(self, *tensors_BT): ...\n"
    )
    command = [sys.executable, "-m", "marl", "describe", "mine:Mine"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.stdout.startswith("mine:Mine, one of losses:\n    A loss of mine.\n"), done.stderr
    assert "  slope: number; default 1.0\n      Nats a point.\n\n  bare: whole number; must be given\n" in done.stdout
    assert "loss: {kind: 'mine:Mine'}" in done.stdout
