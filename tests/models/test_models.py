from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
import torch

from marl.models.adapter import Adapter
from marl.models.pretrained import Pretrained, PretrainedSource
from tests.support.transformers_engines import CONTEXT


@pytest.fixture
def copy(words: PretrainedSource, tmp_path: Path) -> Path:
    return Path(shutil.copytree(words.path, tmp_path / "model"))


def prepared(path: Path | str) -> PretrainedSource:
    return Pretrained(path=str(path)).prepare(CONTEXT)


def test_settings_are_imported_without_torch() -> None:
    modules = "marl.models.pretrained, marl.models.tiny, marl.engines.transformers.settings"
    heavy = "{'torch', 'transformers', 'tokenizers', 'safetensors'}"
    code = f"import sys, {modules}; print({heavy} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


def test_a_folder_gives_its_model_and_tokenizer(copy: Path) -> None:
    checkpoint = prepared(copy)
    assert checkpoint.model().dtype == torch.float32
    assert not checkpoint.model().training
    assert checkpoint.tokenizer().eos_token == "<eos>"


def test_a_saved_tokenizer_does_not_depend_on_the_environment(copy: Path, tmp_path: Path) -> None:
    # Transformers would save `local_files_only`, which is what HF_HUB_OFFLINE says.
    prepared(copy).tokenizer().save_pretrained(tmp_path / "saved")
    assert "local_files_only" not in json.loads((tmp_path / "saved" / "tokenizer_config.json").read_text())


def test_a_source_names_what_another_process_loads(copy: Path) -> None:
    settings = Adapter(base=Pretrained(path=str(copy), dtype="bfloat16"), rank=3)
    alone, with_adapter = settings.base.prepare(CONTEXT), settings.prepare(CONTEXT)
    assert (alone.path, alone.dtype, alone.adapter) == (str(copy), "bfloat16", None)
    assert (with_adapter.path, with_adapter.dtype, with_adapter.adapter) == (str(copy), "bfloat16", settings)


def test_each_copy_of_a_model_is_its_own(copy: Path) -> None:
    one, other = prepared(copy).model(), prepared(copy).model()
    assert one.lm_head.weight.data_ptr() != other.lm_head.weight.data_ptr()


def test_weights_are_held_in_the_wanted_type(copy: Path) -> None:
    settings = Pretrained(path=str(copy), dtype="bfloat16", device="cpu", attention="eager")
    model = settings.prepare(CONTEXT).model()
    assert model.dtype == torch.bfloat16
    assert model.config._attn_implementation == "eager"


@pytest.mark.parametrize(
    ("lost", "message"),
    [("config.json", "not a model folder"), ("tokenizer.json", "no tokenizer"), ("model.safetensors", "no weights")],
)
def test_what_a_folder_lacks_is_named(copy: Path, lost: str, message: str) -> None:
    (copy / lost).unlink()
    with pytest.raises(ValueError, match=message) as caught:
        prepared(copy)
    assert "'actor'" in str(caught.value)
    assert str(copy) in str(caught.value)


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"policy 'actor'.*nowhere.*no such folder"):
        prepared(tmp_path / "nowhere")


def test_weights_in_pickle_files_alone_are_not_read(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    torch.save({}, copy / "pytorch_model.bin")
    (problem,) = Pretrained(path=str(copy)).unmet_requirements()
    assert "has its weights in pytorch_model.bin alone, which could run code when it is read" in problem
    with pytest.raises(ValueError, match="policy 'actor'"):
        PretrainedSource("actor", str(copy)).model()


@pytest.mark.parametrize("size", [4, 100, -1])
def test_weights_that_were_cut_off_are_named(copy: Path, size: int) -> None:
    path = copy / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ValueError, match=r"policy 'actor'.*broken model\.safetensors"):
        prepared(copy)


def test_weights_that_are_not_in_the_file_are_named(copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2}))
    with pytest.raises(ValueError, match=r"policy 'actor'.*no weights for.*layers\.1"):
        prepared(copy).model()


def test_a_missing_shard_is_named(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    index = {"weight_map": {"a": "model-1.safetensors"}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"no model-1\.safetensors"):
        prepared(copy)


class OneModelHub(BaseHTTPRequestHandler):
    """A hub that has one model."""

    def do_HEAD(self) -> None:
        self.send_response(200 if self.path == "/api/models/owner/model" else 404)
        self.end_headers()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HTTPServer]:
    """Ask this hub, from an empty folder, with an empty cache."""
    import huggingface_hub.constants

    with HTTPServer(("127.0.0.1", 0), OneModelHub) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.chdir(tmp_path)
        yield server
        server.shutdown()


def test_a_mistyped_folder_that_could_be_a_name_on_the_hub_is_asked_for_once(hub: HTTPServer) -> None:
    assert prepared("owner/model").path == "owner/model"
    with pytest.raises(ValueError, match=r"model 'models/bse': there is no such folder, and no such model at http"):
        prepared("models/bse")
    hub.server_close()
    began = time.monotonic()
    with pytest.raises(ValueError, match=r"model 'models/bse': there is no such folder, and http.* cannot be asked"):
        prepared("models/bse")
    assert time.monotonic() - began < 5, "Transformers would try for a minute"


def test_an_unreachable_name_on_the_hub_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    checkpoint = prepared("nobody/no-such-model")
    with pytest.raises(ValueError, match=r"policy 'actor'.*nobody/no-such-model"):
        checkpoint.model()
    with pytest.raises(ValueError, match=r"policy 'actor'.*tokenizer"):
        checkpoint.tokenizer()
