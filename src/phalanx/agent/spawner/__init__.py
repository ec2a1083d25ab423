"""The half of the agent that owns the tasks' processes: it starts, stops and reaps them.

It outlives the link, so that the link can crash or be upgraded under running tasks.
"""
