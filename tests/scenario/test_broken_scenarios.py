"""What a scenario's author can get wrong, and the message that says what to mend: file, field, value, choices."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import marl
from marl.core.plugins import known_kinds
from marl.scenario.load import ScenarioError, validate
from tests.support.paths import KUHN, SCENARIOS

LEARNER = "policies.actor.learner"
ENGINES, GAMES = ", ".join(known_kinds("engines")), ", ".join(known_kinds("games"))
LEARNERS = (
    "awr, cispo, dapo, dpo, dr_grpo, gmpo, grpo, gspo, ppo, prime, pspo, q_learning, reinforce, "
    "reinforce_plus_plus, reinforce_plus_plus_baseline, reward_modeling, rloo, sapo, sft"
)
OR_PATH = ", or an import path 'package.module:Name'"
CUT_OFF = (
    "cut tokens off, and policies.actor.learner would see other probabilities; set its `truncated: recompute`, "
    "or top_p: 1 and top_k: 0"
)

TYPOS = {
    "gamee={}": "gamee: unknown field 'gamee'; did you mean 'game' or 'games'? choices: alarms, checkpoint, "
    "cluster, credit, evaluate, experience, game, games, policies, roles, schedule, seats, track",
    "schedule.stepz=5": "schedule.stepz: unknown field 'stepz'; did you mean 'steps'? choices: deadline_s, group_size, "
    "groups, max_drops, max_turns, mix, on_error, rotate_seats, seed, steps, threads, worker_delay",
    "game.illega=1": "game.illega: unknown field 'illega'; did you mean 'illegal'? choices: disguise, illegal, kind",
    "game.illegal.thn=x": "game.illegal.thn: unknown field 'thn'; did you mean 'then'? choices: penalty, retry, then",
    "roles.player.sampling.temprature=1": "roles.player.sampling.temprature: unknown field 'temprature'; did you mean "
    "'temperature'? choices: max_tokens, stop, structured, temperature, thinking_tokens, top_k, top_p",
    f"{LEARNER}.magnet.coeficient=1": f"{LEARNER}.magnet.coeficient: unknown field 'coeficient'; did you mean "
    "'coefficient'? choices: clamp, coefficient, estimator, final, horizon, refresh, schedule, target",
    "policies.actor.engine={kind: transformers, slot: 1}": "policies.actor.engine.slot: unknown field 'slot'; did you "
    "mean 'slots'? choices: cache, cache_at_update, kind, max_context, prefill_tokens, slots",
    "policies.actor.model.warm_up.stepz=2": "policies.actor.model.warm_up.stepz: unknown field 'stepz'; did you mean "
    "'steps'? choices: batch, episodes, lr, seed, steps",
    "credit.roles.player.scal=2": "credit.roles.player.scal: unknown field 'scal'; did you mean 'scale'? choices: "
    "assign, baseline, kl, overlong, scale, token_cost",
}
KINDS = {
    **{
        f"{field}=tic_tac_to": f"game.kind: unknown kind 'tic_tac_to'; did you mean 'tic_tac_toe'? "
        f"nearest of {len(known_kinds('games'))} choices: tic_tac_toe, taboo, negotiation, two_step, coalition, "
        f"textarena{OR_PATH}"
        for field in ("game.kind", "game")
    },
    f"{LEARNER}.kind=grop": f"{LEARNER}.kind: unknown kind 'grop'; did you mean 'grpo' or "
    f"'prompt'? nearest of {len(known_kinds('trainers'))} choices: grpo, prompt, dr_grpo, gmpo, gspo, "
    f"rloo{OR_PATH}",
    "policies.actor.engine.kind=tansformers": "policies.actor.engine.kind: unknown kind 'tansformers'; did you mean "
    f"'transformers'? nearest of {len(known_kinds('engines'))} choices: transformers, random, verifiers, tit_for_tat, "
    f"tabular, template{OR_PATH}",
    "policies.actor.engine={slots: 3}": f"policies.actor.engine.kind: missing; choices: {ENGINES}",
    "game=3": f"game: must be a mapping with `kind:`; choices: {GAMES} (got 3)",
    "game.kind=3": f"game.kind: must be a name, got 3; choices: {GAMES}",
    "game.kind=no.such:Thing": "game.kind: kind 'no.such:Thing': no module 'no' to import",
    "game.kind=yaml:nothing": "game.kind: kind 'yaml:nothing': module 'yaml' has no 'nothing'; 'yaml' is "
    + str(Path(yaml.__file__).parent),
    "game.kind=yaml:dump": "game.kind: kind 'yaml:dump' is no part of games: it must be a subclass of its settings, "
    "GameConfig",
    "game.kind=marl.roles.answering:PlayerRole": "game.kind: kind 'marl.roles.answering:PlayerRole' is no part of "
    "games: it must be a subclass of its settings, GameConfig",
    "game.kind=marl.protocols:GameConfig": "game.kind: kind 'marl.protocols:GameConfig' is unfinished: it has no build",
    "game.kind=.:x": "game.kind: kind '.:x': an import path is written 'package.module:Name'",
    "credit.assign.kind=group": "credit.assign.kind: unknown kind 'group' (it is one of baselines); nearest of "
    f"{len(known_kinds('credit'))} choices: graph_gae, replay, process, outcome, trajectory, gae, "
    "or an import path 'package.module:Name'",
    "credit.baseline.kind=flow": "credit.baseline.kind: unknown kind 'flow' (it is one of credit); did you mean "
    f"'rloo'? choices: {', '.join(known_kinds('baselines'))}, or an import path 'package.module:Name'",
}
VALUES = {
    "schedule.steps=-1": "schedule.steps: must be greater than 0 (got -1)",
    "schedule.steps=many": "schedule.steps: must be a whole number (got 'many')",
    "schedule.steps=1.5": "schedule.steps: must be a whole number (got 1.5)",
    "schedule.steps=null": "schedule.steps: must be a whole number (got None)",
    f"{LEARNER}.warm_up=true": f"{LEARNER}.warm_up: must be a number (got True)",
    "schedule.threads=yes": "schedule.threads: must be a number (got True)",
    "schedule.rotate_seats=maybe": "schedule.rotate_seats: must be true or false (got 'maybe')",
    "schedule=[1]": "schedule: must be a mapping (`name: value`) (got [1])",
    "seats=[player]": "seats: must be a mapping (`name: value`) (got ['player'])",
    "seats.player_0=3": "seats.player_0: must be text: quote it (got 3)",
    "roles={}": "roles: must have at least 1, has 0 (got {})",
    "track=wandb": "track: must be a list ([a, b]) (got 'wandb')",
    "track=[wandb, wandb]": "track: 'wandb' is listed twice; list it once (got ['wandb', 'wandb'])",
    "track=[wandbb]": "track.0: unknown; did you mean 'wandb'? choices: mlflow, trackio, wandb (got 'wandbb')",
    f"{LEARNER}.lr=abc": f"{LEARNER}.lr: must be a number (got 'abc')",
    f"{LEARNER}.lr=.inf": f"{LEARNER}.lr: must be a finite number (got inf)",
    f"{LEARNER}.betas=[0.9]": f"{LEARNER}.betas.1: missing; it must be given",
    f"{LEARNER}.betas=[0.9, 0.9, 0.9]": f"{LEARNER}.betas: must have at most 2, has 3 (got [0.9, 0.9, 0.9])",
    f"{LEARNER}.betas=[0.9, 1.0]": f"{LEARNER}.betas.1: must be less than 1.0 (got 1.0)",
    f"{LEARNER}.betas=[-0.1, 0.9]": f"{LEARNER}.betas.0: must be at least 0.0 (got -0.1)",
    f"{LEARNER}.entropy_control={{target: 0.3, low: 2, high: 1}}": f"{LEARNER}.entropy_control.low: 2 is above high: "
    "1; choices: low up to high",
    f"{LEARNER}.schedule=linar": f"{LEARNER}.schedule: unknown; did you mean 'linear'? choices: constant, cosine, "
    "inverse_sqrt, linear (got 'linar')",
    "alarms.stop=[kl, kl]": "alarms.stop: 'kl' is listed twice; list it once (got ['kl', 'kl'])",
    "credit.assign={kind: flow, along: [told, told]}": "credit.assign.along: 'told' is listed twice; list it once (got "
    "['told', 'told'])",
    "policies.actor.model={kind: adapter, base: {kind: tiny}, targets: [q_proj, q_proj]}": "policies.actor.model."
    "targets: 'q_proj' is listed twice; list it once (got ['q_proj', 'q_proj'])",
    "roles.player.sampling.top_p=2": "roles.player.sampling.top_p: must be at most 1.0 (got 2)",
    "checkpoint.trajectories=2": "checkpoint.trajectories: must be at most 1.0 (got 2)",
    "evaluate.against.random=0": "evaluate.against.random: must be greater than 0 (got 0)",
    "experience.kind=recorded": "experience.path: missing; give a run's folder, or files; not both",
    "game.illegal={then: random, penalty: 3}": "game.illegal.penalty: 3.0 is never paid with then: 'random'; choices: "
    "forfeit, penalty",
    "policies.actor.model={kind: tiny, hidden: 33}": "policies.actor.model.hidden: 33 is no multiple of heads: 2; "
    "give head_dim",
    "roles={'a b': {kind: player, policy: actor}}": "roles: 'a b' is no name: use letters, digits, '_' and '-' (it "
    "becomes a folder)",
    "roles={../x: {kind: player, policy: actor}}": "roles: '../x' is no name: use letters, digits, '_' and '-' (it "
    "becomes a folder)",
    "roles.player.prompt='{{ observation'": "roles.player.prompt: not a jinja2 template: unexpected end of template, "
    "expected 'end of print statement'. (line 1) (got '{{ observation')",
    "roles.player.prompt='{{ observatio }}'": "roles.player.prompt: the template uses 'observatio', which does not "
    "exist; did you mean 'observation'? choices: agent, attempt, before, continued, heard, last, legal, mine, "
    "observation, rules, tools (got '{{ observatio }}')",
}
FITS = {
    "seats={player_0: player}": "seats.player_1: missing: game 'kuhn_poker' has the agents player_0, player_1",
    "seats.player_2=player": "seats.player_2: game 'kuhn_poker' has no such agent; did you mean 'player_0' or "
    "'player_1'? choices: player_0, player_1",
    "seats.player_0=plyer": "seats.player_0: no role 'plyer'; did you mean 'player'? choices: player",
    "roles.judge={kind: player, policy: actor}": "roles.judge: no seat uses this role; seats: {'player_0': 'player', "
    "'player_1': 'player'}",
    "policies.other.engine.kind=random": "policies.other: no role speaks with this policy; roles: player",
    f"{LEARNER}=null": "policies: nothing to train: give one of actor a learner",
    "roles.player.trainable=false": f"{LEARNER}: no role with `trainable: true` speaks with this policy",
    "policies.actor.model=null": "policies.actor.model: engine 'transformers' needs a model: a folder, a hub name or "
    "{kind: tiny}",
    "schedule.group_size=1": "schedule.group_size: 1, but credit.baseline 'group' compares episodes with the same "
    "start; use 2 or more, or another baseline (role_average, none)",
    "schedule.rotate_seats=true": "schedule.rotate_seats: true, but all seats have the same role; give them different "
    "ones or drop it",
    "credit.roles.plyer.scale=2": "credit.roles.plyer: no role 'plyer'; did you mean 'player'? choices: player",
    "roles.player.sampling.temperature=0": "roles.player.sampling.temperature: 0 always says the same, so there is "
    "nothing to learn from; use more, such as 1",
    "roles.player.history=append": "roles.player.history: 'append', but exact evaluation asks each question alone; use "
    "'fresh'",
    "evaluate.keep_best=eval/nashcon": "evaluate.keep_best: nothing measures 'eval/nashcon'; did you mean "
    "'eval/nashconv'? choices: eval/average/nashconv, "
    "eval/legal_mass, eval/nashconv, eval/value/player_0, "
    "eval/value/player_1",
    "credit.overlong={limit: 300, buffer: 5}": "credit.overlong.limit: 300 and buffer: 5 charge answers of more than "
    "295 tokens, but max_tokens ends those of player after 6; choices: limit - buffer below 6",
    "roles.player.sampling.stop=['.', '.']": "roles.player.sampling.stop: '.' is listed twice; list it once",
    "roles.player.sampling.stop=['.', '']": "roles.player.sampling.stop: '' ends every answer before its first token; "
    "remove it",
    "evaluate.against.rando=10": "evaluate.against.rando: no such opponent in game 'kuhn_poker'; did you mean "
    "'random'? choices: nash, random",
    "evaluate.optimal=true": "evaluate.optimal: game 'kuhn_poker' does not know its optimal moves; measure `against` "
    "instead",
    "game={kind: tic_tac_toe}": "evaluate.nashconv: game 'tic_tac_toe' does not export its deals; measure `against` "
    "instead",
    "experience={kind: recorded, path: /no/such.jsonl.zst}": "experience.path: no such file: /no/such.jsonl.zst; runs "
    "write them as trajectories/STEP.jsonl.zst, and `marl play SCENARIO experience=rollouts --episodes 100 --out "
    "/no/such.jsonl.zst` writes one",
    "policies.actor.model=/no/such/model": "policies.actor.model.path: '/no/such/model': there is no such folder",
}
OVERRIDES = {
    "schedule.steps": "write it as dotted.path=value, e.g. schedule.steps=100",
    "=3": "write it as dotted.path=value, e.g. schedule.steps=100",
    "schedule..steps=3": "write it as dotted.path=value, e.g. schedule.steps=100",
    "checkpoint.every.x=1": "checkpoint.every is 200, which has no fields",
    "experience=rollouts experience.path=x": "experience is 'rollouts', which has no fields; to set fields of it, "
    "write it as {kind: rollouts} first",
    "schedule.steps=[1": "not YAML: line 1, column 3: expected ',' or ']', but got '<stream end>'",
}
FILES = {
    "a_tab": ("game:\n\tkind: kuhn_poker\n", "not YAML: line 2, column 1: found character '\\t' that cannot start any "
              "token; indent with spaces"),
    "a_key_twice": ("game: nim\nseats: {}\ngame: nim\n", "not YAML: line 3, column 1: key 'game' is given twice"),
    "a_nested_key_twice": ("game:\n  kind: a\n  kind: a\n", "not YAML: line 3, column 3: key 'kind' is given twice"),
    "a_list_as_a_key": ("? [1]\n: 2\n", "not YAML: line 1, column 3: a key must be a name"),
    "an_open_bracket": ("game: {a: b\n", "not YAML: line 2, column 1: expected ',' or '}', but got '<stream end>'"),
    "an_unknown_tag": ("game: !!python/object:x.Y {}\n", "not YAML: line 1, column 7: tag "
                       "'tag:yaml.org,2002:python/object:x.Y': scenarios have plain text, numbers, lists and mappings"),
    "a_list": ("- game\n", "must be a mapping with game, roles, policies, schedule; got list"),
    "nothing": ("", "must be a mapping with game, roles, policies, schedule; got an empty file"),
}  # fmt: skip


def problems(*overrides: str) -> list[str]:
    """What is said of the Kuhn scenario after these edits."""
    with pytest.raises(ScenarioError) as caught:
        marl.load(KUHN, overrides)
    first, *rest = str(caught.value).split("\n")
    assert first == f"{KUHN}: {len(rest)} problem{'s' if len(rest) > 1 else ''}"
    return [line.removeprefix("  ") for line in rest]


@pytest.mark.parametrize(("override", "message"), [*TYPOS.items()], ids=[*TYPOS])
def test_a_misspelt_field_is_named_with_its_path_and_the_nearest_ones(override: str, message: str) -> None:
    assert problems(override) == [message]


@pytest.mark.parametrize(("override", "message"), [*KINDS.items()], ids=[*KINDS])
def test_a_kind_that_is_no_part_is_named_with_the_choices(override: str, message: str) -> None:
    assert problems(override) == [message]


@pytest.mark.parametrize(("override", "message"), [*VALUES.items()], ids=[*VALUES])
def test_a_wrong_value_is_shown_with_what_would_be_right(override: str, message: str) -> None:
    assert problems(override) == [message]


@pytest.mark.parametrize(("override", "message"), [*FITS.items()], ids=[*FITS])
def test_parts_that_do_not_fit_together_are_named(override: str, message: str) -> None:
    assert problems(override) == [message]


@pytest.mark.parametrize(
    ("override", "numbers"),
    [
        ("roles.player.sampling.top_p=0.9", "top_p 0.9 and top_k 0"),
        ("roles.player.sampling={max_tokens: 6, top_k: 5}", "top_p 1 and top_k 5"),
    ],
)
def test_a_learner_is_not_given_tokens_that_were_drawn_from_fewer_than_it_sees(override: str, numbers: str) -> None:
    assert problems(override, f"{LEARNER}.truncated=refuse") == [f"roles.player.sampling: {numbers} {CUT_OFF}"]


@pytest.mark.parametrize(("overrides", "message"), [*OVERRIDES.items()], ids=[*OVERRIDES])
def test_an_override_that_cannot_be_followed_says_why(overrides: str, message: str) -> None:
    *before, last = overrides.split(" ")
    with pytest.raises(ScenarioError) as caught:
        marl.load(KUHN, [*before, last])
    assert str(caught.value).split("\n")[0] == f"override {last!r}: {message}"


@pytest.mark.parametrize(("text", "message"), [*FILES.values()], ids=[*FILES])
def test_a_file_that_is_no_scenario_says_where(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(ScenarioError) as caught:
        marl.load(file)
    assert str(caught.value).split("\n")[0] == f"{file}: {message}"


@pytest.mark.parametrize("section", ["game", "roles", "policies", "schedule"])
def test_a_missing_section_is_named(section: str) -> None:
    data = yaml.safe_load(KUHN.read_text())
    del data[section]
    with pytest.raises(ScenarioError) as caught:
        validate(data, "mine.yaml")
    instead = ", or `games` for several" if section == "game" else ""
    assert str(caught.value) == f"mine.yaml: 1 problem\n  {section}: missing; it must be given{instead}"


def test_without_seats_every_agent_of_a_game_that_casts_nobody_is_named() -> None:
    assert problems("seats=null") == ["seats: must be a mapping (`name: value`) (got None)"]
    assert problems("seats={}") == [
        "roles.player: no seat uses this role; seats: {}",
        "seats.player_0: missing: game 'kuhn_poker' has the agents player_0, player_1",
        "seats.player_1: missing: game 'kuhn_poker' has the agents player_0, player_1",
    ]
    data = yaml.safe_load(KUHN.read_text())
    del data["seats"]
    with pytest.raises(ScenarioError, match=r"seats\.player_0: missing.*\n.*seats\.player_1: missing"):
        validate(data, "mine.yaml")


def test_a_missing_file_lists_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").touch()
    (tmp_path / "a.yaml").touch()
    with pytest.raises(ScenarioError) as caught:
        marl.load(tmp_path / "c.yaml")
    there = f"{tmp_path / 'a.yaml'}, {tmp_path / 'b.yaml'}"
    assert str(caught.value) == f"{tmp_path / 'c.yaml'}: no such file; scenarios there: {there}"


def test_a_file_that_is_not_text_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ScenarioError, match=r"mine.yaml: cannot be read: 'utf-8' codec"):
        marl.load(tmp_path / "mine.yaml")


def test_all_problems_are_shown_at_once() -> None:
    errors = problems("schedule.steps=-1", "game.illega=1", f"{LEARNER}.lr=0", "credit.scale=0")
    assert [line.split(":")[0] for line in errors] == [
        "game.illega",
        f"{LEARNER}.lr",
        "credit.scale",
        "schedule.steps",
    ]


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ("[]", "game.stages: must have at least 1, has 0 (got [])"),
        ("[{repeat: 2, stages: []}]", "game.stages.0.stages: must have at least 1, has 0 (got [])"),
        ("[{role: 3}]", "game.stages.0.role: must be text: quote it (got 3)"),
    ],
)
def test_a_list_whose_only_item_is_wrong_is_not_said_to_be_too_short(stages: str, message: str) -> None:
    assert problems(f"game={{kind: team, task: arithmetic, stages: {stages}}}") == [message]


def test_a_misspelt_seat_is_both_missing_and_unknown() -> None:
    assert problems("seats={player_0: player, playr_1: player}") == [
        "seats.player_1: missing: game 'kuhn_poker' has the agents player_0, player_1",
        "seats.playr_1: game 'kuhn_poker' has no such agent; did you mean 'player_1' or 'player_0'? choices: player_0, "
        "player_1",
    ]


def test_an_undefined_policy_leaves_the_defined_one_without_a_role() -> None:
    assert problems("roles.player.policy=actr") == [
        "roles.player.policy: no policy 'actr'; did you mean 'actor'? choices: actor",
        "policies.actor: no role speaks with this policy; roles: player",
    ]


def test_a_scripted_player_has_no_model_and_cannot_learn() -> None:
    assert problems("policies.actor.engine.kind=random") == [
        "policies.actor.model: engine 'random' has no use for a model; remove it",
        "policies.actor.learner: 'grpo' on a policy that cannot learn: engine 'random' has no weights; remove the "
        "learner, or use an engine with a model (transformers)",
    ]


def test_probabilities_of_a_tabular_player_must_sum_to_one() -> None:
    table = "policies.other={engine: {kind: tabular, table: {J: {check: 0.5, bet: 0.6}}}}"
    assert problems(table) == [
        "policies.other.engine.table: state 'J': {'check': 0.5, 'bet': 0.6} are no probabilities: they must sum to 1"
    ]


@pytest.mark.parametrize(
    "edits",
    [
        ["roles.player.sampling.top_p=0.9", f"{LEARNER}.truncated=recompute"],
        ["schedule.group_size=1", "credit={baseline: {kind: role_average}}"],
        ["schedule.group_size=1", "credit.roles.player.baseline.kind=none"],
        ["policies.actor.model=owner/name"],
        ["game=kuhn_poker"],
        [f"{LEARNER}.lr=1e-3"],
    ],
    ids=lambda edits: edits[-1],
)
def test_what_only_looks_wrong_passes(edits: list[str]) -> None:
    assert marl.load(KUHN, edits).policies["actor"].learner


def test_anchors_and_merge_keys_of_yaml_work(tmp_path: Path) -> None:
    text = KUHN.read_text().replace("seats: {player_0: player, player_1: player}", "seats: {<<: &s {player_0: player}, "
                                    "player_1: player}")  # fmt: skip
    (tmp_path / "mine.yaml").write_text(text)
    assert marl.load(tmp_path / "mine.yaml").seats == {"player_0": "player", "player_1": "player"}


def test_an_override_changes_one_of_two_places_that_share_an_anchor() -> None:
    team = marl.load(KUHN.parent / "team_arithmetic.yaml", ["policies.solver.learner.lr=0.5"])
    solver, critic = team.policies["solver"].learner, team.policies["critic"].learner
    assert (solver.lr, critic.lr) == (0.5, 1.0e-3)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "roles.planner.policy=checker",
            "game.stages.0.verifies: missing: engine 'verifiers' of the role at 'planner' ",
        ),
        (
            "schedule.rotate_seats=true",
            "schedule.rotate_seats: true, but with the roles of other seats, game.stages.2.verifies: missing: engine ",
        ),
    ],
)
def test_a_verifier_in_a_stage_that_verifies_nobody_is_refused(override: str, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        marl.load(SCENARIOS / "train_solver_only_shared.yaml", [override])
    [problem] = str(caught.value).split("\n")[1:]
    assert problem.strip().startswith(message)
