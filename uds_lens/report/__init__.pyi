from ._audit_page import model_card as model_card, render as render, write as write
from ._dashboard import DashboardOptions as DashboardOptions, dashboard as dashboard
