"""Upload of an exported policy to the Hugging Face hub, or to a server that speaks its API (`HF_ENDPOINT`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import httpx2
from huggingface_hub import HfApi, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.utils import validate_repo_id

from marl.errors import RunError
from marl.export.weights import Learnt
from marl.scenario.load import ScenarioError


class UploadError(RunError):
    """The hub did not take what was exported; the message says which folder holds it."""


@dataclass(frozen=True, slots=True)
class Upload:
    """A repository to which a folder is sent, and the right to do so."""

    repository: str
    private: bool
    api: HfApi

    @classmethod
    def of(cls, repository: str, source: Learnt, merge: bool | None, *, private: bool) -> Upload:
        """Return the upload of a policy, before anything is written or sent.

        Raises:
            ScenarioError: if it is no repository's name, there are no credentials, or others could not load it.
        """
        try:
            validate_repo_id(repository)
        except HFValidationError as error:
            raise ScenarioError(f"--push {repository}: {error}") from error
        if repository.count("/") != 1:
            raise ScenarioError(f"--push {repository}: name owner and repository, OWNER/NAME")
        if source.base is not None and not merge and Path(source.base).is_absolute():
            raise ScenarioError(
                f"--push {repository}: the adapter's base is a folder of this machine ({source.base}), which nobody "
                "else has; give --merge"
            )
        token = get_token()
        if token is None:
            raise ScenarioError(
                f"--push {repository}: no credentials; set HF_TOKEN to a token that may write, or run: hf auth login"
            )
        return cls(repository, private, HfApi(token=token))

    def send(self, folder: Path) -> str:
        """Upload all files of a folder, to a repository that is made where there is none; return its address.

        Raises:
            UploadError: if the hub refuses, or cannot be reached.
        """
        try:
            self.api.create_repo(self.repository, private=self.private or None, exist_ok=True)
            done = self.api.upload_folder(repo_id=self.repository, folder_path=folder, commit_message="Export of marl")
        except (HfHubHTTPError, httpx2.HTTPError, OSError) as error:
            raise UploadError(f"{self.repository} was not uploaded: {error}; the files are in {folder}") from error
        return str(done.commit_url)
