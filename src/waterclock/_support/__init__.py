"""What the whole package stands on and no user imports: quoting, URLs, durable files, moments."""
