"""Two audits in two threads: each gives what it gives alone, and the process is sound afterwards."""

import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tiny_models import EXAMPLES

from uds_lens.audit import Baseline
from uds_lens.elicitation import ElicitOptions, elicit
from uds_lens.errors import ModelBusyError
from uds_lens.metrics import evaluate
from uds_lens.models import open_model
from uds_lens.results import AuditConfig, DepthAudit, RunOptions

AUTO = RunOptions(device="cpu", progress=False, engine="wavefront")


def test_two_audits_in_two_threads(trio, audited):
    """One in half precision: transformers sets the default dtype of the whole process while it opens a model."""
    configs = {"llama": None, "qwen2": AuditConfig(dtype="bfloat16")}

    def measured(family):
        return DepthAudit.run(*trio(family), EXAMPLES, config=configs[family], options=AUTO)

    alone = {"llama": audited("llama"), "qwen2": measured("qwen2")}
    with warnings.catch_warnings(), ThreadPoolExecutor(2) as pool:
        warnings.simplefilter("ignore")  # each thread would end the other's catching of warnings
        for _ in range(2):
            for family, found in zip(alone, pool.map(measured, alone), strict=True):
                for name in ("s_full", "s1_delta", "s2_delta"):
                    assert torch.equal(getattr(found, name), getattr(alone[family], name)), (family, name)
    assert torch.get_default_dtype() == torch.float32
    open_model(trio("llama").full, device="cpu").close()


def test_an_open_model_is_for_one_audit_at_a_time(trio, audited):
    """The other thread hears so at once; a handle that metrics borrow is the same model."""
    paths = trio("llama")
    with open_model(paths.full, device="cpu") as full, ThreadPoolExecutor(1) as another:
        asks = (
            lambda: DepthAudit.run(full, paths.retain, paths.unlearned, EXAMPLES, options=AUTO),
            lambda: evaluate(full, EXAMPLES, metrics=["prob"], run=AUTO),
            lambda: elicit(full, EXAMPLES, probes=["plain"], options=ElicitOptions(samples=0), run=AUTO),
        )
        busy = "is in use by another thread: a HookedModel serves one thread at a time"
        with Baseline.measure(full, paths.retain, EXAMPLES, options=AUTO).recorded(options=AUTO) as recorded:
            for ask in asks:
                with pytest.raises(ModelBusyError, match=busy):
                    another.submit(ask).result()
            found = recorded.audit(paths.unlearned)
        assert torch.equal(found.s2_delta, audited("llama").s2_delta)
        assert 0 <= evaluate(full, EXAMPLES, metrics=["prob"], run=AUTO)["prob"].value <= 1
