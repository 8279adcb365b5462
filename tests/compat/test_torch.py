"""Parts of torch that are not public; each test names one."""

import warnings

import pytest
import torch
from torch import nn

from uds_lens._compat import torch as ours


def test_modules_with_hooks_or_a_forward_of_their_own_are_found_by_name() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(), nn.Linear(2, 2)), nn.ReLU())
    assert ours.altered_modules(model) == []
    model[0].register_forward_hook(print)
    model[1][1].register_forward_pre_hook(repr)
    model[2].forward = len
    assert dict(ours.altered_modules(model)) == {"0": model[0], "1.1": model[1][1], "2": model[2]}


def test_a_module_keeps_its_hooks_in_four_tables() -> None:
    layer = nn.Linear(2, 2)
    layer.register_forward_hook(print)
    layer.register_forward_pre_hook(repr)
    layer.register_full_backward_hook(len)
    layer.register_full_backward_pre_hook(max)
    kept = [list(table.values()) for table in ours.hook_tables(layer)]
    assert kept == [[print], [repr], [len], [max]], (
        "torch.nn.Module._forward_hooks, _forward_pre_hooks, _backward_hooks or _backward_pre_hooks is no longer where "
        "hooks are registered: find their place in torch/nn/modules/module.py, and name it in uds_lens/_compat/torch.py"
    )
    assert list(ours.forward_hooks_of(layer).values()) == [print, repr], (
        "torch.utils.hooks.RemovableHandle no longer numbers hooks apart"
    )


def test_a_compiled_module_tells_what_it_wraps() -> None:
    layer = nn.Linear(2, 2)
    with warnings.catch_warnings():  # torch's own, when its compiler is imported for the first time
        warnings.simplefilter("ignore", DeprecationWarning)
        wrapper = torch.compile(layer)  # compiles nothing before it is called
    assert ours.compiled_module(wrapper) is layer, (
        "torch._dynamo.eval_frame.OptimizedModule._orig_mod no longer holds what torch.compile wrapped: see "
        "uds_lens/_compat/torch.py, COMPILED; until then a compiled model is opened and its hooks never run"
    )
    assert getattr(wrapper, ours.COMPILED) is layer
    assert ours.compiled_module(layer) is None


def test_a_failed_allocation_says_so() -> None:
    with pytest.raises(RuntimeError) as refused:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert ours.is_out_of_memory(refused.value), (
        f"torch's allocator on the CPU now says: {str(refused.value)[:200]}; name that in is_out_of_memory"
    )
