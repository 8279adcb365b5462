"""Finished audits as one HTML file that opens anywhere, offline."""

__all__: list[str] = []
