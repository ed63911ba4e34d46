"""Named variants are one learner with other defaults; options that a loss does not have are refused by name."""

import json
from typing import Any

import pytest

from marl.core.plugins import RENAMED_KINDS, find_plugin, known_kinds
from marl.trainers.optim.settings import KlAnchor
from marl.trainers.policy_gradient.loss_settings import (
    CispoLoss,
    GmpoLoss,
    GspoLoss,
    PpoClipLoss,
    ReinforceLoss,
    RlooLoss,
    SapoLoss,
)
from marl.trainers.policy_gradient.objective import PolicyGradientObjective
from marl.trainers.policy_gradient.options import MismatchCorrection
from marl.trainers.policy_gradient.presets import Dapo
from marl.trainers.policy_gradient.settings import Grpo
from marl.view.settings_reference import describe_plugin_or_setting
from tests.support.learning_samples import SamplePlan, context, make_samples
from tests.support.run_processes import metric_lines as logged
from tests.support.solver_critic_game import policies, quiz_scenario, train_in_process

# Kind -> what differs from `grpo`, as in its paper (the numbers of the README's table).
PRESETS = {
    "grpo": {},
    "dr_grpo": {"aggregation": "seq_mean_token_sum_norm"},
    "dapo": {"loss": PpoClipLoss(clip_low=0.2, clip_high=0.28), "filter_cut": True},
    "gspo": {
        "loss": GspoLoss(clip_low=3e-4, clip_high=4e-4),
        "aggregation": "seq_mean_token_mean",
        "minibatches": 4,
    },
    "cispo": {"loss": CispoLoss(ratio_low=0.0, ratio_high=5.0)},
    "sapo": {"loss": SapoLoss(tau_positive=1.0, tau_negative=1.05), "aggregation": "seq_mean_token_mean"},
    "gmpo": {"loss": GmpoLoss(clip_low=0.4, clip_high=0.4), "aggregation": "seq_mean_token_mean"},
    "rloo": {"loss": RlooLoss(clip_low=0.2, clip_high=0.2), "aggregation": "seq_mean_token_mean"},
    "reinforce": {"loss": ReinforceLoss(), "aggregation": "seq_mean_token_sum"},
    "reinforce_plus_plus": {"reference": {"coefficient": 0.0}},
    "reinforce_plus_plus_baseline": {"reference": {"coefficient": 0.001, "estimator": "k2"}},
}
NEEDED = {"dr_grpo": {"norm": 64}}


def preset(kind, **more) -> Any:
    return find_plugin("trainers", kind)(**NEEDED.get(kind, {}), **more)


def dumped(settings):
    dump = settings.model_dump()
    if dump["reference"]:
        dump["reference"] = {k: v for k, v in dump["reference"].items() if v != KlAnchor(coefficient=9).model_dump()[k]}
    return dump


@pytest.mark.parametrize("kind", PRESETS)
def test_a_preset_differs_from_grpo_in_what_its_paper_says_and_in_nothing_else(kind):
    plain = dumped(Grpo())
    differences = {name: value for name, value in dumped(preset(kind)).items() if value != plain[name]}
    differences.pop("kind", None)
    expected = PRESETS[kind] | NEEDED.get(kind, {})
    if "loss" in expected:
        expected["loss"] = expected["loss"].model_dump()
    assert differences == expected
    assert type(preset(kind)).build is Grpo.build


@pytest.mark.parametrize("kind", PRESETS)
def test_every_preset_learns_with_one_and_the_same_objective(kind):
    learner: Any = preset(kind).build(context())
    assert type(learner.objective) is PolicyGradientObjective
    metrics = learner.update(make_samples(SamplePlan()))
    assert metrics["grad_norm"] > 0
    assert metrics["policy_loss"] != 0


@pytest.mark.parametrize("kind", PRESETS)
def test_a_resolved_preset_loads_again_as_the_same(kind):
    settings = preset(kind)
    assert type(settings)(**settings.model_dump(mode="json")) == settings


@pytest.mark.parametrize("kind", PRESETS)
def test_a_preset_is_described_with_its_own_defaults(kind):
    text = " ".join(describe_plugin_or_setting(["trainers", kind]).split())
    for name, value in PRESETS[kind].items():
        shown = value.kind if name == "loss" else next(iter(value)) if name == "reference" else str(value).lower()
        default = text.partition(f" {name}: ")[2].partition("; default ")[2]
        assert shown in default[:60]


@pytest.mark.parametrize(
    ("kind", "clip"),
    [
        ("ppo_clip", (0.2, 0.2)),
        ("gspo", (3e-4, 4e-4)),
        ("gspo_token", (3e-4, 4e-4)),
        ("rloo", (0.2, 0.2)),
        ("gmpo", (0.4, 0.4)),
    ],
)
def test_bounds_that_are_not_given_are_the_losss_own(kind, clip):
    loss: Any = Grpo(loss=kind).loss
    assert (loss.clip_low, loss.clip_high) == clip
    loss = Grpo.model_validate({"loss": {"kind": kind, "clip_high": 0.5}}).loss
    assert (loss.clip_low, loss.clip_high) == (clip[0], 0.5)
    assert Grpo.model_validate({"loss": "cispo"}).loss == CispoLoss(ratio_low=0.0, ratio_high=5.0)
    assert Grpo.model_validate({"loss": "sapo"}).loss == SapoLoss(tau_positive=1.0, tau_negative=1.05)


def test_a_loss_that_is_given_replaces_the_presets_with_all_its_options():
    settings = Dapo.model_validate({"loss": {"kind": "ppo_clip", "clip_low": 0.1}})
    assert settings.loss == PpoClipLoss(clip_low=0.1, clip_high=0.2)


@pytest.mark.parametrize("kind", [kind for kind in known_kinds("losses") if ":" not in kind])
def test_a_loss_is_built_once_and_loads_again_as_the_same(kind, monkeypatch):
    settings = Grpo(loss=kind)
    assert Grpo(**settings.model_dump(mode="json")) == settings
    builds, build = [], type(settings.loss).build
    monkeypatch.setattr(type(settings.loss), "build", lambda self: builds.append(1) or build(self))
    settings.build(context()).update(make_samples(SamplePlan()))
    assert len(builds) == 1


@pytest.mark.parametrize(("old", "new"), list(RENAMED_KINDS["losses"].items()))
def test_a_loss_of_an_earlier_version_is_refused_with_its_name_today(old, new):
    for loss in (old, {"kind": old}):
        with pytest.raises(ValueError, match=f"kind '{old}' of losses is now called '{new}'"):
            Grpo.model_validate({"loss": loss})
    assert new in known_kinds("losses")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"loss": "gspo_tokens"},
            "did you mean 'gspo_token'.* choices: awr, cispo, gmpo, gspo, gspo_token, ppo_clip",
        ),
        ({"loss": {"kind": "grpo"}}, r"unknown kind 'grpo' \(it is one of trainers\)"),
        ({"loss": {"kind": "ppo_clip", "ratio_low": 1}}, "unknown field 'ratio_low'"),
        ({"loss": 3}, "must be a mapping with `kind:`"),
    ],
)
def test_a_loss_that_is_no_part_or_has_no_such_option_is_named(settings, message):
    with pytest.raises(ValueError, match=message):
        Grpo(**settings)


OPTIONS: dict[str, Any] = {
    "clip_low": 0.1, "clip_high": 0.1, "dual_clip": 3.0, "ratio_low": 0.1, "ratio_high": 2.0,
    "tau_positive": 1.0, "tau_negative": 1.0, "max_log_ratio": 20.0,
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_of_a_loss_beside_the_loss_is_refused_with_the_place_where_it_belongs(name):
    value = OPTIONS[name]
    for given, kind in (({}, "ppo_clip"), ({"loss": "gspo"}, "gspo"), ({"loss": {"kind": "sapo"}}, "sapo")):
        advice = rf"{name} is an option of the loss: write loss: \{{kind: {kind}, {name}: {value}\}}"
        with pytest.raises(ValueError, match=advice):
            Grpo(**given, **{name: value})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": {"kind": "cispo", "ratio_low": 6.0}}, "ratio_low must be below ratio_high, got 6.0 and 5.0"),
        ({"loss": {"kind": "ppo_clip", "dual_clip": 1.0}}, "dual_clip"),
        ({"mismatch": {"kind": "tis"}}, "mismatch.kind='tis' would count the mismatch twice"),
        ({"mismatch": {"kind": "reject", "high": 1, "denominator": "kept"}}, "denominator='kept' needs old='read'"),
        ({"mismatch": {"kind": "reject"}}, "kind='reject' needs `high`"),
        ({"mismatch": {"kind": "icepop", "level": "token"}}, "level='token' has no effect with kind='icepop'"),
        ({"mismatch": {"kind": "tis", "span": "sum"}}, "span='sum' has no effect with kind='tis'"),
        ({"mismatch": {"kind": "tis", "low": 3}}, "low must be below high, got low=3.0 and high=2.0"),
        ({"reference": {"coefficient": 1, "estimator": "k1"}}, "k1 has no gradient in expectation, only noise"),
        ({"reference": {"coefficient": 1, "clamp": 10}}, "clamp=10.0 has no effect with estimator='exact'"),
        ({"reference": {"coefficient": 1, "horizon": 5}}, "horizon=5 has no effect without a target"),
        ({"reference": {"coefficient": 0, "target": 0.1}}, "target=0.1 steers the coefficient from a start above 0"),
        ({"reference": {"coefficient": 1, "target": 0.1, "final": 0}}, "no final"),
        ({"fidelity": {"every": 0}}, "every"),
    ],
)  # fmt: skip
def test_settings_that_contradict_each_other_are_refused_by_name(settings, message):
    with pytest.raises(ValueError, match=message.replace("`", ".")):
        Grpo(**settings)


def test_rejection_works_beside_the_ratio_to_the_sampler_and_weights_beside_the_ratio_to_a_reading():
    Grpo(mismatch=MismatchCorrection(kind="reject", high=0.5))
    Grpo(old="read", mismatch=MismatchCorrection(kind="tis", level="sequence"))
    Grpo(loss=ReinforceLoss(), mismatch=MismatchCorrection(kind="tis"))


def test_a_team_can_learn_with_two_presets_in_one_run(tmp_path):
    (one, other), short = policies(), quiz_scenario()["schedule"] | {"steps": 2}
    kinds = {one: {"learner": {"kind": "cispo", "lr": 1e-3}}, other: {"learner": {"kind": "gspo", "lr": 1e-3}}}
    assert train_in_process(
        tmp_path / "run", quiz_scenario(policies=policies(**kinds), schedule=short, evaluate={"every": 2})
    )
    last = json.loads(list(logged(tmp_path / "run"))[-1])
    assert all(last[f"policy/{name}/grad_norm"] >= 0 for name in kinds)
    assert last[f"policy/{one}/ratio_mean"] == pytest.approx(1, abs=0.1)
