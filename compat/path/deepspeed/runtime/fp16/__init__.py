"""Training in fp16."""
