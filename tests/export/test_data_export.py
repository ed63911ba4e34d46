"""`marl export-data`: what a run recorded, as other libraries read it, equal to the records on disk."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow.parquet as pq
import pytest
import zstandard
from datasets import load_dataset
from huggingface_hub import DatasetCard

from marl.core.graph import Trajectory
from marl.core.types import Turn
from marl.export.chat_rows import PreferencePairRule, dpo_rows
from marl.export.parquet_tables import TURN_SCHEMA
from marl.export.turn_selection import RunRecording, TurnSelection
from marl.runs.run_folder import RunFolder
from marl.view.token_decoder import TokenDecoder
from tests.support.recorded_runs import HOSTILE, kuhn_run

Marl = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two recorded steps of eight hands; the last turn of one said all that may harm."""
    return kuhn_run(tmp_path / "runs" / "kuhn", said=HOSTILE)


def opened(tmp_path: Path, *names: str) -> Any:
    """The data set in `out`, opened by its path."""
    return load_dataset(str(tmp_path / "out"), *names, split="train", cache_dir=str(tmp_path / "cache"))


def episodes(run: Path) -> list[Trajectory]:
    home = RunFolder(run)
    return [episode for step in home.recorded_steps() for episode in home.load_trajectories(step)]


def lines(file: str = "out/train.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(file).read_text().splitlines()]


def test_tables_hold_what_was_recorded_and_judged(run: Path, command: Marl, tmp_path: Path) -> None:
    printed = command("export-data", run, "--out", "out", "--format", "parquet")
    recorded = {turn.id: (episode, turn) for episode in episodes(run) for turn in episode.turns}
    assert f"out/turns.parquet: {len(recorded)} rows" in printed
    judged = {key: turn for step in (1, 2) for key, turn in RunFolder(run).read_credit_of_step(step).turns().items()}
    rows = opened(tmp_path, "turns")
    assert len(rows) == len(recorded)
    for row in rows:
        episode, turn = recorded[row["episode"], row["turn"]]
        record = judged[turn.id]
        assert (row["agent"], row["role"], row["policy"], row["action"]) == (
            *(turn.agent, turn.role, "actor", turn.action),
        )
        without_calls = {"calls": None, "call_id": None, "name": None}
        assert (
            row["messages"] == [message.to_dict() | without_calls for message in turn.request.messages] == row["chat"]
        )
        assert (row["completion"], row["finish"]) == (turn.completion.text, "stop")
        assert tuple(row["prompt_ids"]) == turn.completion.prompt_ids
        assert (tuple(row["token_ids"]), tuple(row["logprobs"])) == (
            *(turn.completion.token_ids, turn.completion.logprobs),
        )
        assert row["prompt"] == " ".join(("<eos>", "[", "]", "check", "bet")[i] for i in row["prompt_ids"])
        for name in ("assigned", "earned", "baseline", "scale", "advantage", "pool_reward"):
            assert row[name] == getattr(record, name)
        assert row["return"] == episode.returns[turn.agent]
        sources = [{"episode": e, "turn": i, "kinds": ["heard"]} for e, i in episode.graph.pred[turn.id]]
        assert row["sources"] == sources
        paid = [asdict(r) | {"turn": r.turn[1]} for r in episode.rewards if r.turn == turn.id]
        assert row["rewards"] == paid
    assert any(row["completion"] == HOSTILE for row in rows)
    played = opened(tmp_path, "episodes")
    assert [row["episode"] for row in played] == [episode.id for episode in episodes(run)]
    for row, episode in zip(played, episodes(run), strict=True):
        assert {each["agent"]: each["value"] for each in row["returns"]} == episode.returns
        assert {each["name"]: each["value"] for each in row["measures"]} == episode.findings.measures


def test_tables_are_written_in_pieces(run: Path, command: Marl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marl.export.parquet_tables.MAX_GROUP_ROWS", 8)
    command("export-data", run, "--out", "out", "--format", "parquet")
    file = pq.ParquetFile("out/turns.parquet")
    groups = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    assert groups[:-1] == [8] * (len(groups) - 1)
    assert sum(groups) == file.metadata.num_rows > 16
    assert file.schema_arrow == TURN_SCHEMA


def test_long_turns_are_written_before_there_are_many(
    run: Path, command: Marl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marl.export.parquet_tables.MAX_GROUP_SIZE", 1)
    command("export-data", run, "--out", "out", "--format", "parquet")
    file = pq.ParquetFile("out/turns.parquet")
    assert file.num_row_groups == file.metadata.num_rows > 16


def test_texts_of_tokens_need_the_tokenizer_once_and_only_its_tokens(run: Path) -> None:
    texts = TokenDecoder(RunFolder(run))
    assert texts.decode("actor", (1, 3)) == "[ check"
    shutil.rmtree(run / "checkpoints")
    assert texts.decode("actor", (1, 4)) == "[ bet"
    assert texts.decode("actor", (99,)) is None
    assert texts.decode("actor", (-1,)) is None


def test_tools_that_only_later_rows_have_are_a_column(run: Path, command: Marl, tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    file = run / "trajectories/000002.jsonl.zst"
    text = zstandard.ZstdDecompressor().decompressobj().decompress(file.read_bytes()).decode()
    assert '"tools":[]' in text
    text = text.replace('"tools":[]', f'"tools":[{json.dumps(json.dumps(tool))}]')
    file.write_bytes(zstandard.ZstdCompressor().compress(text.encode()))
    command("export-data", run, "--out", "out", "--format", "trl-sft")
    # Pieces so small that the first ones have no tools.
    cache = str(tmp_path / "cache")
    rows = load_dataset(str(tmp_path / "out"), split="train", cache_dir=cache, chunksize=512)
    assert rows[0]["tools"] is None
    assert json.loads(rows[-1]["tools"]) == [tool]


def test_the_line_that_loads_it_names_a_folder_and_no_builder_of_the_library(run: Path, command: Marl) -> None:
    *_, line = command("export-data", run, "--out", "parquet", "--format", "parquet").splitlines()
    assert line == 'from datasets import load_dataset; load_dataset("./parquet")'
    assert 'load_dataset("./parquet", "turns", split="train")' in Path("parquet/README.md").read_text()


def best_and_worst(run: Path, value: Callable[[Trajectory, Turn], float]) -> dict[str, Any]:
    """Prompt of a start of the first step -> its answers with the highest and the lowest mean, where they differ."""
    answers: dict[Any, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for episode in RunFolder(run).load_trajectories(1):
        for turn in episode.turns:
            place = episode.start, turn.request.messages[0].content
            answers[place][turn.completion.text].append(value(episode, turn))
    means = {place: sorted((fmean(v), text) for text, v in texts.items()) for place, texts in answers.items()}
    return {place: (each[-1], each[0]) for place, each in means.items() if each[-1][0] > each[0][0]}


def test_pairs_are_the_best_and_the_worst_answer_to_a_prompt(run: Path, command: Marl, tmp_path: Path) -> None:
    command("export-data", run, "--out", "out", "--format", "trl-dpo", "--steps", "1")
    judged = RunFolder(run).read_credit_of_step(1).turns()
    expected = best_and_worst(run, lambda _, turn: judged[turn.id].advantage)
    rows = opened(tmp_path).to_list()
    assert len(rows) == len(expected) > 0
    for row, ((_, prompt), (best, worst)) in zip(rows, expected.items(), strict=True):
        assert row["prompt"] == [{"role": "user", "content": prompt}]
        assert row["chosen"] == [{"role": "assistant", "content": best[1]}]
        assert row["rejected"] == [{"role": "assistant", "content": worst[1]}]
        assert (row["score_chosen"], row["score_rejected"]) == pytest.approx((best[0], worst[0]))
    greatest = max(row["score_chosen"] - row["score_rejected"] for row in rows)
    turns = [*RunRecording(run, TurnSelection(first_step=1, last_step=1)).turns()]
    assert [*dpo_rows(turns, PreferencePairRule(min_margin=greatest))]
    assert not [*dpo_rows(turns, PreferencePairRule(min_margin=greatest + 1e-9))]
    expected = best_and_worst(run, lambda episode, turn: episode.returns[turn.agent])
    pairs = [*dpo_rows(turns, PreferencePairRule(criterion="return"))]
    assert [(pair["score_chosen"], pair["score_rejected"]) for pair in pairs] == [
        pytest.approx((best[0], worst[0])) for best, worst in expected.values()
    ]


def test_chats_are_rows_that_trl_and_openai_take(run: Path, command: Marl, tmp_path: Path) -> None:
    turns = [turn for episode in episodes(run) for turn in episode.turns]
    command("export-data", run, "--out", "out", "--format", "trl-sft")
    rows = opened(tmp_path).to_list()
    assert [row["completion"][0]["content"] for row in rows] == [turn.completion.text for turn in turns]
    assert [row["prompt"][0]["content"] for row in rows] == [turn.request.messages[0].content for turn in turns]
    command("export-data", run, "--out", "openai", "--format", "openai")
    for row, turn in zip(lines("openai/train.jsonl"), turns, strict=True):
        assert row == {
            "messages": [
                *(message.to_dict() for message in turn.request.messages),
                {"role": "assistant", "content": turn.completion.text},
            ]
        }


def test_prompts_stand_once(run: Path, command: Marl, tmp_path: Path) -> None:
    texts = {turn.request.messages[-1].content for episode in episodes(run) for turn in episode.turns}
    command("export-data", run, "--out", "out", "--format", "trl-prompts")
    rows = opened(tmp_path).to_list()
    assert len(rows) == len(texts)
    assert {row["prompt"][-1]["content"] for row in rows} == texts
    printed = command("export-data", run, "--out", "verl", "--format", "verl")
    assert "no verifier read a right answer" in printed
    [first, *rest] = pq.read_table("verl/train.parquet").to_pylist()
    assert len(rest) == len(texts) - 1
    assert (first["data_source"], first["ability"]) == ("kuhn_poker", "kuhn_poker")
    assert first["reward_model"] == {"style": "rule", "ground_truth": ""}
    assert first["extra_info"]["split"] == "train"
    assert first["prompt"][0]["role"] == "user"


def test_turns_are_selected(run: Path, command: Marl) -> None:
    returns = [(turn, episode.returns[turn.agent]) for episode in episodes(run) for turn in episode.turns]
    command("export-data", run, "--out", "good", "--format", "trl-sft", "--min-return", "1", "--readable")
    wanted = [turn.completion.text for turn, value in returns if value >= 1 and turn.action is not None]
    assert [row["completion"][0]["content"] for row in lines("good/train.jsonl")] == wanted
    command("export-data", run, "--out", "step", "--format", "trl-sft", "--steps", "2-", "--role", "player")
    assert len(lines("step/train.jsonl")) == sum(len(e.turns) for e in RunFolder(run).load_trajectories(2))
    command("export-data", run, "--out", "praised", "--format", "trl-sft", "--min-advantage", "0.5")
    judged = [turn for step in (1, 2) for turn in RunFolder(run).read_credit_of_step(step).turns().values()]
    assert len(lines("praised/train.jsonl")) == sum(turn.advantage >= 0.5 for turn in judged) > 0


def test_the_card_names_files_and_conditions_and_keeps_names_text(run: Path, command: Marl, tmp_path: Path) -> None:
    evil = run.rename(run.with_name("a|b <script>x --- [x](http:y)"))
    command("export-data", evil, "--out", "out", "--format", "trl-dpo", "--min-margin", "0.1")
    card = DatasetCard.load("out/README.md")
    assert card.data.to_dict()["configs"] == [{"config_name": "default", "data_files": "train.jsonl"}]
    assert "<script>" not in card.text
    assert "which differ by more than 0 and at least 0.1" in card.text


def test_what_cannot_be_written_is_refused_and_leaves_nothing(run: Path, refused: Marl) -> None:
    before = sorted(Path().iterdir())
    for words, message in (
        (("--format", "trl-sft", "--role", "plyer"), "--role plyer: the run has none of this name; did you mean"),
        (("--format", "trl-sft", "--policy", "critic"), "--policy critic: the run has none of this name; choices: act"),
        (("--format", "trl-sft", "--steps", "7-9"), "no episodes of these steps; it recorded 2, 1 to 2"),
        (("--format", "trl-sft", "--steps", "x"), "--steps x: no range of steps; choices: N, A-B, A- or -B"),
        (("--format", "trl-sft", "--steps", "3-1"), "the first step is after the last"),
        (("--format", "trl-sft", "--min-return", "99"), "no recorded turn matches"),
        (("--format", "trl-dpo", "--min-margin", "99"), "differs by 99.0 or more; episodes with the same start"),
        (("--format", "openai", "--min-margin", "1"), "--by and --min-margin make pairs, and --format openai has none"),
        (("--format", "csv"), "Invalid value for '--format'"),
    ):
        assert message in " ".join(refused("export-data", run, "--out", "out", *words).split())
    assert sorted(Path().iterdir()) == before
    run.joinpath("credit/000001.jsonl.zst").unlink()
    words = ("export-data", run, "--out", "out", "--format")
    assert "--min-advantage: step 1 has no credit record" in refused(*words, "trl-sft", "--min-advantage", 0)
    assert "give --by return" in refused(*words, "trl-dpo")
