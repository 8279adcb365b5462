"""Judging metrics and ranking methods: tables of many models in, tables out."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
