"""What people read about a cluster: gangs, queues, plans and reasons."""
