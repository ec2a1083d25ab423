"""Objects of the Kubernetes API, each with the fields that Phalanx reads."""
