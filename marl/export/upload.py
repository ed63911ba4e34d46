"""Upload of an exported policy or data set to the Hugging Face hub, or to a server with its API (`HF_ENDPOINT`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import httpx2
from huggingface_hub import HfApi, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.utils import validate_repo_id

from marl.errors import RunError
from marl.export.weights import Learnt
from marl.scenario.load import ScenarioError

Kind = Literal["model", "dataset"]
"""Type of a repository of the hub."""


class UploadError(RunError):
    """The hub did not take what was exported; the message says which folder holds it."""


@dataclass(frozen=True, slots=True)
class Upload:
    """A repository to which a folder is sent, and the right to do so."""

    repository: str
    private: bool
    api: HfApi
    kind: Kind = "model"

    @classmethod
    def of(cls, repository: str, *, private: bool, kind: Kind) -> Upload:
        """Return an upload, before anything is written or sent.

        Raises:
            ScenarioError: if it is no repository's name, or there are no credentials.
        """
        try:
            validate_repo_id(repository)
        except HFValidationError as error:
            raise ScenarioError(f"--push {repository}: {error}") from error
        if repository.count("/") != 1:
            raise ScenarioError(f"--push {repository}: name owner and repository, OWNER/NAME")
        token = get_token()
        if token is None:
            raise ScenarioError(
                f"--push {repository}: no credentials; set HF_TOKEN to a token that may write, or run: hf auth login"
            )
        return cls(repository, private, HfApi(token=token), kind)

    def send(self, folder: Path) -> str:
        """Upload all files of a folder, to a repository that is made where there is none; return its address.

        Raises:
            UploadError: if the hub refuses, or cannot be reached; if it should be private, and is public already.
        """
        name, kind = self.repository, self.kind
        try:
            self.api.create_repo(name, repo_type=kind, private=self.private or None, exist_ok=True)
            if self.private and self.api.repo_info(name, repo_type=kind).private is False:
                raise UploadError(
                    f"{self.repository} was not uploaded: it is there already, and public, whatever --private says; "
                    f"the files are in {folder}"
                )
            done = self.api.upload_folder(
                repo_id=name, repo_type=kind, folder_path=folder, commit_message="Export of marl"
            )
        except (HfHubHTTPError, httpx2.HTTPError, OSError) as error:
            raise UploadError(f"{self.repository} was not uploaded: {error}; the files are in {folder}") from error
        return str(done.commit_url)


def upload_to(repository: str | None, *, private: bool, kind: Kind) -> Upload | None:
    """Return the upload that `--push` and `--private` ask for; None without `--push`.

    Raises:
        ScenarioError: as `Upload.of`, and if `--private` stands alone.
    """
    if repository is not None:
        return Upload.of(repository, private=private, kind=kind)
    if private:
        raise ScenarioError("--private says how --push uploads: give --push OWNER/NAME, too")
    return None


def expect_base_at_hand(repository: str, source: Learnt, merge: bool | None) -> None:
    """Check that others can load a policy from `repository`.

    Raises:
        ScenarioError: if it is an adapter, is not merged, and its base is a folder of this machine.
    """
    if source.base is not None and not merge and Path(source.base).is_absolute():
        raise ScenarioError(
            f"--push {repository}: the adapter's base is a folder of this machine ({source.base}), which nobody "
            "else has; give --merge"
        )
