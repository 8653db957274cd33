"""Drafters from the Hub: the configuration first, the weights only if it is a drafter's, all from one commit."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, constants, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import httpx

from specblock_zoo.errors import AccessError, HubError, SpecBlockError, UnknownNameError, UnsupportedOptionError
from specblock_zoo.hub.entry import ENTRY_FILE, ZooEntry, hash_files, read_entry, verify_files
from specblock_zoo.models.registry import DRAFTERS, kind_of_folder
from specblock_zoo.models.specblock import published

REPOSITORY_PATTERN = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
WANTED = (
    *("config.json", ENTRY_FILE, "results.json", "README.md", published.VOCABULARY_FILE),
    *("*.safetensors", "*.safetensors.index.json"),
)
PICKLED = (".bin", ".pt", ".pth")
FETCH_HINT = "See `specblock zoo list` for drafters, or name a folder."


def is_repository(name: str) -> bool:
    """Whether `name` has the form `org/name`."""
    return REPOSITORY_PATTERN.fullmatch(name) is not None


def fetch(repository: str, options: Mapping[str, Any]) -> Path:
    """Folder of the cache that holds a drafter's files, downloaded where they are not there yet.

    Args:
        repository: `org/name`.
        options: `revision`, `token`, `cache_dir`, `local_files_only`, `force_download`, as huggingface_hub takes them.

    Raises:
        UnknownNameError: no such repository or revision, or it holds no drafter.
        AccessError: the repository is gated or private.
        HubError: the Hub cannot be reached, or the download broke; nothing half-written stays in the cache.
        UnsupportedOptionError: its weights are pickled only.
        WeightsMismatchError: a file has not the SHA-256 that the repository's own entry lists; it is removed again.
    """
    with explained(repository, options.get("revision")):
        config = Path(hf_hub_download(repository, "config.json", **options))
        check_is_drafter(config, repository)
        # The commit that the configuration came from, so that a push in between cannot mix two versions.
        pinned = {**options, "revision": config.parent.name}
        folder = Path(snapshot_download(repository, allow_patterns=list(WANTED), **pinned))
        refuse_pickled(repository, folder, pinned)
    if (folder / ENTRY_FILE).is_file():
        verify_or_forget(read_entry(folder), folder)
    return folder


def check_is_drafter(config: Path, name: str) -> None:
    """Raises `UnknownNameError` unless a `config.json` is a drafter's, ours or published."""
    try:
        fields = json.loads(config.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UnknownNameError(f"{name}: config.json is not JSON: {error}.", FETCH_HINT) from error
    try:
        kind_of_folder(config.parent)
    except UnknownNameError as error:
        kind = fields.get("model_type") if isinstance(fields, dict) else None
        raise UnknownNameError(
            f"{name} holds a {kind!r} model; expected a drafter ({', '.join(DRAFTERS)}).", FETCH_HINT
        ) from error


def refuse_pickled(repository: str, folder: Path, options: Mapping[str, Any]) -> None:
    """Raises `UnsupportedOptionError` where nothing but pickled weights is to be had, with the way to take them."""
    if any(folder.glob("*.safetensors")) or options.get("local_files_only") or constants.HF_HUB_OFFLINE:
        return
    revision = options["revision"]
    names = HfApi().list_repo_files(repository, revision=revision, token=options.get("token"))
    pickled = [name for name in names if name.endswith(PICKLED) and name != published.VOCABULARY_FILE]
    if pickled:
        raise UnsupportedOptionError(
            f"{repository} has its weights as {', '.join(pickled)} only, and pickled files may run code; "
            "only safetensors are fetched.",
            f"Fetch them yourself and name the folder, of which no code is run: "
            f"hf download {repository} --revision {revision} --local-dir DIR",
        )


def verify_or_forget(entry: ZooEntry, folder: Path) -> None:
    """`verify_files` for a folder of the cache: files that are not what the entry says are removed from it."""
    try:
        verify_files(entry, folder)
    except SpecBlockError:
        for name, expected in entry.files.items():
            link = folder / name
            if link.is_file() and hash_files(folder, (name,))[name] != expected:
                link.resolve().unlink()
                link.unlink(missing_ok=True)
        raise


@contextmanager
def explained(repository: str, revision: str | None = None) -> Iterator[None]:
    """Turns the Hub client's errors into ours: what is wrong and what to do, never a token."""
    try:
        yield
    except SpecBlockError:
        raise
    except GatedRepoError as error:
        raise AccessError(
            f"{repository} is gated, and your account has not been let in.",
            f"Accept its terms at https://huggingface.co/{repository}, then run: hf auth login",
        ) from error
    except RevisionNotFoundError as error:
        raise UnknownNameError(
            f"{repository} has no revision {revision!r}.", "Name a commit, tag or branch of the repository."
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise UnknownNameError(
            f"{repository} is neither a folder nor a repository that you may see on the Hub.",
            f"{FETCH_HINT} Private ones need: hf auth login",
        ) from error
    except LocalEntryNotFoundError as error:
        raise HubError(
            f"{repository} is not in the local cache, and the Hub cannot be asked.",
            "Check the connection and HF_HUB_OFFLINE, or fetch it beforehand: specblock zoo pull NAME",
        ) from error
    except EntryNotFoundError as error:
        raise UnknownNameError(f"{repository} has no config.json; expected a drafter's.", FETCH_HINT) from error
    except (HfHubHTTPError, httpx.HTTPError, OSError, RuntimeError) as error:
        raise http_error(repository, error) from error


def http_error(repository: str, error: Exception) -> SpecBlockError:
    """The error for a failed exchange with the Hub; the client wraps those of uploads in a `RuntimeError`."""
    if isinstance(error, RuntimeError) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    if status in (401, 403):
        return AccessError(
            f"The Hub answers {status} for {repository}: your token may not do this.",
            "Run hf auth login with a token that may; writing needs a write token.",
        )
    if status == 412:
        return HubError(
            f"{repository} changed while this was being sent (412): somebody else pushed.",
            "Look at their commit, then push again.",
        )
    reason = (
        f"status {status}" if status else f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    )
    return HubError(f"The exchange with the Hub about {repository} failed ({reason}).", "Try again later.")
