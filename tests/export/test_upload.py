"""`--push` of a policy or a data set to a server that speaks as much of the hub's API as it takes."""

from __future__ import annotations

import base64
import json
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi

from marl.export.saved_policy import SavedPolicy
from marl.export.upload import HubUpload, UploadError, check_base_model_is_loadable_by_others, requested_upload
from marl.scenario.load import ScenarioError
from tests.support.command_line import marl_output
from tests.support.recorded_runs import kuhn_run


@dataclass
class Hub:
    """A hub with room for one repository: it takes small files in one commit."""

    address: str = ""
    refuses: bool = False
    complaint: str = "you may not write here"
    private: bool = True
    """Visibility of the repository once it is there."""
    created: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    tokens: set[str | None] = field(default_factory=set)

    def answer(self, path: str, body: bytes) -> tuple[int, Any]:
        if self.refuses:
            return 403, {"error": self.complaint}
        if path.endswith("/repos/create"):
            self.created.append(json.loads(body))
            return 200, {"url": f"{self.address}/somebody/kuhn"}
        if path.endswith("/validate-yaml"):
            return 200, {"errors": [], "warnings": []}
        if "/preupload/" in path:
            names = [file["path"] for file in json.loads(body)["files"]]
            return 200, {"files": [{"path": n, "uploadMode": "regular", "shouldIgnore": False} for n in names]}
        if "/commit/" in path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            kind, owner, name = path.split("/")[2:5]
            place = f"{owner}/{name}" if kind == "models" else f"{kind}/{owner}/{name}"
            url = f"{self.address}/{place}/commit/{'0' * 40}"
            return 200, {"commitUrl": url, "commitOid": "0" * 40, "success": True}
        return 404, {"error": path}


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            hub.tokens.add(self.headers["Authorization"])
            length = self.headers["Content-Length"]
            body = self.rfile.read(int(length)) if length else b"".join(self._pieces())
            self._send(*hub.answer(self.path, body))

        def do_GET(self) -> None:
            there = {"siblings": [], "sha": "0" * 40, "id": "somebody/kuhn", "tags": [], "private": hub.private}
            self._send(404 if hub.refuses else 200, there)

        def _pieces(self) -> Iterator[bytes]:
            while size := int(self.rfile.readline(), 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()

        def _send(self, status: int, value: Any) -> None:
            data = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *arguments: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield hub
    server.shutdown()
    server.server_close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "config.json").write_text("{}")
    (tmp_path / "out" / "README.md").write_text("---\ntags:\n- marl\n---\n# card\n")
    return tmp_path / "out"


def learnt(base: str | None = None) -> SavedPolicy:
    return SavedPolicy(Path("run"), "actor", 1, Path("folder"), "AutoModelForCausalLM", None, base)


def test_the_whole_folder_is_sent_with_the_token(hub: Hub, folder: Path) -> None:
    upload = HubUpload("somebody/kuhn", private=True, api=HfApi(endpoint=hub.address, token="hf_secret"))
    assert upload.upload_to_hub(folder) == f"{hub.address}/somebody/kuhn/commit/{'0' * 40}"
    assert hub.files == {path.name: path.read_bytes() for path in folder.iterdir()}
    [made] = hub.created
    assert (made["name"], made["organization"]) == ("kuhn", "somebody")
    assert made.get("private") or made.get("visibility") == "private"
    assert hub.tokens == {"Bearer hf_secret"}


def test_a_hub_that_refuses_or_is_not_there_is_named_with_the_folder(hub: Hub, folder: Path) -> None:
    hub.refuses = True
    with pytest.raises(UploadError, match=rf"somebody/kuhn was not uploaded: (?s:.*); the files are in {folder}"):
        HubUpload("somebody/kuhn", private=False, api=HfApi(endpoint=hub.address, token="hf_x")).upload_to_hub(folder)
    api = HfApi(endpoint="http://127.0.0.1:9", token="hf_x")
    with pytest.raises(UploadError, match="was not uploaded"):
        HubUpload("somebody/kuhn", private=False, api=api).upload_to_hub(folder)


def test_a_token_that_the_hub_repeats_in_its_answer_is_not_shown(hub: Hub, folder: Path) -> None:
    token = "hf_" + "secret"
    hub.refuses, hub.complaint = True, f"Bearer {token} may not write here"
    with pytest.raises(UploadError, match="<token> may not write here") as caught:
        HubUpload("somebody/kuhn", private=False, api=HfApi(endpoint=hub.address, token=token)).upload_to_hub(folder)
    assert token not in "".join(traceback.format_exception(caught.value))


def test_what_cannot_be_sent_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marl.export.upload.get_token", lambda: None)
    for name, message in (
        ("somebody/kuhn", "--push somebody/kuhn: no credentials; set HF_TOKEN"),
        ("kuhn", "--push kuhn: name owner and repository, OWNER/NAME"),
        ("a b/c", r"--push a b/c: .*alphanumeric"),
        ("", "--push : "),
    ):
        with pytest.raises(ScenarioError, match=message):
            requested_upload(name, private=False, kind="model")
    with pytest.raises(ScenarioError, match="which nobody else has; give --merge"):
        check_base_model_is_loadable_by_others("somebody/kuhn", learnt(str(tmp_path)), None)
    check_base_model_is_loadable_by_others("somebody/kuhn", learnt(str(tmp_path)), True)
    monkeypatch.setattr("marl.export.upload.get_token", lambda: "hf_x")
    upload = requested_upload("somebody/kuhn", private=True, kind="dataset")
    assert upload is not None
    assert (upload.private, upload.kind) == (True, "dataset")
    assert requested_upload(None, private=False, kind="model") is None


def test_what_should_be_private_is_not_sent_to_a_public_repository(hub: Hub, folder: Path) -> None:
    hub.private = False
    upload = HubUpload("somebody/kuhn", private=True, api=HfApi(endpoint=hub.address, token="hf_x"))
    with pytest.raises(UploadError, match="it is there already, and public, whatever --private says"):
        upload.upload_to_hub(folder)
    assert not hub.files


def test_a_data_set_is_sent_as_one_and_its_card_names_its_place(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = kuhn_run(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("marl.export.upload.get_token", lambda: "hf_secret")
    monkeypatch.setattr("marl.export.upload.HfApi", partial(HfApi, endpoint=hub.address))
    words = ("export-data", run, "--out", "out", "--format", "parquet", "--push", "somebody/hands", "--private")
    lines = marl_output(monkeypatch, capsys, *words)
    assert f"{hub.address}/datasets/somebody/hands/commit/{'0' * 40}" in lines
    assert hub.files == {path.name: path.read_bytes() for path in Path("out").iterdir()}
    assert hub.files.keys() == {"README.md", "turns.parquet", "episodes.parquet"}
    [made] = hub.created
    assert (made["name"], made["type"]) == ("hands", "dataset")
    assert made.get("private") or made.get("visibility") == "private"
    assert hub.tokens == {"Bearer hf_secret"}
    assert 'load_dataset("somebody/hands", "turns", split="train")' in hub.files["README.md"].decode()
    assert b"hf_secret" not in b"".join(hub.files.values())
