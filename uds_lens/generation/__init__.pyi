from ._decoding import (
    Continuations as Continuations,
    GenerationSettings as GenerationSettings,
    KnownBeginning as KnownBeginning,
    SamplingSettings as SamplingSettings,
    answer_end_ids as answer_end_ids,
    choose_tokens as choose_tokens,
    generate_answers as generate_answers,
    greedy as greedy,
    known_beginning as known_beginning,
    sample_continuations as sample_continuations,
)
from ._reading import (
    CachedTexts as CachedTexts,
    TokenScores as TokenScores,
    Way as Way,
    WholeTexts as WholeTexts,
    growing_way as growing_way,
    normed_at_window as normed_at_window,
    raise_not_finite as raise_not_finite,
    read_tokens as read_tokens,
    way_of as way_of,
)
from ._rouge import rouge_l_f1 as rouge_l_f1, rouge_l_recall as rouge_l_recall
