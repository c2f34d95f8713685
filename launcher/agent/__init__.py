"""The process on each node that forks the node's ranks and answers for their end.

Standard library only, and only modules that travel with it: a test holds the list.
"""
