"""Learners: samples with advantages -> new weights.

Tensors are named with their shape: B = rows (distinct completions), T = completion tokens, N = completion tokens of all
rows, one after the other, H = hidden size, V = vocabulary, S = entries of preference pairs, U = pairs of entries; a
digit is a size. Log-probabilities, entropies and KL divergences are in nats, float32. Tokens that a mask leaves out
change neither a loss nor its gradient, even if their numbers are NaN.
"""
