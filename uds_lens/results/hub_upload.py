"""An audit on a model's page on the Hub: its files, and the section of the card that tells it, in one commit."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uds_lens.compat.transformers import is_offline
from uds_lens.errors import ConfigError, StorageError, UdsLensError
from uds_lens.results.model_card import model_card

if TYPE_CHECKING:
    from uds_lens.results.depth_audit import DepthAudit

FOLDER = "uds_lens"
"""Where the files go in the repository."""


def push(
    audit: DepthAudit,
    repo: str,
    *,
    dataset: str,
    config: str | None,
    revision: str | None,
    private: bool | None,
    token: str | None,
) -> str:
    """See `DepthAudit.push_to_hub`."""
    from huggingface_hub import CommitOperationAdd, HfApi

    if repo.count("/") != 1 or not all(repo.split("/")):
        raise ConfigError(f"a repository on the Hub is named owner/name; got {repo[:80]!r}.")
    if is_offline():
        raise StorageError(
            f"cannot push to {repo!r}: HF_HUB_OFFLINE is set. Unset it where there is a network."
        )
    api = HfApi(token=token)
    with tempfile.TemporaryDirectory() as place:
        saved = Path(place) / "audit"
        audit.save(saved)
        files = {path.name: path.read_bytes() for path in sorted(saved.iterdir())}
    try:
        api.create_repo(repo, private=private, exist_ok=True)
        card = model_card(audit, dataset=dataset, config=config, card=_card_of(api, repo, revision))
        contents = {"README.md": str(card).encode(), **{f"{FOLDER}/{n}": data for n, data in files.items()}}
        commit = api.create_commit(
            repo,
            operations=[CommitOperationAdd(name, data) for name, data in contents.items()],
            commit_message="Unlearning depth, measured with uds_lens",
            revision=revision,
        )
    except UdsLensError:
        raise
    except Exception as error:  # what the Hub answers, and what keeps us from asking it
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise StorageError(
            f"cannot push to {repo!r}: {first[:250]} Log in with `hf auth login`, or pass a token that may write there."
        ) from error
    return str(commit.commit_url)


def _card_of(api: Any, repo: str, revision: str | None) -> str | None:
    """The card that is there; None where there is none."""
    from huggingface_hub.errors import EntryNotFoundError

    try:
        return Path(api.hf_hub_download(repo, "README.md", revision=revision)).read_text(encoding="utf-8")
    except EntryNotFoundError:
        return None
