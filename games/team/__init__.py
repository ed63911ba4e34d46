"""The team game: a workflow of roles on problems, written as data."""
