"""Tiny models for the tests of this room."""

from tiny_models import bytewise, one_thread, words

__all__ = ["bytewise", "one_thread", "words"]
