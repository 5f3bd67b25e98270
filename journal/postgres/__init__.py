"""PostgreSQL: the one place that talks to it. Imported only where a setting names such a server."""
