"""What each event does to the cluster: one module per topic, called by `Cluster.apply`."""
