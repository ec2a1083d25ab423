"""Simulations: the production engine, planner and sync protocol in virtual time, from a seed or a
trace.
"""
