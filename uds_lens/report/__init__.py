"""Finished audits as one HTML file that opens anywhere, offline."""

from uds_lens.report.writing import render_report, write_report

__all__ = ["render_report", "write_report"]
