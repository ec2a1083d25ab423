"""How to reach an API server: kubeconfig files, the files of a pod, credentials, TLS, proxies."""
