"""From answer records to batches of target features."""
