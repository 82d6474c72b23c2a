"""Choosing one sharding strategy per operator on one device mesh."""
