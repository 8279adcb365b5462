"""`uds-lens relearn`: fine-tune a model on the forget set again."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import Annotated

import typer

from uds_lens.cli import shared_options as opt
from uds_lens.cli.output import print_training, trained_before
from uds_lens.cli.progress_lines import say
from uds_lens.cli.shared_options import Adapters, Chat, Hub, Printing, Training
from uds_lens.cli.stopping import saying_what_is_saved


def relearn(
    model: Annotated[str, typer.Option(metavar="MODEL", help="Model to fine-tune: directory or Hub id.")],
    forget: Annotated[str, typer.Option(metavar="DATA", help="Questions with the answers to learn.")],
    out: opt.Out,
    epochs: Annotated[int, typer.Option(min=1, metavar="N", help="How often each example is visited.")] = 1,
    learning_rate: Annotated[float, typer.Option(metavar="RATE", help="Learning rate of AdamW.")] = 2e-5,
    weight_decay: Annotated[float, typer.Option(metavar="RATE", help="Weight decay of AdamW.")] = 0.0,
    batch_size: Annotated[int, typer.Option(min=1, metavar="N", help="Examples per optimiser step.")] = 32,
    protocol: opt.AnswerProtocol = "auto",
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed of the order of the data.")] = 0,
    *,
    chat: Chat,
    training: Training,
    adapters: Adapters,
    hub: Hub,
    printing: Printing,
) -> None:
    """Fine-tune a model on the forget set again.

    How fast do the answers come back? The defaults are those of the robustness test: all forget rows once, 32 per
    step, AdamW without weight decay, a learning rate that falls linearly from 2e-5 without warm-up, chat prompts
    where the tokenizer has a template.

    \b
    Example:
      uds-lens relearn --model ckpt/npo --forget forget10.json --out ckpt/relearnt
    """
    say(f"fine-tuning again; opening {model} ...")
    from uds_lens import unlearning
    from uds_lens.unlearning.run_folder import saved_so_far

    before = trained_before(out)
    with saying_what_is_saved(lambda: saved_so_far(out)), redirect_stdout(sys.stderr):  # loggers print
        unlearning.relearn(
            model,
            forget,
            out=out,
            epochs=epochs,
            config=unlearning.RelearnConfig(
                learning_rate=learning_rate,
                batch_size=batch_size,
                weight_decay=weight_decay,
                protocol=protocol,
                seed=seed,
                **chat.settings(),
            ),
            lora=adapters.settings(),
            options=training.options(hub),
        )
    print_training(out, before=before, as_json=printing.json)
