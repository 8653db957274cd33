"""Drafters, as transformers models."""
