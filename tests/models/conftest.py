"""Tiny models for the tests of this room."""

from tests.support.tiny_models import bytewise, one_thread, words

__all__ = ["bytewise", "one_thread", "words"]
