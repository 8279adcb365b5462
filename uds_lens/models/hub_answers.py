"""What is said where a name is no directory and could not be had from the Hub either."""

from __future__ import annotations

from uds_lens.compat.huggingface_hub import is_reachable
from uds_lens.compat.transformers import is_offline


def not_on_the_hub(name: str, reason: str, *, offline: bool) -> str:
    """Why, and what helps.

    Args:
        name: What was asked for.
        reason: First line of what came.
        offline: Whether only files already downloaded were allowed.
    """
    if offline or is_offline():
        return (
            f"there is no directory {name!r} here, and offline it was looked for only among what was downloaded from "
            f"the Hub before: {reason}. Check the path, or download it where there is a connection: hf download {name}"
        )
    if not is_reachable():
        return (
            f"there is no directory {name!r} here, it was not downloaded before, and no connection to the Hub can be "
            f"opened. Check the path and the connection, or download it where there is one: hf download {name}"
        )
    return (
        f"there is no directory {name!r} here, so it was looked up on the Hub, and that failed: {reason}. Check the "
        "path or the spelling; log in for a gated model (hf auth login); without a connection, give the directory of a "
        "local copy."
    )
