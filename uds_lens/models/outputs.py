"""What a forward returns, set in a model's config: brought to the form that the library reads."""

from __future__ import annotations

from typing import Any

from uds_lens.errors import ModelError

_PLAIN = {"return_dict": True, "output_router_logits": False}
"""Settings that change what a forward returns, and nothing that it computes."""


def set_plain_outputs(config: Any) -> None:
    """Set them in a config of our own: saved checkpoints carry over what their training asked for."""
    for part in {id(c): c for c in (config, config.get_text_config())}.values():
        for name, value in _PLAIN.items():
            if getattr(part, name, value) != value:
                setattr(part, name, value)


def require_plain_outputs(config: Any, name: str) -> None:
    """Raise unless they are so in a model that is used as it is.

    Raises:
        ModelError: Naming the setting.
    """
    for part in (config, config.get_text_config()):
        for setting, value in _PLAIN.items():
            if getattr(part, setting, value) != value:
                raise ModelError(
                    f"the live model {name!r} is used as it is, and its config has {setting}="
                    f"{getattr(part, setting)!r}: set model.config.{setting} = {value!r} first."
                )
