"""Finished audits, and tables of many models, as one HTML file each that opens anywhere, offline."""

from uds_lens.report.dashboard_page import dashboard, render_dashboard
from uds_lens.report.writing import render, write
from uds_lens.results.model_card import model_card

__all__ = ["dashboard", "model_card", "render", "render_dashboard", "write"]
