"""Prompts and targets of different lengths side by side say what each says alone."""

import pytest
import torch

from uds_lens.elicitation._gcg import loss_from_embeddings
from uds_lens.elicitation._soft_gcg import padded, padded_loss

PROMPTS = ([1, 11, 12, 13, 14], [1, 15, 16], [1, 17, 18, 19, 20, 21, 22])
TARGETS = ((5, 9, 7), (8, 6, 5, 9, 4, 3, 10), (7,))
PLACES = (slice(2, 4), slice(1, 3), slice(4, 6))


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2"])
def test_each_row_has_the_loss_and_the_gradient_it_has_alone(opened, family):
    model = opened(family)
    width = model.hf.get_input_embeddings().weight.shape[1]
    own = torch.randn(3, 2, width, generator=torch.Generator().manual_seed(0)).mul(0.1).requires_grad_(True)
    together = padded_loss(model, padded(PROMPTS, TARGETS, torch.device("cpu")), PLACES, own)
    (gradient,) = torch.autograd.grad(together.sum(), own)
    for row, (prompt, target, place) in enumerate(zip(PROMPTS, TARGETS, PLACES, strict=True)):
        alone = own.detach()[row : row + 1].requires_grad_(True)
        loss = loss_from_embeddings(model, torch.tensor([prompt]), target, [place], alone)
        torch.testing.assert_close(together[row : row + 1], loss, atol=1e-5, rtol=1e-5)
        (expected,) = torch.autograd.grad(loss.sum(), alone)
        torch.testing.assert_close(gradient[row : row + 1], expected, atol=1e-5, rtol=1e-3)
