from dataclasses import replace

from synthetic_audits import record, synthetic_audit, with_retains

from uds_lens.results._records import reference_role, references_among


def of_weights(fingerprint: str):
    audit = synthetic_audit(n=2)
    return replace(audit, models={**audit.models, "unlearned": record("ckpt/x", fingerprint, 6)})


def test_a_model_with_the_weights_of_a_reference_is_one():
    audits = {"old": of_weights("f" * 32), "npo": of_weights("9" * 32), "never": of_weights("a" * 32)}
    assert [reference_role(audit) for audit in audits.values()] == ["full", None, "retain"]
    assert references_among(audits) == ["old", "never"]
    seeds = with_retains(audits["npo"])
    second = replace(seeds, models={**seeds.models, "unlearned": seeds.retains[1].model})
    assert reference_role(second) == "retain 2" and reference_role(seeds) is None
