"""The cluster as the scheduler knows it: nodes, pods, queues and budgets."""
