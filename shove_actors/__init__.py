"""shove_actors: reliable messaging on NATS JetStream as supervised Trio actors."""
