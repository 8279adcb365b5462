from ._decoding import (
    Continuations as Continuations,
    GenerationSettings as GenerationSettings,
    SamplingSettings as SamplingSettings,
    generate_answers as generate_answers,
    greedy as greedy,
    sample_continuations as sample_continuations,
)
from ._rouge import rouge_l_f1 as rouge_l_f1, rouge_l_recall as rouge_l_recall
