"""Logit Lens beside UDS: the figure draws the columns of the comparison."""

import torch
from numpy.testing import assert_allclose

from uds_lens.metrics import LensComparison


def test_draws_what_the_comparison_measured(audit):
    s1, s2 = audit.s1_delta[1], audit.s2_delta[1]
    lens = {"lens_s1": s1 / 2, "lens_s2": torch.flip(s2, (0,)) / 8}
    compared = LensComparison(example=audit.examples[1], tau=0.05, uds_s1=s1, uds_s2=s2, **lens)
    frame, figure = compared.to_frame(), compared.plot(theme="dark")
    columns = [f"{view}_{part}" for view in ("uds", "lens") for part in ("s1_delta", "s2_delta", "ler")]
    for trace, column in zip(figure.data, columns, strict=True):
        assert_allclose(trace.y, frame[column], err_msg=column)
    words = [note.text for note in figure.layout.annotations]
    assert f"{compared.uds_score:.2f}: states" in words[0] and f"{compared.lens_score:.2f}: states" in words[1]
    assert figure.layout.title.subtitle.text == audit.examples[1].question
    assert {shape.y0 for shape in figure.layout.shapes} == {0.05}
    assert (figure.layout.yaxis3.matches, figure.layout.yaxis4.matches) == ("y", "y2")
