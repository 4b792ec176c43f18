"""The metadata log on a Kafka topic."""
