from ._greedy import (
    KnownBeginning as KnownBeginning,
)
from ._greedy import (
    answer_end_ids as answer_end_ids,
)
from ._greedy import (
    generate_answers as generate_answers,
)
from ._greedy import (
    greedy as greedy,
)
from ._greedy import (
    known_beginning as known_beginning,
)
from ._reading import (
    CachedTexts as CachedTexts,
)
from ._reading import (
    TokenScores as TokenScores,
)
from ._reading import (
    Way as Way,
)
from ._reading import (
    WholeTexts as WholeTexts,
)
from ._reading import (
    growing_way as growing_way,
)
from ._reading import (
    normed_at_window as normed_at_window,
)
from ._reading import (
    raise_not_finite as raise_not_finite,
)
from ._reading import (
    read_tokens as read_tokens,
)
from ._reading import (
    way_of as way_of,
)
from ._rouge import rouge_l_recall as rouge_l_recall
from ._sampling import (
    Continuations as Continuations,
)
from ._sampling import (
    choose_tokens as choose_tokens,
)
from ._sampling import (
    sample_continuations as sample_continuations,
)
from ._shared_prompts import (
    NotShared as NotShared,
)
from ._shared_prompts import (
    PromptChunk as PromptChunk,
)
from ._shared_prompts import (
    may_share_prompts as may_share_prompts,
)
from ._shared_prompts import (
    normed_behind_prompts as normed_behind_prompts,
)
from ._shared_prompts import (
    plan_chunks as plan_chunks,
)
from ._shared_prompts import (
    shared_prompts as shared_prompts,
)
