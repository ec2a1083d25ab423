"""Fair share: what each queue uses, demands and deserves."""
