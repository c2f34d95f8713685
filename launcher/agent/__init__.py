"""launcher/agent"""
