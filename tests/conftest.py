"""Puts this folder on the path, so that tests share `small_games`."""
