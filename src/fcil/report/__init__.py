"""Stored records to tables, charts and a page; needs the standard library only."""
