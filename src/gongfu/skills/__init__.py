"""Skills and the bank that holds them: an append-only log, evidence, retrieval, SKILL.md folders. Imports no torch."""
