"""The published builds as files: one YAML document each."""
