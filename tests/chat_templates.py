"""Tokenizers whose chats end their turns as published families do, and Open-Unlearning's labels in a few lines."""

from tiny_models import build_tokenizer
from transformers import PreTrainedTokenizerFast

LLAMA_3 = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}"
    "{% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}"
    "<|start|>system<|stop|>\n\nToday Date: {{ date_string }}\n\n{{ system }}<|eot|>"
    "{% for m in messages %}<|start|>{{ m['role'] }}<|stop|>\n\n{{ m['content'] | trim }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant<|stop|>\n\n{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{% for m in messages %}"
    "<start_of_turn>{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n{{ m['content'] | trim }}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA_2 = (
    "{% for m in messages %}{% if m['role'] == 'user' %}{{ bos_token }}[INST] {{ m['content'] }} [/INST]"
    "{% else %} {{ m['content'] }} {{ eos_token }}{% endif %}{% endfor %}"
)
# Templates of models that reason, as these families write them.
_THOUGHT = "{{ '<think>\\n' ~ thought ~ '\\n</think>\\n\\n' }}"
_SPLIT = (
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m['role'] == 'user' %}{% set ns.last = loop.index %}"
    "{% endif %}{% endfor %}{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['role'] == 'assistant' %}"
    "{% set parts = m['content'].split('</think>') %}"
    "{% set thought = parts[0].split('<think>')[-1].strip('\n') if parts | length > 1 else '' %}"
    "{% if loop.index > ns.last %}" + _THOUGHT + "{% endif %}{{ parts[-1].lstrip('\n') }}{% else %}{{ m['content'] }}"
    "{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
)
QWEN_3 = _SPLIT + (
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
QWEN_3_5 = _SPLIT + (
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% else %}<think>\n"
    "{% endif %}{% endif %}"
)
R1 = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}<|User|>{{ m['content'] }}{% else %}"
    "<|Assistant|>{{ m['content'].split('</think>')[-1] }}<|im_end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|Assistant|><think>\n{% endif %}"
)
TIGHT = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
REASONING = {
    "qwen-3": (QWEN_3, ("<|im_start|>", "<|im_end|>", "<think>", "</think>")),
    "qwen-3.5": (QWEN_3_5, ("<|im_start|>", "<|im_end|>", "<think>", "</think>")),
    "r1": (R1, ("<|User|>", "<|Assistant|>", "<|im_end|>", "<think>", "</think>")),
}
TEMPLATES = {
    "llama-3": (LLAMA_3, ("<|start|>", "<|stop|>", "<|eot|>")),
    "gemma": (GEMMA, ("<start_of_turn>", "<end_of_turn>")),
    "chatml": (CHATML, ("<|im_start|>", "<|im_end|>")),
    "llama-2": (LLAMA_2, ()),
    "tight": (TIGHT, ("<|user|>", "<|assistant|>", "<|im_end|>")),
}


def chat_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """The tiny tokenizer with the special tokens and the template of a family; its end token ends no turn."""
    return with_template(build_tokenizer(), name)


def with_template(tokenizer: PreTrainedTokenizerFast, name: str) -> PreTrainedTokenizerFast:
    """Give a tokenizer the special tokens and the template of a family."""
    template, special = (TEMPLATES | REASONING)[name]
    tokenizer.add_special_tokens({"additional_special_tokens": list(special)})
    tokenizer.chat_template = template
    return tokenizer


def open_unlearning_labels(tokenizer, question: str, answer: str, *, system=None, date=None):
    """Token ids of the conversation, and how many at the front carry no label."""
    chat = [{"role": "system", "content": system}] if system else []
    chat += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    dated = {"date_string": date} if date else {}
    ids, prompt = (
        list(tokenizer.apply_chat_template(turns, add_generation_prompt=asked, return_dict=False, **dated))
        for turns, asked in ((chat, False), (chat[:-1], True))
    )
    if ids[-1] != tokenizer.eos_token_id:
        ids.append(tokenizer.eos_token_id)
    return ids, len(prompt)
