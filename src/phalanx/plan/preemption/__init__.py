"""Preemption and reclaim: the cheapest set of victims that lets a gang start."""
