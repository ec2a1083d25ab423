"""Pods and PodGroups as gangs of the planner."""
