"""An edit instead of an unlearning: a rank-one change of one MLP is seen from its layer on, and nowhere below."""

import pytest
import torch
from tiny_models import load_plain

import uds_lens as ul

WORLD = ul.toy.load()
LAYER = 3
ROWS = [row for row in WORLD.examples if row.id.endswith("/birthplace")]


@pytest.fixture(scope="module")
def edited(tmp_path_factory):
    """`full`, with the MLP of one layer made to answer the first question's last token with another vector.

    Closed form: with the input k of the down-projection W there, W + (v - W k) k^T / (k^T k) maps k to v.
    """
    place, (model, tokenizer) = tmp_path_factory.mktemp("edited"), load_plain(WORLD.full)
    row = ul.data.encode(ROWS[:1], tokenizer, protocol="raw").rows[0]
    down, seen = model.model.layers[LAYER].mlp.down_proj, {}
    handle = down.register_forward_pre_hook(lambda module, args: seen.update(key=args[0][0, row.patched[0]]))
    with torch.no_grad():
        model(torch.tensor([row.ids]))
        handle.remove()
        key, value = seen["key"], -4.0 * down(seen["key"])
        down.weight.add_(torch.outer(value - down(key), key) / key.dot(key))
        assert torch.allclose(down(key), value, atol=1e-4)
    for part in (model, tokenizer):
        part.save_pretrained(place)
    return place


def test_an_edit_is_exactly_nothing_below_its_layer_and_something_from_it_on(edited):
    config = ul.AuditConfig(protocol="raw", n_bootstrap=100, stand_in="counterfactual", words="edit")
    audit = ul.DepthAudit.run(WORLD.full, None, edited, ROWS, config=config, options=ul.RunOptions(device="cpu"))
    assert (audit.s2_delta[:, :LAYER] == 0).all()
    assert (audit.s2_delta[0, LAYER:] > 0).all()
    assert "There is no ignorant model, so the knowing model's own states" in " ".join(audit.warnings)
    frame = ul.weights.difference(WORLD.full, edited).to_frame()
    assert frame[frame["relative_norm"] > 0]["layer"].tolist() == [LAYER]
