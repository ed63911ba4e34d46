"""Distributed runs: simulators and learners of a run as processes of a Ray cluster."""
