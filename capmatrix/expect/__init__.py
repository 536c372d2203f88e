"""Committed expectations: what differs from the declared, under conditions."""
