"""Logit Lens against hooks on the plain model, and beside UDS for one example."""

import pytest
import torch
from tiny_models import EXAMPLES, load_plain

import uds_lens as ul
from uds_lens.data import encode, make_batch
from uds_lens.errors import DataError, ModelError
from uds_lens.metrics import compare_logit_lens, evaluate
from uds_lens.metrics._white_box import lens_logprobs
from uds_lens.patching import capture

from .conftest import RAW, RUN


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_lens_against_layer_hooks_on_the_plain_model(trio, opened, family):
    full, source = opened(family), opened(family, "unlearned")
    rows = encode(EXAMPLES[:2], full.tokenizer).rows
    batch = make_batch(rows, pad_token_id=3)
    found = lens_logprobs(full.anatomy, capture(source, batch).states, batch.targets, batch.scored_mask)
    plain, _ = load_plain(trio(family).unlearned)
    head, _ = load_plain(trio(family).full)
    cap, states = getattr(head.config, "final_logit_softcapping", None), []
    for block in plain.model.layers:
        block.register_forward_hook(lambda m, a, out: states.append(out if torch.is_tensor(out) else out[0]))
    for i, row in enumerate(rows):
        states.clear()
        with torch.no_grad():
            plain(torch.tensor([row.ids]))
            for layer, state in enumerate(states):
                logits = head.lm_head(head.model.norm(state[0, list(row.scored)]))
                logits = torch.tanh(logits / cap) * cap if cap else logits
                logp = logits.double().log_softmax(-1)[torch.arange(len(row.targets)), list(row.targets)]
                assert float(found[i, layer]) == pytest.approx(float(logp.mean()), abs=1e-4)


@pytest.fixture(scope="module")
def audit(trio):
    return ul.DepthAudit.run(*trio("llama"), EXAMPLES[:4], config=RAW, options=RUN)


def test_both_sides_of_the_table(trio, audit):
    models = trio("llama")
    found = compare_logit_lens(audit, "fact-2", run=RUN)
    assert found.uds_score == pytest.approx(float(audit.uds_per_example[2]), nan_ok=True)
    frame = found.to_frame()
    assert frame["uds_s1_delta"].tolist() == audit.s1_delta[2].tolist()
    assert frame["uds_ler"].tolist() == pytest.approx(audit.ler[2].tolist(), nan_ok=True)
    others = {"retain": models.retain, "full": models.full, "run": RUN}
    whole = evaluate(models.unlearned, EXAMPLES[:4], metrics=["logit_lens"], **others)
    assert found.lens_score == pytest.approx(whole["logit_lens"].per_example[2], abs=1e-5, nan_ok=True)
    lens = frame[frame.lens_ke]
    expected = (lens.lens_s1_delta * lens.lens_ler).sum() / lens.lens_s1_delta.sum()
    assert found.lens_score == pytest.approx(expected)
    assert "fact-2" in repr(found) and "<table" in found._repr_html_()
    for example in ("fact-9", 4):
        with pytest.raises(DataError, match=f"no scored example {example!r}"):
            compare_logit_lens(audit, example)
    with pytest.raises(ModelError, match="not the retain model"):
        compare_logit_lens(audit, 0, retain=models.full, run=RUN)


def test_a_chat_audit_is_compared_with_its_own_prompts(trio):
    audit = ul.DepthAudit.run(*trio("llama"), EXAMPLES[:2], config=ul.AuditConfig(protocol="chat"), options=RUN)
    found = compare_logit_lens(audit, 0, run=RUN)
    torch.testing.assert_close(found.lens_s1[-1], audit.s1_delta[0, -1], atol=2e-5, rtol=0)
