"""TLS: the cluster's certificate authority, the certificates that it signs, and pinning."""
