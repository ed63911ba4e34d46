"""Reinforcement learning for teams of language models."""
