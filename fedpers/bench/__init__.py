"""Our engines beside peers; nothing imports it but the command."""
