"""Decides nothing: it turns REST and server-sent events into the gRPC contracts and back.

It owns no record. It authenticates the caller, authorises each subscriber before it joins a shared watch, and keeps one
upstream watch per run, however many browsers follow it.
"""
