"""Upload of an exported policy or data set to the Hugging Face hub, or to a compatible server (`HF_ENDPOINT`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import httpx2
from huggingface_hub import HfApi, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.utils import validate_repo_id

from marl.core.errors import RunError
from marl.export.saved_policy import SavedPolicy
from marl.scenario.load import ScenarioError

Kind = Literal["model", "dataset"]
"""Repository type on the hub."""


class UploadError(RunError):
    """The upload failed; the message names the folder with the exported files."""


@dataclass(frozen=True, slots=True)
class Upload:
    """Target repository of an upload, with an authenticated client."""

    repository: str
    private: bool
    api: HfApi
    kind: Kind = "model"

    @classmethod
    def prepare(cls, repository: str, *, private: bool, kind: Kind) -> Upload:
        """Check the repository's name and the credentials before any file is written or sent.

        Raises:
            ScenarioError: if the name is invalid or no credentials are configured.
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
        """Upload all files of `folder` and return the commit's URL. A missing repository is created.

        Raises:
            UploadError: if the hub refuses or is unreachable, or if `private` is set and the existing repository is
                public.
        """
        name, kind = self.repository, self.kind
        # The hub ignores `private` for an existing repository, hence the check after the call.
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


def requested_upload(repository: str | None, *, private: bool, kind: Kind) -> Upload | None:
    """Return the upload for the options `--push` and `--private`, or None without `--push`.

    Raises:
        ScenarioError: as `Upload.prepare`, or if `--private` is given without `--push`.
    """
    if repository is not None:
        return Upload.prepare(repository, private=private, kind=kind)
    if private:
        raise ScenarioError("--private says how --push uploads: give --push OWNER/NAME, too")
    return None


def expect_shareable_base(repository: str, source: SavedPolicy, merge: bool | None) -> None:
    """Check that other users of `repository` can load the policy.

    Raises:
        ScenarioError: if the policy is an unmerged adapter with a base model in a local folder.
    """
    if source.base is not None and not merge and Path(source.base).is_absolute():
        raise ScenarioError(
            f"--push {repository}: the adapter's base is a folder of this machine ({source.base}), which nobody "
            "else has; give --merge"
        )
