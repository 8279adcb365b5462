"""The whole pipeline a second time, in few lines: plain transformers, one row at a time, no padding, whole answers.

Nothing of `uds_lens.patching` or `uds_lens.audit` is imported: agreement with `DepthAudit` is the point.
"""

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def layers_of(model):
    inner = getattr(model, model.base_model_prefix)
    return getattr(inner, "layers", None) or inner.h


def tokens_of(example, tokenizer, chat=None):
    """Ids of prompt and whole continuation, and the places of the entity's tokens; `chat` is (system turn, date)."""
    prompt = f"Question: {example.question}\nAnswer: {example.prefix}"
    if chat is not None:
        turns = [{"role": "system", "content": chat[0]}, {"role": "user", "content": example.question}]
        opened = {"tokenize": False, "add_generation_prompt": True, "date_string": chat[1]}
        prompt = tokenizer.apply_chat_template(turns, **opened) + example.prefix
    rest = example.answer[len(example.prefix) :].lstrip()
    text = rest if prompt[-1].isspace() else " " + rest
    begin = text.index(example.entity)
    coded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    overlap = [i for i, (a, b) in enumerate(coded.offset_mapping) if a < begin + len(example.entity) and b > begin]
    head = tokenizer(prompt, add_special_tokens=chat is None).input_ids
    return head + coded.input_ids, [len(head) + i for i in overlap]


def forward(model, ids, *, layer=None, states=None, positions=None):
    """Logits, and what left every block; block `layer` hands on `states` at `positions` instead of its own."""
    seen, handles = [], []

    def hook(module, args, output, index):
        hidden = (output if isinstance(output, torch.Tensor) else output[0]).clone()
        if index == layer:
            hidden[:, positions] = states[:, positions].to(hidden.dtype)
        seen.append(hidden)
        return hidden if isinstance(output, torch.Tensor) else (hidden, *output[1:])

    for index, block in enumerate(layers_of(model)):
        handles.append(block.register_forward_hook(lambda *a, index=index: hook(*a, index)))
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    for handle in handles:
        handle.remove()
    return logits, seen


def audit(full, retain, unlearned, examples, *, tau=0.05, dtype=torch.float32, scope="entity", chat=None, cut=False):
    """Log-probabilities, output depth, deltas, ke, ler and uds per example, and uds; as nested lists and numbers.

    With `cut` the text ends with the entity: what follows matters only to rotary frequencies that depend on its length.
    """
    tokenizer = AutoTokenizer.from_pretrained(full)
    target, *sources = (
        AutoModelForCausalLM.from_pretrained(place, dtype=dtype, attn_implementation="eager")
        for place in (full, retain, unlearned)
    )
    out = {
        "s_full": [],
        "s_unlearned": [],
        "s_retain": [],
        "output_depth": [],
        "s1_delta": [],
        "s2_delta": [],
        "ke": [],
        "ler": [],
        "uds_per_example": [],
    }
    for example in examples:
        ids, entity = tokens_of(example, tokenizer, chat)
        scored = [place - 1 for place in entity]
        read = ids[: entity[-1] + 1] if cut else ids
        patched = {"entity": scored, "boundary": scored[:1], "all": list(range(scored[-1] + 1))}[scope]

        def mean_logprob(logits, ids=ids, entity=entity, scored=scored):
            logprobs = logits.float().log_softmax(-1)
            values = [float(logprobs[p, ids[y]]) for p, y in zip(scored, entity, strict=True)]
            return sum(values) / len(values)

        s_full = mean_logprob(forward(target, read)[0])
        deltas, owns = [], []
        for source in sources:
            own, states = forward(source, read)
            patches = [forward(target, read, layer=n, states=s, positions=patched)[0] for n, s in enumerate(states)]
            deltas.append([s_full - mean_logprob(logits) for logits in patches])
            owns.append(mean_logprob(own))
        s1, s2 = deltas
        ke = [value > tau for value in s1]
        ler = [min(max(b / a, 0.0), 1.0) if k else None for a, b, k in zip(s1, s2, ke, strict=True)]
        total = sum(a for a, k in zip(s1, ke, strict=True) if k)
        kept = sum(a * r for a, r in zip(s1, ler, strict=True) if r is not None)
        s_retain, s_unlearned = owns
        out["s_retain"].append(s_retain)
        out["s_unlearned"].append(s_unlearned)
        lacks = s_full - s_retain
        out["output_depth"].append(min(max((s_full - s_unlearned) / lacks, 0.0), 1.0) if lacks > tau else None)
        for name, value in (("s_full", s_full), ("s1_delta", s1), ("s2_delta", s2), ("ke", ke), ("ler", ler)):
            out[name].append(value)
        out["uds_per_example"].append(kept / total if total else None)
    measured = [value for value in out["uds_per_example"] if value is not None]
    return {**out, "uds": sum(measured) / len(measured) if measured else float("nan")}
