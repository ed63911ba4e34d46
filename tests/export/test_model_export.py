"""`marl export`: ordinary libraries load the folder, and give the log-probabilities that the run's sampler recorded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from peft import AutoPeftModelForCausalLM, PeftModel
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast

import marl
from marl.core.types import Turn
from marl.models.gguf_writing import check_gguf_export_supported, write_gguf
from marl.runs.run_folder import RunFolder
from marl.scenario.load import validate
from tests.support.gguf_files import CHAT, MERGES, SPECIAL, small_llama, vocabulary
from tests.support.run_processes import kuhn_scenario

TOLERANCE = 1e-5
"""Nats a token."""
TINY = {
    **{"kind": "tiny", "hidden": 16, "layers": 2, "heads": 2, "kv_heads": 1, "vocabulary": "bytes"},
    "warm_up": {"steps": 10, "episodes": 32, "batch": 16, "lr": 2e-2},
}
SHORT = {"steps": 2, "groups": 2, "group_size": 2, "threads": 1}
LEARNER = {"kind": "grpo", "lr": 1e-2}


def scenario(model: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Two steps, so that the turns of the second were sampled by the first checkpoint's weights."""
    roles = {"player": {"kind": "player", "policy": "actor", "sampling": {"max_tokens": 10, "stop": ["]]"]}}}
    policies = {"actor": {"model": model, "learner": LEARNER}}
    # Without a baseline something is learned even where all episodes end alike.
    settings = {"schedule": SHORT, "evaluate": {}, "checkpoint": {"every": 1}, "credit": {"baseline": {"kind": "none"}}}
    return kuhn_scenario(roles=roles, policies=policies, **settings) | more


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MARL_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="module")
def whole(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a whole model."""
    run = tmp_path_factory.mktemp("runs") / "whole"
    assert marl.train(validate(scenario(TINY, evaluate={"every": 1, "against": {"random": 4}})), run)
    return run


@pytest.fixture(scope="module")
def adapted(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of an adapter."""
    run = tmp_path_factory.mktemp("runs") / "adapted"
    assert marl.train(validate(scenario({"kind": "adapter", "base": TINY, "rank": 2})), run)
    return run


Marl = Callable[..., str]


def turns(run: Path) -> list[Turn]:
    """The turns of the second step."""
    return [turn for trajectory in RunFolder(run).load_trajectories(2) for turn in trajectory.turns]


def worst(model: Any, tokenizer: Any, run: Path) -> float:
    """The greatest difference from a recorded log-probability; prompts are rendered by the chat template."""
    differences = []
    for turn in turns(run):
        messages = [message.to_dict() for message in turn.request.messages]
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
        assert tuple(prompt) == turn.completion.prompt_ids
        ids = torch.tensor([[*prompt, *turn.completion.token_ids]])
        with torch.no_grad():
            logprobs = model(input_ids=ids).logits[0, :-1].log_softmax(-1)
        own = logprobs.gather(1, ids[0, 1:, None])[len(prompt) - 1 :, 0]
        differences.append((own - torch.tensor(turn.completion.logprobs)).abs().max().item())
    assert len(differences) > 3
    return max(differences)


def test_a_whole_model_gives_the_log_probabilities_of_the_run(whole: Path, command: Marl) -> None:
    command("export", whole, "--out", "out", "--step", 1)
    assert worst(AutoModelForCausalLM.from_pretrained("out"), AutoTokenizer.from_pretrained("out"), whole) < TOLERANCE


def test_a_gguf_file_gives_the_log_probabilities_of_the_run(whole: Path, command: Marl) -> None:
    printed = command("export", whole, "--out", "out", "--step", 1, "--gguf")
    assert "out/actor.gguf: the same model, for llama.cpp" in printed
    # By itself: settings, weights, tokenizer and chat template are in the one file.
    alone = Path("alone")
    alone.mkdir()
    Path("out/actor.gguf").rename(alone / "actor.gguf")
    model = AutoModelForCausalLM.from_pretrained("alone", gguf_file="actor.gguf", dtype=torch.float32)
    assert worst(model, AutoTokenizer.from_pretrained("alone", gguf_file="actor.gguf"), whole) < TOLERANCE
    assert model.config.num_key_value_heads == 1


def test_an_adapter_gives_the_log_probabilities_of_the_run_alone_and_merged(adapted: Path, command: Marl) -> None:
    command("export", adapted, "--out", "out", "--step", 1, "--adapter")
    tokenizer = AutoTokenizer.from_pretrained("out")
    assert worst(AutoPeftModelForCausalLM.from_pretrained("out"), tokenizer, adapted) < TOLERANCE
    base = AutoModelForCausalLM.from_pretrained("out/base")
    assert worst(base, tokenizer, adapted) > 100 * TOLERANCE
    assert worst(PeftModel.from_pretrained(base, "out"), tokenizer, adapted) < TOLERANCE
    command("export", adapted, "--out", "merged", "--step", 1, "--merge", "--gguf")
    assert worst(AutoModelForCausalLM.from_pretrained("merged"), tokenizer, adapted) < TOLERANCE
    model = AutoModelForCausalLM.from_pretrained("merged", gguf_file="actor.gguf", dtype=torch.float32)
    assert worst(model, tokenizer, adapted) < TOLERANCE


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_written_to_gguf_bit_by_bit(dtype: str, whole: Path, command: Marl) -> None:
    command("export", whole, "--out", "out")
    AutoModelForCausalLM.from_pretrained("out", dtype=dtype).save_pretrained("out")
    write_gguf(Path("out"), Path("out/half.gguf"))
    written = AutoModelForCausalLM.from_pretrained("out", gguf_file="half.gguf", dtype=torch.float32).state_dict()
    for name, tensor in AutoModelForCausalLM.from_pretrained("out", dtype=torch.float32).state_dict().items():
        assert torch.equal(tensor, written[name]), name


def test_a_vocabulary_with_merges_is_written_whole(tmp_path: Path) -> None:
    model, tokens = small_llama(), vocabulary()
    merges: Any = [tuple(merge.split()) for merge in MERGES]
    inner = Tokenizer(BPE({text: i for i, text in enumerate(tokens)}, merges))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, additional_special_tokens=list(SPECIAL))
    tokenizer.eos_token, tokenizer.chat_template = SPECIAL[2], CHAT
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path)
    alone = tmp_path / "alone"
    alone.mkdir()
    write_gguf(tmp_path, alone / "model.gguf")
    read = AutoTokenizer.from_pretrained(alone, gguf_file="model.gguf")
    for text in ("hi, ok! hihi  123\n\u00fc", f"{SPECIAL[1]}user\nhi{SPECIAL[2]}"):
        assert read(text).input_ids == tokenizer(text).input_ids
    assert read.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False).startswith("<|im_start|>user")
    again = AutoModelForCausalLM.from_pretrained(alone, gguf_file="model.gguf", dtype=torch.float32)
    ids = torch.arange(len(tokens))[None, :64]
    with torch.no_grad():
        assert torch.allclose(again(input_ids=ids).logits, model(input_ids=ids).logits, atol=1e-5)


def test_generation_settings_are_the_sampling_of_the_role(whole: Path, adapted: Path, command: Marl) -> None:
    for run, out in ((whole, "whole"), (adapted, "adapter")):
        command("export", run, "--out", out)
        settings = GenerationConfig.from_pretrained(out)
        tokenizer = AutoTokenizer.from_pretrained(out)
        assert (settings.do_sample, settings.temperature, settings.top_p, settings.top_k) == (True, 1.0, 1.0, 0)
        assert (settings.max_new_tokens, settings.stop_strings) == (10, ["]]"])
        assert settings.eos_token_id == [tokenizer.eos_token_id]
        assert settings.pad_token_id == tokenizer.pad_token_id


@pytest.mark.parametrize("kind", ["whole", "adapted"])
def test_the_card_holds_the_run_and_code_that_runs(
    kind: str, request: pytest.FixtureRequest, command: Marl, capsys: pytest.CaptureFixture[str]
) -> None:
    run = request.getfixturevalue(kind)
    command("export", run, "--out", "out")
    card: Any = ModelCard.load("out/README.md")
    assert card.data.library_name == ("peft" if kind == "adapted" else "transformers")
    assert {"marl", "kuhn_poker", "grpo"} <= set(card.data.tags or ())
    code = card.text.split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {}
    exec(code, names)
    # The answer is sampled and may be empty, so its tokens are looked at: an end of text at least.
    assert names["output"].shape[1] > names["inputs"]["input_ids"].shape[1]
    shown = names["tokenizer"].decode(
        names["output"][0, names["inputs"]["input_ids"].shape[1] :], skip_special_tokens=True
    )
    assert capsys.readouterr().out == f"{shown}\n"
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    [returns] = [line for line in card.text.splitlines() if line.startswith("| episode/return/player\\_0 ")]
    assert f"{rows[-1]['episode/return/player_0']:.4g} (step 2)" in returns
    if kind == "whole":
        [wins] = [line for line in card.text.splitlines() if line.startswith("| eval/random/win ")]
        low, high = (rows[-1][f"eval/random/win_{bound}"] for bound in ("low", "high"))
        assert f"| {low:.4g} to {high:.4g} |" in wins
        assert Path("out/curves.png").read_bytes().startswith(b"\x89PNG")
    else:
        assert "The run was never evaluated" in card.text
    settings = [part.split("```")[0] for part in card.text.split("```yaml\n")[1:]]
    learner = next(yaml.safe_load(part) for part in settings if part.startswith("kind: grpo"))
    assert learner["lr"] == LEARNER["lr"]


def test_what_does_not_fit_is_refused_before_anything_is_written(whole: Path, adapted: Path, refused: Marl) -> None:
    assert "--adapter: policy 'actor' of" in refused("export", whole, "--out", "out", "--adapter")
    assert "--role critic: policy 'actor' does not speak for it; choices: player" in refused(
        "export", whole, "--out", "out", "--role", "critic"
    )
    assert "an adapter alone makes no GGUF file; give --merge" in refused("export", adapted, "--out", "out", "--gguf")
    assert "give --push OWNER/NAME" in refused("export", whole, "--out", "out", "--private")
    assert not list(Path().iterdir())


def test_gguf_says_which_models_it_takes(whole: Path, command: Marl, monkeypatch: pytest.MonkeyPatch) -> None:
    command("export", whole, "--out", "out")
    config, tokenizer = Path("out/config.json"), Path("out/tokenizer.json")
    changes = {
        "architecture Qwen3ForCausalLM is not supported; choices: LlamaForCausalLM": {
            "architectures": ["Qwen3ForCausalLM"]
        },
        "scaled rotary embeddings": {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}},
        "attention_bias and mlp_bias are not supported": {"mlp_bias": True},
    }
    before = config.read_text()
    for message, change in changes.items():
        config.write_text(json.dumps(json.loads(before) | change))
        with pytest.raises(ValueError, match=message):
            check_gguf_export_supported(Path("out"))
    config.write_text(before)
    data = json.loads(tokenizer.read_text())
    tokenizer.write_text(json.dumps(data | {"pre_tokenizer": {"type": "Whitespace"}}))
    with pytest.raises(ValueError, match=r"llama.cpp's name for the pre-tokenizer .* is not known here"):
        check_gguf_export_supported(Path("out"))
    tokenizer.write_text(json.dumps(data | {"model": {"type": "WordLevel", "vocab": {}}}))
    with pytest.raises(ValueError, match=r"type WordLevel is not supported; choices: byte-level BPE \(a tiny model: "):
        check_gguf_export_supported(Path("out"))
    monkeypatch.setattr("marl.models.gguf_writing.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install 'marl-llm"):
        check_gguf_export_supported(Path("out"))
