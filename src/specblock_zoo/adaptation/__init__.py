"""Adaptation while serving: learn from what the target says about every tree, when it pays."""
