"""The steps of `build_toy_world.py`: tokenizer, batches, training, unlearning, measurement."""
