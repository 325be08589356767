"""Projected gradient and mean field against the global optimum."""
