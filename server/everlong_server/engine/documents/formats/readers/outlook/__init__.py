"""Readers of Outlook messages: msg files and winmail.dat."""
