from ._elicited import (
    depth_elicited as depth_elicited,
)
from ._elicited import (
    elicited_scores as elicited_scores,
)
from ._elicited import (
    query_budget as query_budget,
)
from ._examples import (
    clip_bars as clip_bars,
)
from ._examples import (
    length_scatter as length_scatter,
)
from ._examples import (
    ler_heatmap as ler_heatmap,
)
from ._examples import (
    tau_curve as tau_curve,
)
from ._examples import (
    type_bars as type_bars,
)
from ._examples import (
    uds_distribution as uds_distribution,
)
from ._export import save_figure as save_figure
from ._judging import (
    faithfulness_forest as faithfulness_forest,
)
from ._judging import (
    filter_slopes as filter_slopes,
)
from ._judging import (
    method_dumbbell as method_dumbbell,
)
from ._judging import (
    metric_heatmap as metric_heatmap,
)
from ._judging import (
    pair_matrix as pair_matrix,
)
from ._judging import (
    perturbation_scatter as perturbation_scatter,
)
from ._judging import (
    pool_histogram as pool_histogram,
)
from ._judging import (
    rank_probabilities as rank_probabilities,
)
from ._layers import (
    compare_layers as compare_layers,
)
from ._layers import (
    component_profile as component_profile,
)
from ._layers import (
    example_profile as example_profile,
)
from ._layers import (
    forget_and_kept as forget_and_kept,
)
from ._layers import (
    layer_profile as layer_profile,
)
from ._layers import (
    lens_against_uds as lens_against_uds,
)
from ._models import (
    audit_differences as audit_differences,
)
from ._models import (
    depth_utility as depth_utility,
)
from ._models import (
    ranking as ranking,
)
from ._models import (
    utility_frontier as utility_frontier,
)
from ._patches import patch_heatmap as patch_heatmap
from ._style import (
    Theme as Theme,
)
from ._style import (
    template as template,
)
