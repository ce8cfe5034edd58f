"""Backups: one file with everything that a store holds, made while servers run, and restored to an empty store."""
