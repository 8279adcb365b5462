import dataclasses

from synthetic_audits import record, synthetic_audit

from uds_lens.report._audit_page import Note, notes
from uds_lens.results import AuditConfig


def texts(audits):
    return [note.text for note in notes(audits)]


def test_each_warning_once_with_the_names_it_is_about(audits):
    found = notes(audits)
    few = [note for note in found if note.text.startswith("Only 23 examples are measurable")]
    assert few == [Note(tuple(audits), few[0].text)]


def test_warnings_that_differ_in_percentages_become_one():
    audits = {f"m{i}": synthetic_audit(seed=i, erased=-0.1 * i) for i in (1, 2)}
    shares = [audit.negative_share for audit in audits.values()]
    (found,) = (note for note in notes(audits) if "raw LER below 0" in note.text)
    assert found.names == ("m1", "m2") and min(shares) < max(shares)
    assert f"On {min(shares):.0%} to {max(shares):.0%} of" in found.text


def test_two_audits_of_the_same_weights_are_noticed():
    same = {"npo": synthetic_audit(seed=3), "rmu": synthetic_audit(seed=3), "ga": synthetic_audit(seed=4)}
    assert Note(("npo", "rmu"), "The audited models have identical weights.") in notes(same)


def test_audits_that_cannot_be_compared_say_why():
    first = synthetic_audit(seed=1)
    other_tau = synthetic_audit(seed=2, config=AuditConfig(tau=0.1, n_bootstrap=200))
    assert any("differ in tau" in text for text in texts({"a": first, "b": other_tau}))
    retrained = dataclasses.replace(first, models={**first.models, "retain": record("x", "b" * 32, 6)})
    assert any("different retain models" in text for text in texts({"a": first, "b": retrained}))
    elsewhere = dataclasses.replace(first, provenance={**first.provenance, "ids_hash": "1" * 32})
    assert any("different examples" in text for text in texts({"a": first, "b": elsewhere}))
    assert not any("differ" in text for text in texts({"a": first, "b": synthetic_audit(seed=2)}))


def test_fatal_warnings_come_first():
    swapped = synthetic_audit(seed=5)
    swapped = dataclasses.replace(swapped, s1_delta=-swapped.s1_delta - 1)
    found = notes({"a": synthetic_audit(seed=1), "swapped": swapped})
    assert found[0].level == "fatal" and found[0].names == ("swapped",)
    assert {note.level for note in found[1:]} <= {"fatal", "caution", "note"}
