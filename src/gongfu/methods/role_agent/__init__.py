"""Role-Agent (arXiv 2606.10917): one model is the agent and its world."""
