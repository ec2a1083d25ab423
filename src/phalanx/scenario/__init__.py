"""Planner scenarios: clusters written by hand, with the outcome that is expected of a plan."""
