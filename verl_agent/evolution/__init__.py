"""AgentEvol and rejection sampling: rounds of playing and supervised training, each a command of its own."""
