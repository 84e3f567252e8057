"""Applications for tests of `run`, `topology` and the commands that take a topic."""
