"""Elicitations made of words: no model behind them, beside the audits of `synthetic_audits`."""

from collections.abc import Iterator, Sequence

import numpy as np

from uds_lens.elicitation import ElicitationResults, ElicitOptions
from uds_lens.elicitation._options import ProbeRecord
from uds_lens.elicitation._saving import Part, Response
from uds_lens.results import DepthAudit

PROBES = (
    ProbeRecord("plain", "text", "nothing", "", ()),
    ProbeRecord("cloze", "text", "answer prefix", "", (("e0", "the entity cannot be located"),)),
    ProbeRecord("mask+icl+aoa(variant=identity)", "text", "other facts", "", ()),
    ProbeRecord("softgcg(target=answer)", "gradients", "gold answer", "", ()),
)
CHANCE = {"full": 0.9, "retain": 0.15, "unlearned": 0.45}


def synthetic_elicitation(
    audit: DepthAudit, *, seed: int = 0, samples: int = 3, hostile: Sequence[str] = ()
) -> ElicitationResults:
    """Answers that are right with a chance of each model's own; the first texts are the hostile ones."""
    random = np.random.default_rng(seed)

    def responses(record: ProbeRecord, chance: float, count: int) -> Iterator[Response]:
        skipped = {ident for ident, _ in record.skipped}
        for row, example in enumerate(audit.examples):
            if example.id in skipped:
                continue
            texts = [example.answer if random.random() < chance else "It is something else." for _ in range(count)]
            if row < len(hostile):
                texts[0] = hostile[row]
            told = {"prompt": f"Question: {example.question}\nAnswer:", "reference": example.answer}
            yield Response(row=row, texts=tuple(texts), details={"endless": 0}, **told)

    return ElicitationResults(
        options=ElicitOptions(samples=samples),
        protocol="raw",
        models=dict(audit.models),
        examples=tuple(audit.examples),
        probes=PROBES,
        parts=tuple(
            Part(role=role, probe=record.name, decoding=decoding, responses=tuple(responses(record, chance, count)))
            for record in PROBES
            for decoding, count in (("greedy", 1), ("sampled", samples))
            if not record.capacity or decoding == "greedy"
            for role, chance in CHANCE.items()
        ),
        provenance={},
    )
