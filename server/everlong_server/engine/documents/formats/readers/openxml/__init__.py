"""Readers of Office Open XML (ISO/IEC 29500): Word, PowerPoint and Excel files of 2007 and later."""
