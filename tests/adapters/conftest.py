"""Folders, processes and clients, ended with their test."""

from tests.support.adapters import folder, start

__all__ = ["folder", "start"]
