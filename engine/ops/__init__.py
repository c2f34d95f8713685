"""engine/ops"""
