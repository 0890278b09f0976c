"""Attention in time linear in the length: recurrences of states, and landmarks of a sequence."""
