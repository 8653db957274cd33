"""Drafting, verifying and the decode loop; sibling of training, so serving needs no Lightning."""
