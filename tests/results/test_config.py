"""Every setting changes a value; no way of running does; results come in input order."""

from dataclasses import fields, replace

import pytest
import torch
from tiny_models import EXAMPLES

from uds_lens.audit import _inputs as plan
from uds_lens.errors import ConfigError, DataError
from uds_lens.models import open_model
from uds_lens.results import AuditConfig, DepthAudit, RunOptions
from uds_lens.results._comparing import why_not_comparable

CPU = RunOptions(device="cpu", engine="wavefront")

TENSORS = ("s_full", "s1_delta", "s2_delta", "s1_norm_ratio", "s1_cosine", "s2_norm_ratio", "s2_cosine")

CHANGES = {
    "tau": ({"tau": 0.5}, "ler"),
    "site": ({"site": "mlp_out"}, "s2_delta"),
    "scope": ({"scope": "boundary"}, "s2_delta"),
    "last_layer": ({"last_layer": "post_norm"}, "s2_delta"),
    "protocol": ({"protocol": "raw"}, "s_full"),
    "system_prompt": ({"protocol": "chat", "system_prompt": "Be brief."}, "s_full"),
    "chat_date": ({"protocol": "chat", "chat_date": "10 Apr 2025"}, "s_full"),
    "template_kwargs": ({"protocol": "chat", "template_kwargs": '{"mood": "Be brief."}'}, "s_full"),
    "stand_in": ({"stand_in": "base"}, "warnings"),
    "dtype": ({"dtype": "bfloat16"}, "s1_delta"),
    "confidence": ({"confidence": 0.5}, "uds_interval"),
    "n_bootstrap": ({"n_bootstrap": 200, "protocol": "raw"}, "uds_interval"),
    "seed": ({"n_bootstrap": 100, "seed": 1, "protocol": "raw"}, "uds_interval"),
    "attention": ({"attention": "sdpa"}, "s1_delta"),
    "limit": ({"limit": 5}, "examples"),
    "sample": ({"limit": 5, "sample": "first"}, "examples"),
}


def same(left, right):
    if isinstance(left, torch.Tensor):
        return torch.equal(left.nan_to_num(-7.0), right.nan_to_num(-7.0))
    return left == right


@pytest.mark.parametrize("name", CHANGES)
def test_every_setting_changes_a_value(audited, name):
    changes, attribute = CHANGES[name]
    changed = audited("llama", **changes)
    plain = audited("llama", **{other: value for other, value in changes.items() if other != name})
    assert not same(getattr(plain, attribute), getattr(changed, attribute))
    assert changed.config == replace(plain.config, **changes)


def test_no_setting_is_left_out_above():
    elsewhere = {"exact_noop", "counterfactual", "draws", "words"}  # audit/test_counterfactual.py, test_words.py
    elsewhere |= {"entity_space"}  # below, since the examples have a space there
    assert {field.name for field in fields(AuditConfig)} == {*CHANGES, *elsewhere}


def test_attention_is_recorded_and_differs_by_rounding(audited, trio):
    eager, sdpa = audited("llama"), audited("llama", attention="sdpa")
    assert (sdpa.s1_delta - eager.s1_delta).abs().max() < 1e-4 and sdpa.provenance["engine"] == "wavefront"
    models = trio("llama")
    naive, streamed = (
        DepthAudit.run(
            models.full,
            models.retain,
            models.unlearned,
            EXAMPLES,
            config=sdpa.config,
            options=RunOptions(device="cpu", **more),
        )
        for more in ({"engine": "naive"}, {"stream": True})
    )
    for other in (naive, streamed):
        assert (sdpa.s2_delta - other.s2_delta).abs().max() < 1e-4 and other.config.attention == "sdpa"
    with (
        open_model(models.full, device="cpu") as model,
        pytest.raises(ConfigError, match=r"attention='sdpa': .* is open with 'eager'. Pass its directory"),
    ):
        DepthAudit.run(model, models.retain, models.unlearned, EXAMPLES, config=sdpa.config)


@pytest.mark.parametrize("changes", [{"site": "resid_mid"}, {"scope": "all"}])
def test_sites_and_scopes_give_other_values_and_keep_the_identities(audited, changes):
    plain, itself = audited("llama"), audited("llama", unlearned="full", exact_noop=False, **changes)
    assert not same(itself.s1_delta, plain.s1_delta)
    assert (itself.s_full - plain.s_full).abs().max() <= 1e-5
    assert itself.s2_delta.abs().max() <= 1e-6


def test_scope_answer_is_scope_entity_where_the_entity_opens_the_answer_and_nowhere_else(audited):
    answer, entity = audited("llama", scope="answer").s1_delta, audited("llama").s1_delta
    apart = (answer - entity).abs().amax(-1) > 1e-4
    assert apart.tolist() == [example.prefix != "" for example in EXAMPLES]


def test_what_stands_before_an_entity(trio, tmp_path):
    """The two rules differ where the answer has no space, and such audits are not compared."""
    quoted = replace(EXAMPLES[1], answer='It was "Ash".', prefix='It was "', entity="Ash")
    rows = [replace(EXAMPLES[0], prefix="It was", answer="It was Orsk.", entity="Orsk"), quoted]
    own, paper = (run(trio, rows, protocol="raw", entity_space=rule) for rule in ("answer", "always"))
    assert own.s_full[0] == pytest.approx(float(paper.s_full[0]), abs=1e-5)
    assert abs(float(own.s_full[1] - paper.s_full[1])) > 1e-3
    assert own.examples_frame()["space_added"].tolist() == [False, False]
    assert paper.examples_frame()["space_added"].tolist() == [False, True]
    assert why_not_comparable(own, paper) == "they differ in entity_space ('answer' and 'always')"


# How it is run.


def run(trio, examples=EXAMPLES, options=CPU, **settings):
    return DepthAudit.run(*trio("qwen2"), examples, config=AuditConfig(**settings), options=options)


@pytest.fixture(scope="module")
def reference(trio):
    return run(trio)


def assert_equal_audits(audit, reference, order=None):
    order = list(range(len(EXAMPLES))) if order is None else order
    assert [e.id for e in audit.examples] == [reference.examples[i].id for i in order]
    assert torch.equal(audit.n_tokens, reference.n_tokens[order])
    for name in TENSORS:
        torch.testing.assert_close(getattr(audit, name), getattr(reference, name)[order], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("options", [{"token_budget": 1}, {"engine": "naive"}, {"engine": "auto"}])
def test_values_do_not_depend_on_how_it_is_run(trio, reference, options):
    assert_equal_audits(run(trio, options=replace(CPU, **options)), reference)


def test_results_come_in_the_order_of_the_rows(trio, reference):
    order = [5, 2, 7, 0, 1, 6, 4, 3]
    assert_equal_audits(run(trio, [EXAMPLES[i] for i in order]), reference, order)


def test_a_row_does_not_depend_on_its_neighbours(trio, reference):
    row = int((~reference.uds_per_example.isnan()).nonzero()[0])
    assert_equal_audits(run(trio, EXAMPLES[row : row + 1]), reference, [row])


def test_the_padding_side_does_not_matter(trio, reference, monkeypatch):
    true, sides = plan.make_batch, []

    def on_the_right(*args, **options):
        sides.append("right")
        return true(*args, **{**options, "padding_side": "right"})

    monkeypatch.setattr(plan, "make_batch", on_the_right)
    assert_equal_audits(run(trio), reference)
    assert sides


def test_a_second_run_is_bitwise_the_same(trio, reference):
    again = run(trio)
    assert all(torch.equal(getattr(again, name), getattr(reference, name)) for name in TENSORS)
    assert again.uds_interval == reference.uds_interval


def test_rows_that_cannot_be_scored_are_named_and_leave_the_others_alone(trio, reference):
    lost = replace(EXAMPLES[0], id="lost", entity="Someone Else")
    audit = run(trio, [lost, *EXAMPLES])
    assert_equal_audits(audit, reference)
    assert [(s.id, s.question) for s in audit.skipped] == [("lost", lost.question)]
    assert audit.uds == pytest.approx(reference.uds, abs=1e-6)
    assert audit.skipped_frame().reason.tolist() == ["The entity 'Someone Else' does not occur in the answer."]


# What is refused.


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tau": float("nan")}, "tau must be a number >= 0"),
        ({"tau": 10**5000}, "tau must be a number >= 0; got a value of type int that cannot be shown"),
        ({"site": "resid_pre"}, "site must be one of 'resid_post', 'resid_mid', 'attn_out', 'mlp_out'"),
        ({"site": ["resid_post"]}, "site must be one of"),
        ({"protocol": "raw", "system_prompt": "Hello."}, "apply only to chat prompts; got 'Hello.'"),
        ({"protocol": "chat", "chat_date": ""}, "chat_date must be non-empty text"),
        ({"confidence": 1.0}, "confidence must be a number > 0 and < 1"),
        ({"n_bootstrap": 1e4}, "n_bootstrap must be a whole number >= 100 and <= 10000000; got 10000.0"),
        ({"seed": -1}, "seed must be a whole number >= 0 and <= 9223372036854775807; got -1"),
        ({"exact_noop": 0}, "exact_noop must be True or False; got 0"),
        ({"taw": 1}, "AuditConfig has no setting 'taw'; did you mean 'tau'"),
        ({"colour": 1}, "AuditConfig has no setting 'colour'; it has"),
        ({"last_layer": "post_norm", "site": "attn_out"}, "last_layer='post_norm' belongs to site='resid_post'"),
    ],
)
def test_settings_outside_their_range_are_refused(settings, words, unchecked):
    with pytest.raises(ConfigError, match=words):
        AuditConfig(**settings)


def test_settings_go_to_a_dictionary_and_back_and_by_name():
    config = AuditConfig(tau=0.2, scope="all", seed=3)
    assert AuditConfig.from_dict(config.to_dict()) == config
    with pytest.raises(ConfigError, match="AuditConfig has no setting 'layers', 'taus'; did you mean 'last_layer'"):
        AuditConfig.from_dict({"taus": 1, "layers": 2, "tau": 0.1})
    with pytest.raises(ConfigError, match="AuditConfig takes keyword arguments only"):
        AuditConfig(0.1)


def test_ids_that_stand_twice_are_refused(trio):
    with pytest.raises(DataError, match="ids must be unique"):
        DepthAudit.run(*trio("qwen2"), [EXAMPLES[0], EXAMPLES[1], EXAMPLES[0]], options=CPU)
