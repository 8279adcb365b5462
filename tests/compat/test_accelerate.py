"""Parts of accelerate that are not public; each test names one, and says what to do when it is gone."""

import torch
from accelerate import cpu_offload, dispatch_model
from torch import nn

from uds_lens._compat.accelerate import is_moved, is_offloaded, is_placed, runs_on


def test_an_offloaded_model_has_hooks_that_say_so() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    assert not is_offloaded(model)
    assert not is_moved(model[0])
    cpu_offload(model, execution_device=torch.device("cpu"))
    assert is_offloaded(model), (
        "accelerate no longer puts a `_hf_hook` with `offload` on modules whose weights come and go: they would be "
        "cloned, and run on empty weights (see accelerate/hooks.py, AlignDevicesHook)"
    )
    assert is_moved(model[0])
    assert model[0].weight.is_meta
    assert runs_on(model[0]) == torch.device("cpu"), "accelerate's hooks no longer name their `execution_device`"
    assert runs_on(nn.Linear(2, 2, device="meta")) == torch.device("meta")


def test_a_placed_model_says_where() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    assert not is_placed(model)
    placed = dispatch_model(model, {"": "cpu"}, force_hooks=True)
    assert is_placed(placed), "accelerate no longer records the placement of a model in `hf_device_map`"
