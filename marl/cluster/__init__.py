"""The same loop in other places: the parts of a run as processes of a Ray cluster."""
