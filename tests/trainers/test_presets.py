"""Named variants are one learner with other defaults; options that a loss does not have are refused by name."""

import json

import pytest
from learning_samples import Plan, context, make
from quiz_game import policies, quiz, trained
from real_runs import rows as logged

from marl.parts import find
from trainers.objectives.policy_gradient import Surrogate
from trainers.settings.losses import LOSSES, ClippedWeightLoss, SigmoidGateLoss
from trainers.settings.optimisation import Anchor
from trainers.settings.policy_gradient import Grpo, Mismatch

# Kind -> what differs from `grpo`, as in its paper (the numbers of the README's table).
PRESETS = {
    "grpo": {},
    "dr_grpo": {"aggregation": "seq_mean_token_sum_norm"},
    "dapo": {"clip_low": 0.2, "clip_high": 0.28, "filter_cut": True},
    "gspo": {"loss": "gspo", "aggregation": "seq_mean_token_mean", "minibatches": 4},
    "cispo": {"loss": "cispo", "ratio_low": 0.0, "ratio_high": 5.0},
    "sapo": {"loss": "sapo", "aggregation": "seq_mean_token_mean"},
    "gmpo": {"loss": "gmpo", "aggregation": "seq_mean_token_mean"},
    "reinforce_sequence": {"loss": "sequence", "aggregation": "seq_mean_token_mean"},
    "reinforce": {"loss": "reinforce", "aggregation": "seq_mean_token_sum"},
    "reinforce_pp": {"reference": {"coefficient": 0.0}},
    "reinforce_pp_baseline": {"reference": {"coefficient": 0.001, "estimator": "k2"}},
}
NEEDED = {"dr_grpo": {"norm": 64}}


def preset(kind, **more):
    return find("trainers", kind)(**NEEDED.get(kind, {}), **more)


def dumped(settings):
    dump = settings.model_dump()
    if dump["reference"]:
        dump["reference"] = {k: v for k, v in dump["reference"].items() if v != Anchor(coefficient=9).model_dump()[k]}
    return dump


@pytest.mark.parametrize("kind", PRESETS)
def test_a_preset_differs_from_grpo_in_what_its_paper_says_and_in_nothing_else(kind):
    plain = dumped(Grpo())
    differences = {name: value for name, value in dumped(preset(kind)).items() if value != plain[name]}
    differences.pop("kind", None)
    assert differences == PRESETS[kind] | NEEDED.get(kind, {})
    assert type(preset(kind)).build is Grpo.build


@pytest.mark.parametrize("kind", PRESETS)
def test_every_preset_learns_with_one_and_the_same_objective(kind):
    learner = preset(kind).build(context())
    assert type(learner.objective) is Surrogate
    metrics = learner.update(make(Plan()))
    assert metrics["grad_norm"] > 0
    assert metrics["policy_loss"] != 0


@pytest.mark.parametrize("kind", PRESETS)
def test_a_resolved_preset_loads_again_as_the_same(kind):
    settings = preset(kind)
    assert type(settings)(**settings.model_dump(mode="json")) == settings


@pytest.mark.parametrize(
    ("loss", "clip"),
    [
        ("clip", (0.2, 0.2)),
        ("gspo", (3e-4, 4e-4)),
        ("gspo_token", (3e-4, 4e-4)),
        ("sequence", (0.2, 0.2)),
        ("gmpo", (0.4, 0.4)),
    ],
)
def test_bounds_that_are_not_given_are_the_losss_own(loss, clip):
    part = Grpo(loss=loss).policy_loss
    assert (part.clip_low, part.clip_high) == clip
    part = Grpo(loss=loss, clip_high=0.5).policy_loss
    assert (part.clip_low, part.clip_high) == (clip[0], 0.5)
    assert Grpo(loss="cispo").policy_loss == ClippedWeightLoss(ratio_low=0.0, ratio_high=5.0)
    assert Grpo(loss="sapo").policy_loss == SigmoidGateLoss(tau_positive=1.0, tau_negative=1.05)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_named_by_a_word_with_options_beside_it_is_the_part_with_the_same_options(loss):
    kind = LOSSES[loss]().kind
    assert find("losses", kind) is LOSSES[loss]
    options = {name: value for name, value in OPTIONS.items() if name in HAVE[loss]}
    by_word, by_part = Grpo(loss=loss, **options), Grpo(loss={"kind": kind, **options})
    assert by_word.policy_loss == by_part.policy_loss
    assert Grpo(loss=kind).policy_loss == Grpo(loss=loss).policy_loss
    for settings in (by_word, by_part):
        assert Grpo(**settings.model_dump(mode="json")) == settings
    results = [settings.build(context()).update(make(Plan())) for settings in (by_word, by_part)]
    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"loss": "gspo_tokens"},
            "did you mean 'gspo_token'.* choices: advantage_weighted, cispo, clip, clipped_weight, geometric_mean",
        ),
        ({"loss": {"kind": "grpo"}}, r"unknown kind 'grpo' \(it is one of trainers\)"),
        ({"loss": {"kind": "clip", "ratio_low": 1}}, "unknown field 'ratio_low'"),
        ({"loss": {"kind": "clip"}, "clip_low": 0.1}, r"\{'clip_low': 0.1\} has no effect beside a loss with a kind"),
        ({"loss": 3}, "must be a mapping with `kind:`"),
    ],
)
def test_a_loss_that_is_no_part_or_has_no_such_option_is_named(settings, message):
    with pytest.raises(ValueError, match=message):
        Grpo(**settings)


OPTIONS = {
    "clip_low": 0.1, "clip_high": 0.1, "dual_clip": 3.0, "ratio_low": 0.1, "ratio_high": 2.0,
    "tau_positive": 1.0, "tau_negative": 1.0, "max_log_ratio": 20.0,
}  # fmt: skip
HAVE = {
    "clip": {"clip_low", "clip_high", "dual_clip", "max_log_ratio"},
    "gspo": {"clip_low", "clip_high", "max_log_ratio"},
    "gspo_token": {"clip_low", "clip_high", "max_log_ratio"},
    "sequence": {"clip_low", "clip_high", "max_log_ratio"},
    "gmpo": {"clip_low", "clip_high", "max_log_ratio"},
    "cispo": {"ratio_low", "ratio_high"},
    "sapo": {"tau_positive", "tau_negative", "max_log_ratio"},
    "reinforce": set(),
}


@pytest.mark.parametrize("loss", HAVE)
def test_an_option_that_a_loss_does_not_have_is_refused_by_name(loss):
    for name, value in OPTIONS.items():
        if name in HAVE[loss]:
            Grpo(loss=loss, **{name: value})
        else:
            with pytest.raises(
                ValueError, match=f"{name}={value} has no effect with loss='{loss}'; it is an option of"
            ):
                Grpo(loss=loss, **{name: value})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": "cispo", "ratio_low": 6.0}, "ratio_low must be below ratio_high, got 6.0 and 5.0"),
        ({"dual_clip": 1.0}, "dual_clip"),
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
    Grpo(mismatch=Mismatch(kind="reject", high=0.5))
    Grpo(old="read", mismatch=Mismatch(kind="tis", level="sequence"))
    Grpo(loss="reinforce", mismatch=Mismatch(kind="tis"))


def test_a_team_can_learn_with_two_presets_in_one_run(tmp_path):
    (one, other), short = policies(), quiz()["schedule"] | {"steps": 2}
    kinds = {one: {"learner": {"kind": "cispo", "lr": 1e-3}}, other: {"learner": {"kind": "gspo", "lr": 1e-3}}}
    assert trained(tmp_path / "run", quiz(policies=policies(**kinds), schedule=short, evaluate={"every": 2}))
    last = json.loads(list(logged(tmp_path / "run"))[-1])
    assert all(last[f"policy/{name}/grad_norm"] >= 0 for name in kinds)
    assert last[f"policy/{one}/ratio_mean"] == pytest.approx(1, abs=0.1)
