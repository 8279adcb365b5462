"""Parts of TransformerLens that are not public or change; each test names one, and says what to do when it is gone."""

import pytest
import torch
from tiny_models import build_model, build_tokenizer
from transformer_lens.model_bridge import TransformerBridge

from uds_lens._compat import transformer_lens as ours
from uds_lens._compat.torch import forward_hooks_of
from uds_lens._storage.files import SpillFolder
from uds_lens.models._hooked import bridge_on_shared_weights


@pytest.fixture(scope="module")
def bridge():
    return bridge_on_shared_weights(build_model("gpt2"), build_tokenizer(), name="tiny")


def test_a_bridge_is_known_by_its_class_and_holds_the_model_it_wraps(bridge) -> None:
    model = build_model("gpt2")
    assert ours.is_bridge(bridge), "TransformerBridge has another name"
    assert TransformerBridge.__name__ == "TransformerBridge"
    assert not ours.is_bridge(model)
    made = ours.boot("tiny", model, build_tokenizer(), dtype=torch.float32, device="cpu", scratch=SpillFolder)
    assert made.original_model is model, (
        "TransformerBridge.boot_transformers(hf_model=...) loads another model than the one it is given, or "
        "TransformerBridge.original_model is no longer that: find it in transformer_lens/model_bridge/bridge.py"
    )
    assert type(bridge.original_model).__name__ == "GPT2LMHeadModel"
    assert bridge.compatibility_mode is False, "TransformerBridge.compatibility_mode is gone"


def test_wrapping_marks_the_names_of_weights(bridge) -> None:
    names = set(bridge.original_model.state_dict())
    plain = set(build_model("gpt2").state_dict())
    assert any(ours.plain_name(name) != name for name in names), "wrapped parts are no longer _original_component"
    assert plain <= set(map(ours.plain_name, names)), (
        "names of wrapped weights are no longer the plain ones with _original_component in between: fingerprints of "
        "Bridges would change (uds_lens/models/_fingerprint.py)"
    )


def strangers_on(bridge):
    """Hooks that neither TransformerLens nor transformers has put there."""
    hooks = [hook for module in bridge.modules() for hook in forward_hooks_of(module).values()]
    return [hook for hook in hooks if not ours.is_own_hook(hook) and not hook.__module__.startswith("transformers.")]


def test_hooks_of_transformerlens_are_told_from_those_of_its_users(bridge) -> None:
    bridge(torch.tensor([[1, 8, 30]]))
    assert not strangers_on(bridge), "TransformerLens installs hooks of another kind; audits take them for a user's"
    bridge.add_perma_hook("blocks.1.hook_resid_post", lambda state, hook: state)
    try:
        assert strangers_on(bridge), "hooks of users are no longer registered by HookPoint.add_hook: audits miss them"
    finally:
        bridge.reset_hooks(including_permanent=True)
