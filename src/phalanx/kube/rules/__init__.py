"""The rules of Kubernetes that decide which nodes a pod may use."""
