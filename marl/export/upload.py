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

RepositoryType = Literal["model", "dataset"]
"""Repository type on the hub."""


class UploadError(RunError):
    """An upload failed. The message names the folder with the exported files."""


@dataclass(frozen=True, slots=True)
class HubUpload:
    """Target repository of an upload, with an authenticated client."""

    repository: str
    """Name of the repository, OWNER/NAME."""
    private: bool
    """True if the repository must be private."""
    api: HfApi
    kind: RepositoryType = "model"

    def upload_to_hub(self, folder: Path) -> str:
        """Upload all files of `folder` and return the commit's URL. A missing repository is created.

        Raises:
            UploadError: if the hub refuses or is unreachable, or if `private` is set and the existing repository is
                public.
        """
        name, kind = self.repository, self.kind
        # The hub ignores `private` for an existing repository, so its visibility is checked afterwards.
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
            # The token is removed from the message, because a server may repeat it in its answer.
            reason = str(error).replace(str(self.api.token), "<token>")
            raise UploadError(f"{self.repository} was not uploaded: {reason}; the files are in {folder}") from None
        return str(done.commit_url)


def requested_upload(repository: str | None, *, private: bool, kind: RepositoryType) -> HubUpload | None:
    """Return the upload for the options `--push` (`repository`) and `--private`, or None without `--push`.

    The repository's name and the user's credentials are checked, but no file is written or sent.

    Raises:
        ScenarioError: if the name is invalid, no credentials are configured, or `--private` is given without `--push`.
    """
    if repository is None:
        if private:
            raise ScenarioError("--private says how --push uploads: give --push OWNER/NAME, too")
        return None
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
    return HubUpload(repository, private, HfApi(token=token), kind)


def check_base_model_is_loadable_by_others(repository: str, source: SavedPolicy, merge: bool | None) -> None:
    """Check that other users of the hub could load the policy `source` from `repository`.

    Raises:
        ScenarioError: if the policy is an unmerged adapter with a base model in a local folder.
    """
    if source.base is not None and not merge and Path(source.base).is_absolute():
        raise ScenarioError(
            f"--push {repository}: the adapter's base is a folder of this machine ({source.base}), which nobody "
            "else has; give --merge"
        )
