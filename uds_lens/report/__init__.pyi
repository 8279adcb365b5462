from ._audit_page import model_card as model_card
from ._audit_page import (
    render as render,
)
from ._audit_page import (
    write as write,
)
from ._dashboard import (
    DashboardOptions as DashboardOptions,
)
from ._dashboard import (
    dashboard as dashboard,
)
from ._dashboard import (
    render_dashboard as render_dashboard,
)
