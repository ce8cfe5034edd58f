"""Readers of compound files (MS-CFB): Word files of 1997 to 2003, and embedded OLE objects."""
