"""UniSkill (arXiv 2610.10164): one policy acts and proposes edits of the skill bank it acts with.

An edit is paid by how it shifts the current policy's log-likelihood of recorded successes against recorded failures.
"""
