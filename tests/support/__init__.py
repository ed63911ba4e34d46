"""Helpers that the tests share: small games, models, runs and servers."""
