"""Writing figures while training."""
