"""Activation checkpointing."""
