"""Maps: identities of patches at positions, sites and heads, an independent patch, bypass, and what is undefined."""

import dataclasses

import pytest
import torch
from tiny_models import load_plain
from torch.testing import assert_close

import uds_lens as ul
from uds_lens.audit import depth_map
from uds_lens.audit._map import MapCell
from uds_lens.data import positions_of
from uds_lens.errors import ConfigError, ModelError, ResultFormatError
from uds_lens.models import HookedModel

from .independent import forward, tokens_of

CONFIG = ul.AuditConfig(protocol="raw", n_bootstrap=200)
OPTIONS = ul.RunOptions(device="cpu", engine="wavefront")
WORLD = ul.toy.load()
ROWS = [dataclasses.replace(WORLD.examples[0], subject=None), *WORLD.examples[8:11]]


def mapped(full, source, rows=ROWS, **settings):
    return depth_map(full, source, rows, config=CONFIG, options=OPTIONS, **settings)


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """`full` with another first MLP: norm, head and the attention's output weights are those of `full`."""
    place, (model, tokenizer) = tmp_path_factory.mktemp("other"), load_plain(WORLD.full)
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight.mul_(-1.0)
    for part in (model, tokenizer):
        part.save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def found(other):
    return mapped(WORLD.full, other, sites=["resid_post", "attn_out", "z"], heads=True)


@pytest.fixture(scope="module")
def stage():
    return ul.Baseline.measure(WORLD.full, WORLD.retain, ROWS, config=CONFIG, options=OPTIONS)


def test_all_positions_of_the_last_layer_give_the_sources_own_log_probabilities(found, stage, other):
    own = ul.Baseline.measure(other, WORLD.retain, ROWS, config=CONFIG, options=OPTIONS)
    assert_close(found.at("resid_post", "all")[:, -1], stage.s_full - own.s_full, atol=1e-4, rtol=0)
    assert_close(found.at("resid_post", "all")[:, 3], found.at("resid_post", "all")[:, -1], atol=1e-4, rtol=0)


def test_the_entity_in_the_residual_stream_is_stage_2_alone(other):
    """Without any retain model: what an audit reports as S2, by layer; nothing in it is a score."""
    alone = mapped(WORLD.full, other, sites=["resid_post"], positions=["entity"])
    s2_delta = ul.DepthAudit.run(WORLD.full, WORLD.retain, other, ROWS, config=CONFIG, options=OPTIONS).s2_delta
    assert_close(alone.at("resid_post", "entity"), s2_delta, atol=1e-5, rtol=0)
    assert alone.cells_frame()["lost"].tolist() == pytest.approx(s2_delta.mean(0).tolist(), abs=1e-5)
    assert len(alone.plot_map().data) and not hasattr(alone, "uds")
    with pytest.raises(ConfigError, match=r"retain is missing: .* or ul.audit.depth_map for the plain loss by layer"):
        ul.DepthAudit.run(WORLD.full, None, other, ROWS, config=CONFIG, options=OPTIONS)


def test_a_models_own_states_cost_nothing_anywhere():
    itself = mapped(WORLD.full, WORLD.full, rows=ROWS[1:3], sites=["mlp_out"])
    assert itself.lost.abs().max() <= 1e-5


def test_the_heads_of_a_layer_together_are_its_attn_out(found):
    for position in ("entity", "prompt", "all"):
        assert_close(found.at("z", position), found.at("attn_out", position), atol=1e-4, rtol=0)
    heads = [cell.head for cell in found.cells if cell.site == "z" and cell.position == "all"]
    assert heads == [None, *range(len(heads) - 1)] and len(heads) > 2
    parts = sum(found.at("z", "all", head) for head in heads[1:])
    assert (parts - found.at("z", "all")).abs().max() > 1e-3  # they do not add up


def test_the_entitys_cell_is_stage_1(stage):
    cells = mapped(WORLD.full, WORLD.retain, sites=["resid_post"], positions=["entity", "all"])
    assert_close(cells.at("resid_post", "entity"), stage.s1_delta, atol=1e-4, rtol=0)
    frame = cells.bypass_frame()
    entity, everywhere = (cells.at("resid_post", name).mean(0) for name in ("entity", "all"))
    assert frame["bypass"].tolist() == pytest.approx((1 - entity / everywhere).tolist())
    assert (everywhere >= 0.98 * entity).all()  # a tendency, no identity: at layer 6 of 8 it is 0.7% less
    assert frame["bypass"].iloc[-1] == pytest.approx(0, abs=1e-4)  # nothing passes the last layer by
    assert frame["past"].iloc[0] > 0.1


def test_positions_agree_with_a_patch_by_plain_transformers(found, other):
    (model, tokenizer), (source, _) = (load_plain(place) for place in (WORLD.full, other))
    ids, entity = tokens_of(ROWS[1], tokenizer)
    scored = [place - 1 for place in entity]
    ids = ids[: scored[-1] + 1]
    names = positions_of(tokenizer, ids, ROWS[1].subject)
    assert names and names[-1] - names[0] >= len(names)  # question and answer: not contiguous
    places = {"subject": list(names), "prompt": list(range(scored[0])), "entity": scored}
    targets = tokens_of(ROWS[1], tokenizer)[0]

    def score(logits):
        return logits.log_softmax(-1)[scored, [targets[place] for place in entity]].mean()

    states = forward(source, ids)[1]
    for position, at in places.items():
        patched = forward(model, ids, layer=2, states=states[2], positions=at)[0]
        expected = score(forward(model, ids)[0]) - score(patched)
        assert float(found.at("resid_post", position)[1, 2]) == pytest.approx(float(expected), abs=1e-4)


def test_a_text_without_its_subject_has_no_such_cell(found):
    lost = found.at("resid_post", "subject")
    assert lost[0].isnan().all() and lost[1:].isfinite().all()
    frame = found.cells_frame()
    counted = frame[(frame["site"] == "resid_post") & (frame["layer"] == 0)].set_index("position")["n"]
    assert counted["subject"] == len(ROWS) - 1 and counted["all"] == len(ROWS)


def test_each_token_of_the_answer_has_its_own_loss(found, stage):
    counts = (~found.lost_by_token[:, 0, found.cells.index(MapCell("z", "all"))].isnan()).sum(-1)
    assert counts.tolist() == stage.n_tokens.tolist() and counts.max() > 1
    frame = found.tokens_frame()
    rows = frame[(frame["label"] == "z, at all") & (frame["layer"] == 2)]
    total = (rows["lost"] * rows["n"]).sum()
    assert total == pytest.approx(float((found.at("z", "all")[:, 2] * counts).sum()))
    (heat,) = found.plot_tokens("z", "all").data
    assert [line[2] for line in heat.z] == pytest.approx(rows["lost"].tolist())
    assert heat.customdata[0][0] == f"token 1, n = {len(ROWS)}"


def test_tables_and_figure_hold_every_cell(found):
    frame = found.to_frame()
    assert len(frame) == found.lost.numel()
    row = frame[(frame["example_id"] == ROWS[2].id) & (frame["layer"] == 4) & (frame["label"] == "attn_out, at prompt")]
    assert float(row["lost"].iloc[0]) == float(found.at("attn_out", "prompt")[2, 4])
    (heat,) = found.plot_map().data
    labels = [cells[0] for cells in heat.customdata]
    assert labels == [cell.label for cell in found.cells]
    assert heat.z[labels.index("z, head 1, at all")][2] == pytest.approx(float(found.at("z", "all", 1)[:, 2].mean()))
    assert MapCell("z", "all", 1) in found.cells


def test_a_saved_map_comes_back_bit_for_bit(found, tmp_path):
    found.save(tmp_path / "map")
    again = ul.audit.DepthMap.load(tmp_path / "map")
    assert again.lost_by_token.numpy().tobytes() == found.lost_by_token.numpy().tobytes()
    for name in ("models", "examples", "cells", "config"):
        assert getattr(again, name) == getattr(found, name), name
    assert again.cells_frame().equals(found.cells_frame())
    with pytest.raises(ResultFormatError, match=r"expected uds_lens\.DepthAudit"):
        ul.DepthAudit.load(tmp_path / "map")


def test_settings_of_the_last_layer_do_not_reach_a_map():
    usual, papers = (
        depth_map(WORLD.full, WORLD.retain, ROWS[:2], sites=["resid_post"], config=config, options=OPTIONS)
        for config in (CONFIG, dataclasses.replace(CONFIG, last_layer="post_norm"))
    )
    assert torch.equal(usual.lost_by_token.nan_to_num(9.0), papers.lost_by_token.nan_to_num(9.0))
    assert papers.config.last_layer == "resid_post"


@pytest.mark.parametrize("broken", ["full", "source"])
@pytest.mark.parametrize("part", ["model.norm", "model.layers.3.mlp.down_proj"])
def test_a_broken_model_is_named_instead_of_mapped(broken, part):
    model, tokenizer = load_plain(WORLD.full)
    model.get_submodule(part).weight.data[0] = torch.nan
    live = HookedModel(model, tokenizer, name="broken", owned=False)
    pair = (live, WORLD.full) if broken == "full" else (WORLD.full, live)
    with pytest.raises(ModelError, match="'broken'"):
        mapped(*pair, rows=ROWS[1:3], sites=["mlp_out"])


def test_a_token_without_an_embedding_is_named():
    model, tokenizer = load_plain(WORLD.full)
    model.resize_token_embeddings(40)
    live = HookedModel(model, tokenizer, name="short", owned=False)
    with pytest.raises(ModelError, match=r"'short': token .* beyond the model's embedding"):
        mapped(live, live, rows=ROWS[1:3], sites=["mlp_out"])
