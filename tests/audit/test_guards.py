"""Where shortcuts could give a wrong number without a sign: each has a guard."""

import json
import shutil
import warnings
from contextlib import contextmanager
from dataclasses import replace

import pandas
import pytest
import torch
import transformers
from patching.plain import inputs
from tiny_models import EXAMPLES, GEMMA3N, GEMMA4, ROWS, SHAPE, build_tokenizer, load_plain, some_now

from uds_lens.audit import Baseline
from uds_lens.data import encode, make_batch
from uds_lens.errors import ModelError, UdsLensWarning
from uds_lens.models import open_model
from uds_lens.models._checkpoint import adapter_base
from uds_lens.patching import capture, open_target
from uds_lens.results import AuditConfig, DepthAudit, RunOptions

AUTO = RunOptions(device="cpu", progress=False)
FAST = RunOptions(device="cpu", progress=False, engine="wavefront")


def test_a_model_that_changed_since_it_was_opened_is_measured_anew(audited, trio):
    paths = trio("llama")
    baseline = Baseline.measure(paths.full, paths.retain, EXAMPLES, options=FAST)
    with open_model(paths.full, device="cpu") as model, open_model(paths.unlearned, device="cpu") as other:
        assert baseline.audit(model, options=FAST).uds == 0.0
        model.hf.load_state_dict(other.hf.state_dict())
        again = baseline.audit(model, options=FAST)
    assert torch.equal(again.s2_delta, audited("llama").s2_delta)
    assert again.equal_weights == []


def test_an_adapter_whose_keys_do_not_match_is_refused(trio, tmp_path):
    from peft import LoraConfig, get_peft_model
    from safetensors.torch import load_file, save_file

    base, _ = load_plain(trio("llama").full)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        get_peft_model(base, LoraConfig(r=2, target_modules=["q_proj"])).save_pretrained(tmp_path)
    file = tmp_path / "adapter_model.safetensors"
    save_file({key.replace("q_proj", "other"): tensor for key, tensor in load_file(file).items()}, file)
    with pytest.raises(ModelError, match="missing adapter keys"):
        open_model(tmp_path)


def test_a_relative_base_counts_from_the_adapter(tmp_path, monkeypatch):
    for folder in (tmp_path / "base", tmp_path / "adapter" / "base"):
        folder.mkdir(parents=True)
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "base"}))
    monkeypatch.chdir(tmp_path)
    assert adapter_base(tmp_path / "adapter") == str(tmp_path / "adapter" / "base")


@pytest.mark.filterwarnings("ignore")
def test_a_model_with_several_residual_streams_is_refused_in_words(tmp_path):
    transformers.Gemma3nForCausalLM(transformers.Gemma3nTextConfig(**GEMMA3N)).save_pretrained(tmp_path)
    build_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"pass on states of shape \(2, .*several residual streams"):
        DepthAudit.run(tmp_path, tmp_path, tmp_path, EXAMPLES, options=AUTO)


SIZES = {"vocab_size": SHAPE["vocab_size"], "hidden_size": 32, "max_position_embeddings": 256}
OWN_FORMS = {
    "GPTNeo": {
        **SIZES,
        "num_layers": 4,
        "num_heads": 4,
        "attention_types": [[["global", "local"], 2]],
        "window_size": 8,
        "initializer_range": 0.2,
    },
    "OPT": {
        **SIZES,
        "ffn_dim": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "word_embed_proj_dim": 32,
        "init_std": 0.2,
    },
    "Gemma4": GEMMA4,
    "Llama4": {
        **SHAPE,
        "head_dim": 8,
        "intermediate_size_mlp": 48,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "attention_chunk_size": 16,
    },
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", some_now(["Gemma4"], of=OWN_FORMS))
def test_families_with_masks_or_heads_of_their_own_equal_plain_hooks(tmp_path, family):
    """Their states must be those of a full forward, and patched layers those of one hooked forward each."""
    named = getattr(transformers, f"{family}TextConfig", None) or getattr(transformers, f"{family}Config")
    config = named(**OWN_FORMS[family])
    full, source = tmp_path / "0", tmp_path / "1"
    for folder in (full, source):
        with torch.random.fork_rng():
            torch.manual_seed(int(folder.name))
            getattr(transformers, f"{family}ForCausalLM")(config).save_pretrained(folder)
        build_tokenizer().save_pretrained(folder)
    with open_model(full, device="cpu") as target, open_model(source, device="cpu") as other:
        batch = make_batch(encode(EXAMPLES, target.tokenizer, protocol="raw").rows, pad_token_id=3)
        rows = torch.arange(len(batch))[:, None]
        with torch.no_grad():
            hidden = other.hf(**inputs(batch), output_hidden_states=True).hidden_states
        cache = capture(other, batch)
        for layer in range(3):  # the last of transformers' states is behind the final norm
            torch.testing.assert_close(cache[layer], hidden[layer + 1][rows, batch.window], atol=1e-5, rtol=0)
        with torch.no_grad():
            last = other.anatomy.final_norm(cache[3])
        torch.testing.assert_close(last, hidden[4][rows, batch.window], atol=1e-5, rtol=0)
        naive = open_target(target, batch, engine="naive").patched(cache)
    audit = DepthAudit.run(full, source, source, EXAMPLES, config=AuditConfig(protocol="raw"), options=AUTO)
    lost = torch.where(batch.scored_mask[:, None], naive, 0).sum(-1) / batch.scored_mask.sum(-1)[:, None]
    torch.testing.assert_close(audit.s_full[:, None] - audit.s1_delta, lost.double(), atol=1e-5, rtol=0)


def test_running_out_of_memory_in_the_check_is_not_taken_for_disagreement(trio, monkeypatch):

    def fail(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("uds_lens.patching._engines.capture", fail)
    with pytest.raises(torch.OutOfMemoryError):
        DepthAudit.run(*trio("llama"), EXAMPLES, options=AUTO)


def test_rows_that_were_all_skipped_are_not_blamed_on_the_models(trio, recwarn):
    rows = [replace(example, entity="nowhere", prefix=None) for example in EXAMPLES[:2]]
    audit = DepthAudit.run(*trio("llama"), rows, options=FAST)
    assert len(audit.skipped) == 2 and audit.uds != audit.uds
    assert not [w for w in recwarn if issubclass(w.category, UdsLensWarning) and "Does `full`" in str(w.message)]


@contextmanager
def half_by_default():
    """As another thread has it while it opens a model: transformers sets it for the whole process."""
    torch.set_default_dtype(torch.bfloat16)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("around", [half_by_default, lambda: torch.autocast("cpu", dtype=torch.bfloat16)])
def test_half_precision_around_an_audit_changes_nothing(trio, audited, around):
    with around():
        audit = DepthAudit.run(*trio("llama"), EXAMPLES, options=FAST)
    assert torch.equal(audit.s_full, audited("llama").s_full)
    assert torch.equal(audit.s2_delta, audited("llama").s2_delta)


def test_examples_may_be_rows_a_path_or_a_table(trio, audited, tmp_path, unchecked):
    (tmp_path / "rows.json").write_text(json.dumps(ROWS))
    for examples in (iter(ROWS), tmp_path / "rows.json", pandas.DataFrame(ROWS)):
        audit = DepthAudit.run(*trio("llama"), examples, options=FAST)
        assert torch.equal(audit.s2_delta, audited("llama").s2_delta)
    baseline = Baseline.measure(trio("llama").full, trio("llama").retain, ROWS, options=FAST)
    assert [e.question for e in baseline.examples] == [e.question for e in EXAMPLES]


def test_each_set_of_files_is_hashed_once(trio, hashed, tmp_path):
    paths = [shutil.copytree(path, tmp_path / path.name) for path in trio("llama")]
    baseline = Baseline.measure(*paths[:2], EXAMPLES, options=FAST)
    baseline.audit_all([paths[2], paths[1]], options=FAST)
    assert len(hashed) == 3
