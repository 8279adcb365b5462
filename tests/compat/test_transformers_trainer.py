"""Private internals of transformers' `Trainer`; each test names one, and says what to do when it is gone."""

from types import SimpleNamespace

import pytest
import torch
from tiny_models import build_model
from torch.utils.data import SequentialSampler
from transformers import TrainerCallback, TrainingArguments

from uds_lens._compat import transformers_trainer as ours
from uds_lens.errors import ModelError

ROWS = [{"x": torch.tensor([float(i)])} for i in range(6)]


class Summing(ours.OrderedTrainer):
    """Its loss is x times one weight, summed over the batch."""

    def __init__(self, folder, *, passes: int) -> None:
        self.seen: list[float] = []
        self.batches: list[int] = []
        arguments = TrainingArguments(
            output_dir=str(folder),
            per_device_train_batch_size=1,
            gradient_accumulation_steps=passes,
            max_steps=1,
            learning_rate=1.0,
            optim="sgd",
            max_grad_norm=0.0,
            lr_scheduler_type="constant",
            use_cpu=True,
            disable_tqdm=True,
            report_to="none",
            save_strategy="no",
            remove_unused_columns=False,
            dataloader_pin_memory=False,
        )
        super().__init__(model=torch.nn.Linear(1, 1, bias=False), args=arguments, train_dataset=ROWS)

    def batch_begins(self, passes) -> None:
        self.batches.append(len(passes))

    def part_of_loss(self, model, inputs):
        self.seen += inputs["x"].flatten().tolist()
        return model(inputs["x"]).sum()


@pytest.mark.parametrize("passes", [1, 3])
def test_the_parts_of_a_batch_add_up(passes: int, tmp_path) -> None:
    trainer = Summing(tmp_path, passes=passes)
    before = trainer.model.weight.item()
    trainer.train()
    step = before - trainer.model.weight.item()
    assert step == pytest.approx(sum(range(passes)), abs=1e-5), (
        "Trainer.training_step no longer divides a loss by current_gradient_accumulation_steps when "
        "loss_is_scaled_for_ga is False: see OrderedTrainer.compute_loss"
    )
    assert trainer.batches == [passes], "Trainer.get_batch_samples no longer gives all passes of a batch at once"
    assert trainer.seen == list(range(passes)), "Trainer._get_train_sampler no longer decides the order of the data"
    assert isinstance(trainer._get_train_sampler(), SequentialSampler)


def test_devices_and_activations_are_settings_of_transformers(tmp_path) -> None:
    arguments = TrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    assert hasattr(arguments, "_n_gpu"), "TrainingArguments._n_gpu is gone: one_device_each has nothing to set"
    arguments._n_gpu = 2
    assert ours.one_device_each(arguments).n_gpu == 1
    ours.checkpoint_activations(arguments)
    names = ("activation_checkpointing", "gradient_checkpointing")
    assert any(getattr(arguments, name, None) is True for name in names), "neither setting is there any more"


def test_tied_weights_may_be_missing_from_a_checkpoint_and_no_others() -> None:
    model = build_model("gpt2")
    trainer = ours.OrderedTrainer.__new__(ours.OrderedTrainer)
    trainer.model = model
    assert hasattr(ours.OrderedTrainer.__mro__[1], "_issue_warnings_after_load"), (
        "Trainer no longer reports what a checkpoint lacks through _issue_warnings_after_load: find its new name, or "
        "a resumed run prints 'missing keys ... lm_head.weight'"
    )
    state = dict(model.state_dict())
    assert state["lm_head.weight"].data_ptr() == state["transformer.wte.weight"].data_ptr()
    del state["lm_head.weight"]
    trainer._issue_warnings_after_load(model.load_state_dict(state, strict=False))
    wrong = SimpleNamespace(missing_keys=["transformer.ln_f.weight"], unexpected_keys=[])
    with pytest.raises(ModelError, match=r"does not match .*transformer\.ln_f\.weight"):
        trainer._issue_warnings_after_load(wrong)


class Logging(TrainerCallback):
    """Logs a number after each step, as `DepthCallback` does."""

    def on_step_end(self, args, state, control, **kwargs) -> None:
        self.trainer = ours.trainer_of(state)
        control.should_log = True
        ours.log_beside(self.trainer, {"number": 0.5})
        assert control.should_log, (
            "Trainer.control is no longer what callbacks get: the loss of this step is not logged"
        )


def test_a_callback_finds_its_trainer_and_logs_beside_it(tmp_path) -> None:
    trainer = Summing(tmp_path, passes=1)
    trainer.add_callback(logging := Logging())
    trainer.train()
    assert logging.trainer is trainer, "callbacks are no longer called, at any depth, by a method of the Trainer"
    assert [row["number"] for row in trainer.state.log_history if "number" in row] == [0.5]
    assert any("loss" in row for row in trainer.state.log_history)
    assert ours.trainer_of(trainer.state) is None


def test_models_in_parts_are_known(tmp_path) -> None:
    arguments, model = TrainingArguments(output_dir=str(tmp_path), use_cpu=True), torch.nn.Linear(1, 1)
    assert not ours.is_sharded(arguments, model)
    arguments.fsdp = ["full_shard"]
    assert ours.is_sharded(arguments, model)
    arguments.fsdp = []
    model.weight.ds_id = 0  # as ZeRO-3 marks a parameter
    assert ours.is_sharded(arguments, model)
