"""The Kubernetes API: its client, the kinds of objects, and local copies that follow watches."""
