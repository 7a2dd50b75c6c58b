"""How asks and uploads are carried. Engines know no method, and methods know no engine."""
