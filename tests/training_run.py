"""The job of the batch chapter as it is printed, and its cron form."""

IMAGE = "registry.example.com/trainer@sha256:def456"
JOB = """
apiVersion: lattice.dev/v1alpha1
kind: LatticeJob
metadata:
  name: training-run-42
  namespace: ml
spec:
  queue: ml-training
  minAvailable: 8
  tasks:
    workers:
      replicas: 8
      workload:
        containers:
          trainer:
            image: registry.example.com/trainer@sha256:def456
            variables:
              S3_BUCKET: "${resources.training-data.bucket}"
            resources:
              requests:
                cpu: "4"
                memory: 32Gi
                nvidia.com/gpu: "1"
              limits:
                cpu: "4"
                memory: 32Gi
                nvidia.com/gpu: "1"
            security:
              runAsUser: 65534
              apparmorProfile: Unconfined
      restartPolicy: OnFailure
  defaults:
    entryRuntime:
      imagePullSecrets:
      - default
  resources:
    training-data:
      type: secret
      params:
        keys: [bucket, access-key, secret-key]
    s3-endpoint:
      type: external-service
      direction: outbound
      params:
        endpoints:
          s3: https://s3.us-east-1.amazonaws.com
"""
#: The cron form of the chapter, which goes below `spec`.
SCHEDULE = """\
  schedule: "0 2 * * *"
  concurrencyPolicy: Forbid
  successfulJobsHistoryLimit: 3
  failedJobsHistoryLimit: 1
"""
CRON = JOB.replace("spec:\n", f"spec:\n{SCHEDULE}", 1)
