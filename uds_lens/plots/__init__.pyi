from ._elicited import (
    depth_elicited as depth_elicited,
    elicited_scores as elicited_scores,
    query_budget as query_budget,
)
from ._examples import (
    clip_bars as clip_bars,
    length_scatter as length_scatter,
    ler_heatmap as ler_heatmap,
    tau_curve as tau_curve,
    type_bars as type_bars,
    uds_distribution as uds_distribution,
)
from ._export import save_figure as save_figure
from ._judging import (
    faithfulness_forest as faithfulness_forest,
    filter_dots as filter_dots,
    method_dumbbell as method_dumbbell,
    metric_heatmap as metric_heatmap,
    pair_matrix as pair_matrix,
    perturbation_scatter as perturbation_scatter,
    pool_histogram as pool_histogram,
    rank_probabilities as rank_probabilities,
)
from ._layers import (
    compare_layers as compare_layers,
    component_profile as component_profile,
    example_profile as example_profile,
    forget_and_kept as forget_and_kept,
    layer_profile as layer_profile,
    lens_against_uds as lens_against_uds,
    patch_heatmap as patch_heatmap,
    weight_profile as weight_profile,
)
from ._models import (
    audit_differences as audit_differences,
    depth_by_step as depth_by_step,
    depth_utility as depth_utility,
    differences_by_metric as differences_by_metric,
    ranking as ranking,
    utility_frontier as utility_frontier,
)
from ._multiples import small_multiples as small_multiples
from ._style import Look as Look, template as template
from ._transplants import host_depths as host_depths, recovered_by_band as recovered_by_band
