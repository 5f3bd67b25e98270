"""The journal in a stream of NATS JetStream, answered from a copy of it on this machine."""
